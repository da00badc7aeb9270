"""`experiments.analyze` on a small run folder, and what it refuses."""

import json
import pathlib
import subprocess
import sys

from rstar2_jax import types
from rstar2_jax.data import trajectory_records

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_EVIL = "<script>broken = 1</script>"


def _record(step, text):
  trajectory = types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer="1"), sample=0,
      spans=(types.Span(token_ids=(1, 2), source=types.Source.POLICY,
                        logprobs=(-1.0, -1.0)),),
      stop_reason=types.StopReason.ANSWERED, turn_texts=(text,), reward=1.0)
  return trajectory_records.Record(
      step=step, trajectory=trajectory, pieces=((text, "<answer>"),),
      fate=trajectory_records.Fate.TRAINED, advantage=0.0, error_ratio=0.0,
      answer_format=0.0, entropy=(0.75, 0.25))


def _run_folder(path):
  folder = path / "trajectories"
  folder.mkdir(parents=True)
  for step, text in enumerate(["but", _EVIL, "but"]):
    (folder / trajectory_records.file_name(step)).write_bytes(
        trajectory_records.to_bytes([_record(step, text)]))
  return path


def _analyze(*arguments):
  return subprocess.run(
      [sys.executable, "-m", "experiments.analyze", *map(str, arguments)],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)


def test_tables_page_and_json(tmp_path):
  run = _run_folder(tmp_path / "run")
  done = _analyze(run)
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.startswith("3 trajectories, 6 sampled tokens")
  result = json.loads(done.stdout.splitlines()[-1])
  assert result["segments"] == {
      "reasoning": {"tokens": 3, "of_all": 0.5, "of_top": 1.0,
                    "mean_entropy": 0.75},
      "answer": {"tokens": 3, "of_all": 0.5, "of_top": 0.0,
                 "mean_entropy": 0.25}}
  page = (run / "entropy.html").read_text()
  assert "Forking tokens" in page and "&#x27;but&#x27;" in page
  assert _EVIL not in page and "<svg" in page


def test_what_is_read_can_be_limited(tmp_path):
  run = _run_folder(tmp_path / "run")
  assert _analyze(run, "--first_step=1").stdout.startswith("2 trajectories")
  assert _analyze(run, "--trajectories=1").stdout.startswith("1 trajectories")


def test_bad_input_is_one_line(tmp_path):
  run = _run_folder(tmp_path / "run")
  for arguments, said in [
      ([], "name a run folder"), ([run, run], "one run at a time"),
      ([tmp_path], "no folder of trajectories"),
      ([run, "--first_step=9"], "--log.groups_per_step"),
      ([run, "--top=1.5"], "--top=1.5: must be over 0 and at most 1"),
      ([run, f"--output={tmp_path}/none/x.html"], "cannot be written")]:
    done = _analyze(*arguments)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
