"""run.sh and test.sh: from anywhere, in any folder, with one clear line."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_SCRIPTS = ("run.sh", "test.sh", ".ci/run")
_PROGRAMS = ("bash", "basename", "cat", "cksum", "dirname", "ls", "rm")


@pytest.fixture(name="checkout")
def _checkout(tmp_path):
  """The scripts alone, in a folder with a space; nothing to install."""
  folder = tmp_path / "my checkout"
  (folder / "experiments").mkdir(parents=True)
  for name in ("run.sh", "test.sh", "venv.sh"):
    shutil.copy(_ROOT / name, folder)
  for name in ("requirements.txt", "requirements-dev.txt"):
    (folder / name).write_text("")
  (folder / "experiments" / "__init__.py").write_text("")
  (folder / "experiments" / "stage2.py").write_text(
      "import os, sys\nprint(os.getcwd(), sys.prefix, sys.argv[1:])\n")
  return folder


def _call(script, *arguments, cwd, **environment):
  return subprocess.run(
      ["bash", str(script), *arguments], cwd=cwd, text=True, timeout=300,
      capture_output=True, check=False,
      env={k: v for k, v in os.environ.items()
           if k not in ("PYTHONPATH", "RSTAR2_VENV")} | environment)


def _path_with(folder, **programs):
  """A PATH with little in it."""
  folder.mkdir()
  for name in _PROGRAMS:
    (folder / name).symlink_to(shutil.which(name))
  for name, target in programs.items():
    (folder / name).symlink_to(target)
  return str(folder)


@pytest.mark.parametrize("name", [*_SCRIPTS, "venv.sh"])
def test_bash_can_read_it(name):
  done = subprocess.run(["bash", "-n", str(_ROOT / name)], text=True,
                        capture_output=True, check=False)
  assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", _SCRIPTS)
def test_it_can_be_run_and_stops_at_errors(name):
  path = _ROOT / name
  assert os.access(path, os.X_OK)
  text = path.read_text()
  assert text.startswith("#!/usr/bin/env bash\n")
  assert "set -euo pipefail" in text


def test_run_makes_an_environment_once(checkout, tmp_path):
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  path = _path_with(tmp_path / "bin", python3=_python())
  says = f"{elsewhere} {checkout / '.venv'} ['--name=a b', '--seed=1']\n"
  for installs in (True, False):
    done = _call(checkout / "run.sh", "--name=a b", "--seed=1", cwd=elsewhere,
                 PATH=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == says
    assert ("making a virtual environment" in done.stderr) == installs
    assert ("installing requirements.txt" in done.stderr) == installs
  (checkout / "requirements.txt").write_text("# changed\n")
  done = _call(checkout / "run.sh", cwd=elsewhere, PATH=path)
  assert "making" not in done.stderr
  assert "installing requirements.txt" in done.stderr


def test_what_pip_says_is_seen(checkout, tmp_path):
  path = _path_with(tmp_path / "bin", python3=_python())
  (checkout / "requirements.txt").write_text("./no such file.whl\n")
  done = _call(checkout / "run.sh", cwd=checkout, PATH=path)
  assert done.returncode == 2
  assert "no such file" in done.stderr
  assert done.stderr.splitlines()[-1].startswith("error: pip could not install")
  assert done.stdout == ""


@pytest.mark.parametrize("script", ["run.sh", "test.sh"])
def test_without_a_python_there_is_one_line(checkout, tmp_path, script):
  done = _call(checkout / script, cwd=tmp_path,
               PATH=_path_with(tmp_path / "bin"))
  assert done.returncode == 2
  assert len(done.stderr.splitlines()) == 1
  assert "Python >= 3.11" in done.stderr


def test_a_folder_with_other_things_is_not_deleted(checkout, tmp_path):
  (tmp_path / "home").mkdir()
  (tmp_path / "home" / "letter.txt").write_text("dear")
  done = _call(checkout / "test.sh", cwd=tmp_path,
               RSTAR2_VENV=str(tmp_path / "home"))
  assert done.returncode == 2
  assert "no virtual environment" in done.stderr
  assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_requirements_of_the_core_need_no_torch():
  lines = (_ROOT / "requirements.txt").read_text().splitlines()
  names = {re.split(r"[<>=;\[ ]", line)[0].lower() for line in lines
           if line and not line.startswith("#")}
  assert {"jax", "flax", "optax", "numpy", "tqdm", "tensorboardx"} <= names
  assert not {"torch", "sglang", "transformers"} & names


def _python():
  """The interpreter behind the virtual environment that runs the tests."""
  return pathlib.Path(sys.base_prefix, "bin", pathlib.Path(
      f"python{sys.version_info.major}.{sys.version_info.minor}"))
