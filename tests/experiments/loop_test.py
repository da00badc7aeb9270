"""The loop as a user runs it: in order, finished once, resumed exactly."""

import json
import shutil
import signal

import numpy as np
import pytest

from experiments import config_flags
from experiments import stage1
from rstar2_jax import run_folder
from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from tests.sandbox_runner import servers

_FILES = {"config.json", "flags.txt", "session.json", "metrics.jsonl",
          "trajectories", "checkpoints", "policy", "summary.json"}
_SUMMARY = {"pass_at_1_before", "pass_at_1_after", "tool_error_ratio_before",
            "tool_error_ratio_after", "steps", "wall_s", "versions", "command",
            "stage", "history"}
# Of each way to stop a run one is tried by default, all with --slow.
_slow = pytest.mark.slow


def _check_same(place, other, stage):
  assert other.metrics(stage) == place.metrics(stage)
  assert other.policy(stage) == place.policy(stage)
  ours, theirs = place.summary(stage), other.summary(stage)
  for name in _SUMMARY - {"wall_s", "command", "history"}:
    assert ours[name] == theirs[name]


def test_the_first_start_runs_what_comes_before_and_says_so(first_start):
  place, done = first_start
  assert done.returncode == 0, done.stderr
  assert (f"stage1 starts from sft, which is not finished in"
          f" {place.run('sft')}: running it first\n") in done.stdout
  assert done.stdout.index("sft: run folder") < done.stdout.index(
      "stage1: run folder")
  assert "Traceback" not in done.stderr


def test_a_run_leaves_a_folder_to_read(finished):
  for stage, steps in (("sft", 320), ("stage1", 20)):
    run = finished.run(stage)
    assert _FILES <= {path.name for path in run.iterdir()}
    assert list(run.glob("events.out.tfevents.*"))
    assert [m["step"] for m in finished.metrics(stage)] == list(range(steps))
    summary = finished.summary(stage)
    assert _SUMMARY <= summary.keys()
    assert (summary["stage"], summary["steps"]) == (stage, steps)
    assert (run / "checkpoints" / str(steps)).is_dir()
    assert (run / "policy" / "tokenizer.json").exists()
  texts = sorted((finished.run("stage1") / "trajectories").glob("*.txt"))
  assert [path.name for path in texts] == [
      f"step_{i:06d}.txt" for i in range(20)]
  assert "[tool: success" in texts[0].read_text()


def test_records_of_a_run_hold_what_the_learner_saw(finished):
  """Both groups of every step; the learner agrees with the sampler."""
  records = list(trajectory_records.read(
      str(finished.run("stage1") / "trajectories")))
  assert len(records) == 20 * 2 * 8
  entropies = []
  for r in records:
    t = r.trajectory
    # One version per update; a step whose groups had no signal made none.
    version, = {s.policy_version for s in t.spans
                if s.source is types.Source.POLICY}
    assert version <= r.step
    texts = ["".join(p) for p, s in zip(r.pieces, t.spans, strict=True)
             if s.source is types.Source.POLICY]
    assert all(said in whole for said, whole in zip(
        t.turn_texts, texts, strict=True))
    sampled = [x for s in t.spans for x in s.logprobs or ()]
    np.testing.assert_allclose(r.learner_logprobs, sampled, atol=1e-4)
    assert len(r.entropy) == len(sampled)
    entropies += r.entropy
    assert (r.advantage is not None) == (r.fate == "trained")
  assert 0 <= min(entropies) and 0.01 < np.mean(entropies) < 6
  trained = [r for r in records if r.fate == "trained"]
  # Drawn by RoC: 4 of 8, with advantages whose sum is 0 in each group.
  assert trained and len(trained) % 4 == 0
  assert abs(sum(r.advantage for r in trained)) < 1e-5 * len(trained)
  lines = [json.loads(line) for line in (
      finished.run("stage1") / "metrics.jsonl").read_text().splitlines()]
  assert sum(line["roc/groups_kept"] * 2 * 4 for line in lines) == len(trained)


def test_flags_of_a_run_give_its_configuration(finished):
  run = finished.run("stage1")
  cfg = config_flags.build(
      ["program", f"--flagfile={run}/flags.txt"], stage1.CONFIGS)
  assert run_folder.path_of(cfg) == str(run)
  assert json.loads((run / "config.json").read_text())["policy"][
      "hidden_size"] == cfg.policy.hidden_size == 32


def test_the_policy_learns(finished):
  """From half right to nearly always, with updates at most steps."""
  metrics = finished.metrics("stage1")
  assert sum("learner/loss" in m for m in metrics) >= 10
  rewards = [m["rollout/reward"] for m in metrics]
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1
  assert finished.policy("stage1") != finished.policy("sft")
  # Rollout and learner are one policy: the same logprobs, bar rounding.
  assert max(m.get("learner/rollout_gap", 0) for m in metrics) < 1e-5


def test_a_second_start_says_that_it_is_finished(finished):
  before = finished.policy("stage1"), finished.summary("stage1")
  done = finished.call("stage1")
  assert done.returncode == 0, done.stderr
  assert "stage1 is finished already" in done.stdout
  assert "pass@1" in done.stdout
  assert f"run folder: {finished.run('stage1')}" in done.stdout
  assert (finished.policy("stage1"), finished.summary("stage1")) == before


