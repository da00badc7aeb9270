"""Run folders: one user, one configuration, nothing lost or torn."""

import errno
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from experiments import config_flags
from experiments import stage2
from rstar2_jax import errors
from rstar2_jax import run_folder

_ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(name="cfg")
def _cfg(tmp_path):
  return _with(stage2.CONFIGS["laptop"], workdir=str(tmp_path / "my runs"))


def _with(cfg, **values):
  return config_flags.replace(
      cfg, {name.replace("__", "."): value for name, value in values.items()})


def _lines(path):
  return [json.loads(line) for line in
          (pathlib.Path(path) / "metrics.jsonl").read_text().splitlines()]


def test_a_folder_is_named_after_preset_seed_and_stage(cfg):
  assert run_folder.path_of(cfg) == os.path.join(
      cfg.workdir, "laptop-s0-stage2")
  assert run_folder.path_of(_with(cfg, name="mine")) == os.path.join(
      cfg.workdir, "mine")


def test_configuration_command_and_versions_are_written(cfg, capsys):
  with run_folder.RunFolder(cfg) as folder:
    assert folder.path == run_folder.path_of(cfg)
    assert folder.checkpoint_dir == os.path.join(folder.path, "checkpoints")
    assert not folder.is_finished
    assert f"run folder {folder.path}" in capsys.readouterr().out
  path = pathlib.Path(folder.path)
  assert json.loads((path / "config.json").read_text())["loss"][
      "clip_high"] == 0.28
  session = json.loads((path / "session.json").read_text())
  assert session["command"] == sys.argv
  assert session["versions"]["numpy"] == np.__version__
  assert {"python", "jax", "flax", "optax"} <= session["versions"].keys()


def test_nobody_else_may_use_the_folder(cfg):
  with run_folder.RunFolder(cfg) as folder:
    other = subprocess.run(
        [sys.executable, "-c",
         "import sys\n"
         "from experiments import config_flags, stage2\n"
         "from rstar2_jax import run_folder\n"
         "def main(cfg):\n"
         "  with run_folder.RunFolder(cfg): pass\n"
         "config_flags.run(main, stage2.CONFIGS)\n",
         f"--workdir={cfg.workdir}"],
        cwd=_ROOT, text=True, capture_output=True, timeout=60, check=False)
    assert other.returncode == 2
    assert folder.path in other.stderr
    assert f"process {os.getpid()}" in other.stderr
    assert len(other.stderr.splitlines()) == 1
  with run_folder.RunFolder(cfg):
    pass


def test_another_configuration_is_refused_and_named(cfg):
  with run_folder.RunFolder(cfg):
    pass
  before = (pathlib.Path(run_folder.path_of(cfg)) / "config.json").read_text()
  with pytest.raises(errors.UserError) as caught:
    with run_folder.RunFolder(_with(cfg, loss__clip_high=0.2, seed=0,
                                    roc__keep=4)):
      pass
  message = str(caught.value)
  assert "--loss.clip_high was 0.28, is 0.2" in message
  assert "--roc.keep was 8, is 4" in message
  assert "--name" in message and run_folder.path_of(cfg) in message
  assert before == (
      pathlib.Path(run_folder.path_of(cfg)) / "config.json").read_text()


@pytest.mark.parametrize("values", [
    {"num_steps": 99}, {"checkpoint__keep": 5}, {"log__tensorboard": False},
    {"eval__num_problems": 0}, {"tool__urls": ("http://a:1",)},
    {"rollout__urls": ("http://a:1",)}, {"engine__num_slots": 8},
    {"rollout__step_timeout_s": 5000.0}, {"mesh__fsdp": 1},
])
def test_what_does_not_change_the_outcome_may_change(cfg, values):
  with run_folder.RunFolder(cfg):
    pass
  changed = _with(cfg, **values)
  with run_folder.RunFolder(changed) as folder:
    path = folder.path
  assert config_flags.build(
      ["program", f"--flagfile={path}/flags.txt"], stage2.CONFIGS) == changed


@pytest.mark.parametrize("values", [
    {"seed": 1}, {"policy__num_layers": 1}, {"tool__timeout_s": 1.0},
    {"rollout__temperature": 0.9}, {"data__families": ("gcd",)},
])
def test_what_changes_the_outcome_may_not_change(cfg, values):
  cfg = _with(cfg, name="same")
  with run_folder.RunFolder(cfg):
    pass
  with pytest.raises(errors.UserError):
    with run_folder.RunFolder(_with(cfg, **values)):
      pass


