"""What the documents tell people to type, checked; and run, where it can be.

Commands stand in blocks marked `sh`. A block marked `sh needs=THING` needs
hardware, servers, or minutes for a measurement: its flags are checked, and it
is not run. All others are run: by the slow test at the tiny size, or by the
tests of the servers and scripts that they start.
"""

import importlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from experiments import config_flags
from experiments import stage2
from tests.experiments import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DOCUMENTS = [_ROOT / "README.md", _ROOT / "sandbox_runner" / "README.md",
              *sorted((_ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```sh(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_INLINE = re.compile(r"`(python -m [^`]+)`")
_LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
# Run by tests/scripts_test.py and by everyone who reads this.
_SCRIPTS = ("./run.sh", "./test.sh")
_ARGPARSE = ("rstar2_jax.engine", "sandbox_runner",
             "experiments.benchmarks.sandbox")
# Pass flags on to the stage that they run.
_OF_STAGES = ("experiments.ablations", "experiments.sweep")


def _commands(path):
  """(command, what it needs) of the blocks of a document."""
  for needs, block in _BLOCK.findall(path.read_text()):
    for line in block.replace("\\\n", " ").splitlines():
      command = line.partition(" #")[0].strip()
      if command and not command.startswith("#"):
        yield command, needs.strip().removeprefix("needs=")


_COMMANDS = sorted({(path.relative_to(_ROOT).as_posix(), command, needs)
                    for path in _DOCUMENTS
                    for command, needs in _commands(path)})


def _inline_commands():
  for path in _DOCUMENTS:
    for command in _INLINE.findall(path.read_text()):
      yield path.relative_to(_ROOT).as_posix(), command


def _check(command):
  """Fails unless every word of a command means something."""
  words = [w for w in shlex.split(command)
           if not re.fullmatch(r"[A-Z_]+=.*", w)]
  if words[:2] == ["python", "-m"]:
    _check_module(words[2], words[3:])
  elif words[:2] == ["pip", "install"]:
    files = [w for w in words[2:] if w.endswith(".txt")]
    assert all((_ROOT / name).is_file() for name in files)
  else:
    assert words[0] in (*_SCRIPTS, "curl"), command
    for word in words[1:]:
      assert not word.startswith("tests/") or (_ROOT / word).exists(), command


def _check_module(name, arguments):
  if name == "sglang.launch_server":
    return  # not ours
  assert importlib.util.find_spec(name), name
  if name in _ARGPARSE:
    known = subprocess.run(
        [sys.executable, "-m", name, "--help"], cwd=_ROOT, text=True,
        capture_output=True, check=True).stdout
    for word in arguments:
      if word.startswith("--"):
        assert word.partition("=")[0] in known, f"{name} has no {word}"
    return
  if not name.startswith("experiments."):
    return
  module = importlib.import_module(name)
  rest = ["program", *arguments]
  if hasattr(module, "Options"):
    _, rest = config_flags.split(rest, module.Options)
  if hasattr(module, "CONFIGS") or name in _OF_STAGES:
    if not any(word.startswith("--help") for word in rest):
      config_flags.build(rest, stage2.CONFIGS)
  else:
    assert not [w for w in rest[1:] if w.startswith("-")], rest


def test_documents_have_commands():
  assert len(_COMMANDS) > 25
  assert {needs for _, _, needs in _COMMANDS} == {
      "", "gpu", "tpu", "servers", "minutes"}


@pytest.mark.parametrize("document, command", [
    (document, command) for document, command, _ in _COMMANDS])
def test_commands_mean_something(document, command):
  _check(command)


@pytest.mark.parametrize("document, command", sorted(set(_inline_commands())))
def test_commands_within_text_mean_something(document, command):
  _check(command.replace("...", "roc.keep=4").replace("--seed=N", "--seed=1"))


@pytest.mark.parametrize("path", _DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
  for target in _LINK.findall(path.read_text()):
    if not target.startswith("http"):
      assert (path.parent / target).exists(), target


def test_files_that_the_how_to_names_are_there():
  text = (_ROOT / "docs" / "how_to.md").read_text()
  for name in re.findall(r"`((?:rstar2_jax|experiments|sandbox_runner)/[^`]+)`",
                         text):
    assert (_ROOT / name).exists(), name


def test_flags_that_documents_name_exist():
  flags = {f"--{name}" for name in config_flags.flag_names()}
  for path in _DOCUMENTS:
    for flag in re.findall(r"--(?:no)?[a-z]+\.[a-z_]+", path.read_text()):
      assert flag in flags or flag.replace("--no", "--", 1) in flags, (
          f"{path.name}: {flag}")


# --- run ---------------------------------------------------------------------

_LONG = (
    *_SCRIPTS, "curl", "pip",
    "python -m sandbox_runner", "python -m rstar2_jax.engine",  # servers: below
    "python -m tests.build_files")
_RUN = sorted({command for _, command, needs in _COMMANDS
               if not needs and not command.startswith(_LONG)})


@pytest.fixture(scope="module", name="place")
def _place(finished, tmp_path_factory) -> tiny.Place:
  """A work directory in which the names of the documents mean something."""
  place = finished.copy(tmp_path_factory.mktemp("documents"), "sft", "stage1")
  for name in ("FILE.jsonl", "problems.jsonl"):
    shutil.copy(place.problems, place.workdir / name)
  (place.workdir / "BENCHMARK.jsonl").write_text(
      '{"problem": "How many primes are less than 100?", "answer": "25"}\n')
  (place.workdir / "DIR").symlink_to(place.run("stage1") / "policy")
  (place.workdir / "runs").mkdir()
  shutil.copytree(place.run("stage1"),
                  place.workdir / "runs" / "laptop-s0-stage2")
  return place


@pytest.mark.slow
@pytest.mark.parametrize("command", _RUN)
def test_commands_run(place, command):
  """As written, with the tiny configuration before its own flags."""
  python, _, name = shlex.split(command)[:3]
  takes_flags = (name in _OF_STAGES
                 or hasattr(importlib.import_module(name), "CONFIGS"))
  flags = place.command("")[3:] if takes_flags else []
  start = f"{python} -m {name}"
  command = command.replace(start, f"{start} {shlex.join(flags)}", 1)
  path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
  done = subprocess.run(
      ["bash", "-c", command], cwd=place.workdir, text=True, timeout=590,
      capture_output=True, check=False,
      env=os.environ | {"PATH": path, "PYTHONPATH": str(_ROOT)})
  assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_engines_command_answers(place):
  """`python -m rstar2_jax.engine --model_path=DIR`, up to its ready line."""
  process = subprocess.Popen(
      [sys.executable, "-m", "rstar2_jax.engine", "--port=0",
       f"--model_path={place.run('stage1')}/policy"], cwd=_ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  try:
    assert any("http://127.0.0.1:" in line for line in process.stdout)
  finally:
    process.terminate()
    process.wait(timeout=60)
