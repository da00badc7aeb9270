"""Each experiment answers --help and wrong flags at once, without JAX."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_EXPERIMENTS = [
    name for name in ("sft", "stage1", "stage2", "stage3", "recipe", "evaluate",
                      "ablations", "sweep", "filter_hard", "chat",
                      "record")
    if (_ROOT / "experiments" / f"{name}.py").exists()]


def _run(name, *arguments, options=()):
  return subprocess.run(
      [sys.executable, *options, "-m", f"experiments.{name}", *arguments],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("name", _EXPERIMENTS)
def test_help(name):
  done = _run(name, "--help", options=["-X", "importtime"])
  assert done.returncode == 0, done.stderr
  first, *_ = (_ROOT / "experiments" / f"{name}.py").read_text().splitlines()
  assert done.stdout.splitlines()[0] == first.strip('"')
  assert f"python -m experiments.{name}" in done.stdout
  assert "--seed=0" in done.stdout
  imported = re.findall(r"\|\s*(\S+)$", done.stderr, re.MULTILINE)
  assert "absl.flags" in imported  # else the list is not what it seems
  assert not {"jax", "flax", "transformers"} & set(imported)


@pytest.mark.parametrize("name", _EXPERIMENTS)
def test_unknown_flag(name):
  done = _run(name, "--worksdir=x")
  assert done.returncode == 2
  assert done.stdout == ""
  assert done.stderr == (
      "error: unknown flag --worksdir; did you mean --workdir?\n")


def test_help_may_be_cut_off():
  """As by `| head -1`."""
  done = subprocess.run(
      ["bash", "-c",
       f'"{sys.executable}" -m experiments.stage2 --help | head -1'],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)
  assert done.stderr == ""


def test_experiments_can_be_imported_together():
  for name in _EXPERIMENTS:
    assert importlib.util.find_spec(f"experiments.{name}") is not None
  done = subprocess.run(
      [sys.executable, "-c", "\n".join(
          f"import experiments.{name}" for name in _EXPERIMENTS)],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)
  assert (done.returncode, done.stderr) == (0, "")