def test_a_workdir_that_is_a_file_is_one_line(tmp_path, cfg):
  (tmp_path / "file").write_text("")
  with pytest.raises(errors.UserError, match="--workdir=.*file"):
    with run_folder.RunFolder(_with(cfg, workdir=str(tmp_path / "file"))):
      pass


def test_metrics_are_there_at_once_and_have_no_nan(cfg):
  with run_folder.RunFolder(cfg) as folder:
    folder.write_metrics(0, {"learner": {"loss": np.float32(0.5)},
                             "rollout": {"reward": float("nan")}})
    text = (pathlib.Path(folder.path) / "metrics.jsonl").read_text()
    assert text == (
        '{"step": 0, "learner/loss": 0.5, "rollout/reward": null}\n')


def test_resume_drops_later_steps_and_a_torn_line(cfg):
  with run_folder.RunFolder(cfg) as folder:
    for step in range(5):
      folder.write_metrics(step, {"a": {"x": step}})
  with open(os.path.join(folder.path, "metrics.jsonl"), "a") as file:
    file.write('{"step": 2, "a/')
  with run_folder.RunFolder(cfg) as folder:
    folder.truncate_metrics(3)
    assert [line["step"] for line in _lines(folder.path)] == [0, 1, 2]
    folder.write_metrics(3, {"a": {"x": 33}})
    assert [line["a/x"] for line in _lines(folder.path)] == [0, 1, 2, 33]


def test_tensorboard_gets_the_same_and_forgets_repeated_steps(cfg):
  for first in (0, 2):
    with run_folder.RunFolder(cfg) as folder:
      folder.truncate_metrics(first)
      for step in range(first, 4):
        folder.write_metrics(step, {"a": {"x": step + first}})
  first, second = (
      list(_events(path)) for path in
      sorted(pathlib.Path(folder.path).glob("events.out.tfevents.*")))
  assert [_scalars(e) for e in first if e.summary.value] == [
      (i, {"a/x": i}) for i in range(4)]
  assert [_scalars(e) for e in second if e.summary.value] == [
      (2, {"a/x": 4}), (3, {"a/x": 5})]
  starts = [e.step for e in second
            if e.session_log.status == event_pb2.SessionLog.START]
  assert starts == [2]


def _events(path):
  """Records are: length, its checksum, data, its checksum."""
  data = path.read_bytes()
  while data:
    size = int.from_bytes(data[:8], "little")
    yield event_pb2.Event.FromString(data[12:12 + size])
    data = data[16 + size:]


def _scalars(event):
  return event.step, {v.tag: v.simple_value for v in event.summary.value}


def test_no_tensorboard_if_not_wanted(cfg):
  with run_folder.RunFolder(_with(cfg, log__tensorboard=False)) as folder:
    folder.write_metrics(0, {"a": {"x": 1}})
  assert not list(pathlib.Path(folder.path).glob("events*"))


def test_summary_ends_the_run(cfg):
  with run_folder.RunFolder(cfg) as folder:
    folder.write_summary({
        "stage": "stage2", "steps": 3, "wall_s": 1.0, "history": []})
    assert folder.is_finished
  path = run_folder.path_of(cfg)
  assert run_folder.is_finished(path)
  summary = run_folder.read_summary(path)
  assert summary["stage"] == "stage2"
  assert "numpy" in summary["versions"]
  before = (pathlib.Path(path) / "config.json").read_text()
  with run_folder.RunFolder(_with(cfg, num_steps=99)) as folder:
    assert folder.read_summary() == summary
  assert before == (pathlib.Path(path) / "config.json").read_text()


def test_a_torn_summary_is_none(cfg):
  with run_folder.RunFolder(cfg) as folder:
    (pathlib.Path(folder.path) / "summary.json").write_text('{"stage": ')
    assert not folder.is_finished
  assert not run_folder.is_finished(folder.path)
  with pytest.raises(errors.UserError, match="no finished run"):
    run_folder.read_summary(folder.path)
  assert not run_folder.is_finished(folder.path + "-missing")