def test_a_stage_with_another_sft_refuses_the_finished_one(finished):
  done = finished.call("stage1", "--sft.learning_rate=0.02", "--name=other")
  assert done.returncode == 2
  assert "sft.learning_rate was 0.01, is 0.02" in done.stderr
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [
    signal.SIGINT, pytest.param(signal.SIGTERM, marks=_slow)])
def test_a_stopped_stage_goes_on_as_if_nothing_had_been(
    finished, tmp_path, number):
  """By the same command, or as the last line says."""
  place = finished.copy(tmp_path, "sft")
  stopped = place.stop("stage1", number=number, after=3, stage="stage1")
  assert stopped.returncode == 130, stopped.stderr
  assert "Traceback" not in stopped.stderr
  steps = len(place.metrics("stage1"))
  assert 3 <= steps < 20
  last = stopped.stderr.splitlines()[-1]
  assert f"stage1 stopped after {steps} of 20 steps" in last
  hint = f"--flagfile={place.run('stage1')}/flags.txt"
  assert last.endswith(f"python -m experiments.stage1 {hint}")
  assert not (place.run("stage1") / "summary.json").exists()
  done = place.call("stage1", *([hint] if number == signal.SIGTERM else []))
  assert done.returncode == 0, done.stderr
  _check_same(finished, place, "stage1")


@_slow
def test_a_second_interrupt_ends_in_one_line_too(finished, tmp_path):
  place = finished.copy(tmp_path, "sft")
  stopped = place.stop("stage1", number=signal.SIGINT, after=3,
                       stage="stage1", times=2)
  assert stopped.returncode == 130, stopped.stderr
  assert "Traceback" not in stopped.stderr
  assert place.call("stage1").returncode == 0
  _check_same(finished, place, "stage1")


@pytest.mark.parametrize("every", [1, pytest.param(4, marks=_slow)])
def test_a_killed_stage_goes_on_from_its_last_checkpoint(
    finished, tmp_path, every):
  place = finished.copy(tmp_path, "sft")
  flag = f"--checkpoint.every_steps={every}"
  for after in (6, 11):
    killed = place.stop(
        "stage1", flag, number=signal.SIGKILL, after=after, stage="stage1")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert place.children  # the sandbox runner and its own
    servers.wait_until(
        lambda: not any(map(servers.is_running, place.children)), 20)
  done = place.call("stage1", flag)
  assert done.returncode == 0, done.stderr
  _check_same(finished, place, "stage1")


@_slow
def test_a_stage_killed_before_its_first_checkpoint_begins_again(
    finished, tmp_path):
  place = finished.copy(tmp_path, "sft")
  killed = place.stop(
      "stage1", number=signal.SIGKILL, after=2, stage="stage1")
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  done = place.call("stage1")
  assert done.returncode == 0, done.stderr
  _check_same(finished, place, "stage1")


def test_a_stage_killed_after_its_last_step_only_reports(finished, tmp_path):
  place = finished.copy(tmp_path, "sft", "stage1")
  (place.run("stage1") / "summary.json").unlink()
  shutil.rmtree(place.run("stage1") / "policy")
  done = place.call("stage1")
  assert done.returncode == 0, done.stderr
  _check_same(finished, place, "stage1")


@_slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_sft_goes_on_as_if_nothing_had_been(finished, tmp_path, number):
  place = finished.copy(tmp_path)
  stopped = place.stop("stage1", number=number, after=30, stage="sft")
  assert len(place.metrics("sft")) < 320
  newest = max(
      int(path.name) for path in (place.run("sft") / "checkpoints").iterdir()
      if path.name.isdigit())
  flags = f"--flagfile={place.run('sft')}/flags.txt"
  if number == signal.SIGINT:
    assert stopped.returncode == 130, stopped.stderr
    assert (f"sft stopped after {newest} steps, saved in {place.run('sft')};"
            in stopped.stderr)
    assert f"python -m experiments.sft {flags}\n" in stopped.stderr
  else:
    assert newest >= 20  # one every 10
  done = place.call("sft", flags)
  assert done.returncode == 0, done.stderr
  _check_same(finished, place, "sft")


@_slow
def test_stage2_in_an_empty_work_directory_runs_everything(finished, tmp_path):
  place = finished.copy(tmp_path)
  done = place.call("stage2")
  assert done.returncode == 0, done.stderr
  says = [done.stdout.index(text) for text in (
      "stage2 starts from stage1", "stage1 starts from sft",
      "sft: run folder", "stage1: run folder", "stage2: run folder")]
  assert says == sorted(says)
  for stage in ("sft", "stage1", "stage2"):
    assert _FILES <= {path.name for path in place.run(stage).iterdir()}
  summary = place.summary("stage2")
  assert [row["stage"] for row in summary["history"]] == [
      "sft", "stage1", "stage2"]
  assert summary["pass_at_1_before"] == place.summary("sft")[
      "pass_at_1_after"]
  assert place.call("stage2").stdout.count("stage2 is finished already") == 1
