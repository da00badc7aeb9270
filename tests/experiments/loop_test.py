"""The loops through their commands: stages in order, stop, resume, the same end.

Slow: a policy must be trained until some group of rollouts has a signal.
"""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from safetensors import numpy as safetensors_numpy
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = (
    "--sft.num_demonstrations=3500", "--sft.max_level=1", "--data.max_level=1",
    "--data.families=recurrence,primes,gcd,digit_count",
    "--sft.slip_rate=0.5", "--eval.num_problems=6", "--eval.num_samples=1",
    "--rollout.prompts_per_step=4", "--nolog.tensorboard")
STEPS = 4

pytestmark = pytest.mark.slow


def command(stage, workdir, *flags):
  return [sys.executable, "-m", f"experiments.{stage}", f"--workdir={workdir}",
          *SMALL, *flags]


def run(stage, workdir, *flags, code=0):
  done = subprocess.run(
      command(stage, workdir, *flags), cwd=ROOT, capture_output=True,
      text=True, timeout=600, check=False)
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout + done.stderr


def stop_after(stage, workdir, step, how, *flags):
  """Starts a stage, signals it once `step` is in its metrics; exit code."""
  metrics = folder(workdir, stage) / "metrics.jsonl"
  process = subprocess.Popen(
      command(stage, workdir, *flags), cwd=ROOT, stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT, text=True)
  deadline_s = time.monotonic() + 300
  while not (metrics.exists()
             and f'"step": {step},' in metrics.read_text()):
    assert process.poll() is None and time.monotonic() < deadline_s
    time.sleep(0.02)
  process.send_signal(how)
  output, _ = process.communicate(timeout=120)
  return process.returncode, output


def folder(workdir, stage):
  return pathlib.Path(workdir) / f"laptop-s0-{stage}"


def metrics_of(workdir, stage):
  """All numbers but times, by step."""
  lines = (folder(workdir, stage) / "metrics.jsonl").read_text().splitlines()
  return [{k: v for k, v in json.loads(line).items()
           if not k.startswith("time/") and "_ms" not in k} for line in lines]


def assert_same_end(ours, theirs, stage):
  assert metrics_of(ours, stage) == metrics_of(theirs, stage)
  a, b = (safetensors_numpy.load_file(
      folder(w, stage) / "policy" / "model.safetensors")
          for w in (ours, theirs))
  for name, tensor in a.items():
    np.testing.assert_array_equal(tensor, b[name], err_msg=name)


@pytest.fixture(name="finished", scope="module")
def _finished(tmp_path_factory):
  """A work directory with SFT and stage 1, run without interruption."""
  workdir = tmp_path_factory.mktemp("finished")
  output = run("stage1", workdir, f"--num_steps={STEPS}")
  assert "running it first" in output
  return workdir


def test_a_stage_runs_its_predecessor_and_leaves_its_files(finished):
  for stage in ("sft", "stage1"):
    found = {p.name for p in folder(finished, stage).iterdir()}
    assert {"config.json", "flags.txt", "metrics.jsonl", "summary.json",
            "policy", "checkpoints", "trajectories"} <= found
  summary = json.loads(
      (folder(finished, "stage1") / "summary.json").read_text())
  assert {"pass_at_1_before", "pass_at_1_after", "tool_error_ratio_before",
          "tool_error_ratio_after", "steps", "wall_s", "versions"} <= set(
              summary)
  assert summary["steps"] == STEPS
  assert [row["stage"] for row in summary["history"]] == ["sft", "stage1"]
  texts = list((folder(finished, "stage1") / "trajectories").iterdir())
  assert len(texts) == STEPS and "gold answer" in texts[0].read_text()


def test_a_finished_stage_is_not_repeated(finished):
  assert "is finished already" in run(
      "stage1", finished, f"--num_steps={STEPS}")


def test_rollouts_agree_with_the_learner_and_something_is_learned(finished):
  learned = [line for line in metrics_of(finished, "stage1")
             if "learner/loss" in line]
  assert learned, "no group had a signal: the test needs a better SFT"
  assert all(line["learner/rollout_gap"] < 1e-4 for line in learned)


def test_sft_stopped_by_a_signal_goes_on_to_the_same_end(finished, tmp_path):
  code, output = stop_after("sft", tmp_path, 5, signal.SIGINT)
  assert code == 130 and "to go on" in output
  run("sft", tmp_path)
  assert_same_end(tmp_path, finished, "sft")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_rl_stopped_or_killed_goes_on_to_the_same_end(finished, tmp_path, how):
  shutil.copytree(folder(finished, "sft"), folder(tmp_path, "sft"))
  flags = (f"--num_steps={STEPS}", "--checkpoint.every_steps=2")
  code, _ = stop_after("stage1", tmp_path, 1, how, *flags)
  assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
  run("stage1", tmp_path, *flags)
  assert_same_end(tmp_path, finished, "stage1")


def test_a_stage_with_another_sft_refuses_the_finished_one(finished):
  output = run("stage1", finished, "--sft.learning_rate=0.02", "--name=other",
               code=2)
  assert "sft.learning_rate was 0.01, is 0.02" in output
  assert "Traceback" not in output
