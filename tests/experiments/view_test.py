"""`experiments.view`: what it takes, what it leaves out, what it refuses."""

import pathlib
import subprocess
import sys

from rstar2_jax import types
from rstar2_jax.data import trajectory_records

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _record(step):
  trajectory = types.Trajectory(
      prompt=types.Prompt(id=f"p{step}", problem="2 + 2?", answer="4"),
      sample=0, spans=(types.Span(token_ids=(1,), source=types.Source.PROMPT),),
      stop_reason=types.StopReason.INFRA_ERROR)
  return trajectory_records.Record(
      step=step, trajectory=trajectory, pieces=(("2 + 2?",),),
      fate=trajectory_records.Fate.LOST, advantage=None, error_ratio=0.5,
      answer_format=1.0)


def _run_folder(path, num_steps):
  folder = path / "trajectories"
  folder.mkdir(parents=True)
  for step in range(num_steps):
    (folder / trajectory_records.file_name(step)).write_bytes(
        trajectory_records.to_bytes([_record(step)]))
  return path


def _view(*arguments):
  return subprocess.run(
      [sys.executable, "-m", "experiments.view", *map(str, arguments)],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)


def test_page_is_in_the_run_folder(tmp_path):
  run = _run_folder(tmp_path / "run", 3)
  done = _view(run)
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout == f"3 trajectories: {run}/trajectories.html\n"
  page = (run / "trajectories.html").read_text()
  assert all(f'"prompt":"p{step}"' in page for step in range(3))


def test_steps_and_their_number_can_be_limited(tmp_path):
  run = _run_folder(tmp_path / "run", 4)
  output = tmp_path / "page.html"
  done = _view("--first_step=1", "--last_step=2", f"--output={output}", run)
  assert done.stdout == f"2 trajectories: {output}\n"
  assert '"prompt":"p0"' not in output.read_text()
  done = _view(run, "--max_trajectories=2")  # flags may come last
  assert "only the first 2 trajectories, up to step 1" in done.stdout


def test_bad_input_is_one_line(tmp_path):
  empty = tmp_path / "empty"
  (empty / "trajectories").mkdir(parents=True)
  run = _run_folder(tmp_path / "run", 1)
  for arguments, said in [
      ([], "name a run folder"), ([run, run], "one run at a time"),
      ([tmp_path / "none"], "no folder of trajectories"),
      ([empty], "--log.groups_per_step"),
      ([run, "--first_step=-1"], "--first_step=-1: must be at least 0"),
      ([run, f"--output={tmp_path}/none/x.html"], "cannot be written"),
      ([run, "--frist_step=1"], "did you mean --first_step?")]:
    done = _view(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