def test_seconds_of_all_sessions_count_also_of_killed_ones(cfg):
  code = ("import os, time\n"
          "from experiments import config_flags, stage2\n"
          "from rstar2_jax import run_folder\n"
          "def main(cfg):\n"
          "  with run_folder.RunFolder(cfg) as folder:\n"
          "    time.sleep(0.5)\n"
          "    folder.write_metrics(0, {})\n"
          "    os.kill(os.getpid(), 9)\n"
          "config_flags.run(main, stage2.CONFIGS)\n")
  for _ in range(2):
    done = subprocess.run(
        [sys.executable, "-c", code, f"--workdir={cfg.workdir}"], cwd=_ROOT,
        timeout=60, check=False)
    assert done.returncode == -9
  with run_folder.RunFolder(cfg) as folder:
    assert folder.wall_s() >= 0.9


def test_hint_says_where_it_stopped_and_how_to_go_on(cfg):
  with run_folder.RunFolder(cfg) as folder:
    hint = folder.resume_hint(7)
  assert f"7 of {cfg.num_steps} steps" in hint
  assert "python -m experiments.stage2" in hint
  assert f"--flagfile='{folder.path}/flags.txt'" in hint  # a space in it


def test_a_full_disk_is_one_line_and_no_file_is_torn(tmp_path):
  """On a real file system of a few hundred KiB, where we may mount one."""
  disk = tmp_path / "disk"
  disk.mkdir()
  code = ("from experiments import config_flags, stage2\n"
          "from rstar2_jax import run_folder\n"
          "def main(cfg):\n"
          "  with run_folder.RunFolder(cfg) as folder:\n"
          "    for i in range(100_000):\n"
          "      folder.write_metrics(i, {'a': {str(k): k for k in range(20)}}"
          ")\n"
          "config_flags.run(main, stage2.CONFIGS)\n")
  mount = ("mount -t tmpfs -o size=200k tmpfs \"$0\" || exit 77\n"
           "\"$1\" -c \"$2\" --workdir=\"$0\"; status=$?\n"
           "cp -r \"$0\" \"$0-copy\"; exit $status\n")
  try:
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, str(disk), sys.executable, code],
        cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)
  except FileNotFoundError:
    pytest.skip("no unshare(1)")
  if done.returncode == 77 or "unshare" in done.stderr:
    pytest.skip(f"may not mount: {done.stderr.strip()}")
  assert done.returncode == 2, done.stderr
  assert len(done.stderr.splitlines()) == 1
  assert "disk full" in done.stderr and str(disk) in done.stderr
  (run,) = pathlib.Path(f"{disk}-copy").iterdir()
  for name in ("config.json", "session.json"):
    json.loads((run / name).read_text())
  assert not list(run.glob("*.new"))


def test_other_errors_of_the_system_are_not_called_a_full_disk(cfg):
  with pytest.raises(OSError) as caught:
    with run_folder.RunFolder(cfg) as folder:
      os.rmdir(os.path.join(folder.path, "trajectories"))
      folder.write_file("trajectories/a.txt", "a")
  assert caught.value.errno == errno.ENOENT


def test_wandb_gets_the_same_and_goes_on_with_its_run(cfg, monkeypatch):
  """Offline: two sessions of one folder are one run there."""
  pytest.importorskip("wandb")
  monkeypatch.setenv("WANDB_MODE", "offline")
  monkeypatch.setenv("WANDB_SILENT", "true")
  cfg = _with(cfg, log__wandb="trial")
  for step in (0, 1):
    with run_folder.RunFolder(cfg) as folder:
      folder.write_metrics(step, {"rollout": {"reward": 0.25 + step}})
  path = pathlib.Path(folder.path)
  name = (path / "wandb_id.txt").read_text().strip()
  files = sorted(path.glob("wandb/offline-run-*/*.wandb"))
  assert len(files) == 2
  assert {file.stem for file in files} == {f"run-{name}"}
  # A process of wandb's own writes them, and a block may hold a name in two.
  for file, value in zip(files, (b"0.25", b"1.25"), strict=True):
    deadline_s = time.monotonic() + 30
    while (data := file.read_bytes()).count(b"reward") < 2 or (
        value not in data):
      assert time.monotonic() < deadline_s, data
      time.sleep(0.1)


def test_without_wandb_there_is_one_line_and_nothing_is_lost(cfg, monkeypatch):
  with run_folder.RunFolder(cfg) as folder:
    folder.write_metrics(0, {"rollout": {"reward": 1.0}})
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(errors.UserError, match="pip install wandb"):
    run_folder.RunFolder(_with(cfg, log__wandb="trial")).__enter__()
  with run_folder.RunFolder(cfg) as folder:  # the lock is free again
    pass
  assert len(run_folder.read_metrics(folder.path)) == 1
