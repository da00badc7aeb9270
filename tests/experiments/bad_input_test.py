"""Whatever a user gets wrong is one line on stderr, exit code 2, no loss."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _run(module, *arguments, **options):
  return subprocess.run(
      [sys.executable, "-m", module, *arguments], cwd=_ROOT, text=True,
      capture_output=True, timeout=300, check=False, **options)


def _error(done, *parts):
  """The one line, which names what is wrong; progress may stand before it."""
  assert done.returncode == 2, (done.stdout, done.stderr)
  assert "Traceback" not in done.stderr + done.stdout
  errors = [line for line in done.stderr.splitlines()
            if line.startswith("error: ")]
  assert len(errors) == 1, done.stderr
  assert done.stderr.splitlines()[-1] == errors[0]
  for part in parts:
    assert part in errors[0]
  return errors[0]


def _only_error(done, *parts):
  """Nothing but the one line."""
  assert done.stderr.count("\n") == 1, done.stderr
  return _error(done, *parts)


@pytest.fixture(name="closed_port")
def _closed_port():
  """A port at which nobody answers."""
  with socket.socket() as taken:  # bound, not listening: nobody else gets it
    taken.bind(("127.0.0.1", 0))
    yield taken.getsockname()[1]


@pytest.fixture(name="used_port")
def _used_port():
  with socket.create_server(("127.0.0.1", 0)) as listener:
    yield listener.getsockname()[1]


@pytest.mark.parametrize("flag, parts", [
    ("--loss.clip_hgh=0.2", ["--loss.clip_hgh", "--loss.clip_high?"]),
    ("--loss.clip_low=2", ["--loss.clip_low=2", "between 0 and 1"]),
    ("--roc.mode=both", ["--roc.mode=both", "paper, release"]),
    ("--seed=one", ["--seed=one", "whole number"]),
    ("--rollout.temperature=nan", ["--rollout.temperature=nan", "finite"]),
    ("--flagfile=missing.txt", ["missing.txt"]),
    ("stage1", ["'stage1'"]),
])
def test_wrong_flags(tmp_path, flag, parts):
  _only_error(_run("experiments.stage2", f"--workdir={tmp_path}/runs", flag),
              *parts)
  assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("line, parts", [
    ('{"problem": "What is 2 + 2?", "answer": 4', ["not valid JSON"]),
    ('["What is 2 + 2?", 4]', ["list"]),
    ('{"problem": "What is 2 + 2?"}', ["'answer'"]),
    ('{"answer": 4}', ["'problem'"]),
    ('{"problem": "What is 1 / 2?", "answer": 0.5}', ["0.5", "integer"]),
    ("\udcff", ["not valid JSON"]),
])
@pytest.mark.parametrize("flag", ["data.train", "data.heldout"])
def test_malformed_problems_name_file_and_line(
    finished, tmp_path, flag, line, parts):
  place = finished.copy(tmp_path / "place", "sft")
  path = tmp_path / "bad problems.jsonl"
  path.write_bytes(b'{"problem": "What is 1 + 1?", "answer": 2}\n\n'
                   + line.encode(errors="surrogateescape") + b"\n")
  done = place.call("stage1", f"--{flag}={path}")
  _error(done, f"--{flag}=", f"{path}:3", *parts)
  # Before anything has been trained.
  assert not place.metrics("stage1")


@pytest.mark.parametrize("flag, value, parts", [
    ("data.train", "missing.jsonl", ["missing.jsonl", "No such file"]),
    ("data.train", "problems.txt", ["procedural", ".jsonl", "hf:NAME"]),
    ("data.train", ".", ["procedural", ".jsonl", "hf:NAME"]),
    ("data.families", "gcd,astrology", ["astrology", "gcd"]),
])
def test_data_that_is_not_there(finished, tmp_path, flag, value, parts):
  place = finished.copy(tmp_path / "place", "sft")
  flags = [f"--{flag}={value}"]
  if flag == "data.families":
    flags.append("--data.train=procedural")
  _error(place.call("stage1", *flags), *parts)


@pytest.mark.parametrize("content, parts", [
    (None, ["--sft.data=", "No such file"]),
    ("", ["--sft.data=", "no conversation"]),
    ('{"messages": [{"role": "user", "content": "x"}', [":2", "messages"]),
    ('{"messages": [{"role": "robot", "content": "x"}]}', [":2", "robot"]),
    ('{"messages": [{"role": "assistant", "content": 3}]}', [":2", "text"]),
    ('{"messages": []}', [":2", "assistant"]),
])
def test_malformed_conversations_name_file_and_line(tmp_path, content, parts):
  path = tmp_path / "conversations.jsonl"
  if content is not None:
    good = {"messages": [{"role": "user", "content": "a"},
                         {"role": "assistant", "content": "b"}]}
    path.write_text(f"{json.dumps(good)}\n{content}\n" if content else "")
  _error(_run("experiments.sft", f"--workdir={tmp_path}/runs",
              f"--sft.data={path}"), str(path), *parts)


@pytest.mark.parametrize("files, parts", [
    ({}, ["config.json", "no such file"]),
    ({"config.json": "{"}, ["config.json", "not JSON"]),
    ({"config.json": "[]"}, ["config.json"]),
    ({"config.json": '{"model_type": "bert"}'}, ["config.json"]),
])
def test_a_policy_folder_that_is_none(tmp_path, files, parts):
  folder = tmp_path / "policy"
  folder.mkdir()
  for name, text in files.items():
    (folder / name).write_text(text)
  for experiment in ("sft", "evaluate"):
    _error(_run(f"experiments.{experiment}", f"--workdir={tmp_path}/runs",
                f"--policy.path={folder}"), str(folder), *parts)


@pytest.mark.parametrize("name, damage, parts", [
    ("model.safetensors", None, ["model.safetensors", "no such file"]),
    ("model.safetensors", b"\x08\0\0", ["safetensors"]),
    ("tokenizer.json", None, ["tokenizer"]),
    ("tokenizer.json", b"{", ["tokenizer"]),
    ("tokenizer_config.json", b"{", ["tokenizer_config.json"]),
    ("config.json", b'{"model_type": "qwen3"}', ["config.json", "missing"]),
])
def test_a_damaged_policy_folder(finished, tmp_path, name, damage, parts):
  folder = tmp_path / "policy"
  shutil.copytree(finished.run("stage1") / "policy", folder)
  (folder / name).unlink()
  if damage is not None:
    (folder / name).write_bytes(damage)
  _error(_run("experiments.evaluate", f"--workdir={tmp_path}/runs",
              f"--policy.path={folder}"), str(folder), *parts)


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(
    finished, tmp_path):
  place = finished.copy(tmp_path, "sft", "stage1")
  (place.run("stage1") / "summary.json").unlink()
  checkpoint = place.run("stage1") / "checkpoints" / "20"
  for path in (checkpoint / "state").rglob("*"):
    if path.is_file():
      path.write_bytes(path.read_bytes()[:20])
  before = sorted(place.run("stage1").rglob("*"))
  _error(place.call("stage1"), "checkpoint 20",
         str(checkpoint.parent), "delete it")
  assert {p for p in before if "checkpoints" in p.parts} <= set(
      place.run("stage1").rglob("*"))
  shutil.rmtree(checkpoint)
  done = place.call("stage1")
  assert done.returncode == 0, done.stderr
  assert place.policy("stage1") == finished.policy("stage1")
  assert place.metrics("stage1") == finished.metrics("stage1")


def test_a_finished_run_without_its_policy(finished, tmp_path):
  place = finished.copy(tmp_path, "sft")
  shutil.rmtree(place.run("sft") / "policy")
  _error(place.call("stage1"), str(place.run("sft") / "policy"),
         "no such file")


@pytest.mark.parametrize("experiment, before", [
    ("stage1", "sft"), ("stage2", "stage1"), ("stage3", "stage2")])
def test_a_large_preset_tells_what_to_run_first(tmp_path, experiment, before):
  done = _run(f"experiments.{experiment}", "--preset=smollm2", "--seed=3",
              f"--workdir={tmp_path}/runs")
  _only_error(done, f"starts from {before}",
              f"python -m experiments.{before} --preset=smollm2 --seed=3"
              f" --workdir={tmp_path}/runs")


def test_evaluate_before_there_is_a_policy(tmp_path):
  _only_error(_run("experiments.evaluate", f"--workdir={tmp_path}"),
              str(tmp_path), "python -m experiments.stage2", "--policy.path")


@pytest.mark.parametrize("flag, parts", [
    ("tool.urls", ["python -m sandbox_runner"]),
    ("rollout.urls", ["--rollout.urls", "python -m rstar2_jax.engine"]),
])
def test_a_server_that_does_not_answer(
    finished, tmp_path, closed_port, flag, parts):
  place = finished.copy(tmp_path, "sft")
  url = f"http://127.0.0.1:{closed_port}"
  _error(place.call("stage1", f"--{flag}={url}"), url, *parts)
  done = place.call("stage1")  # nothing is in the way of going on without it
  assert done.returncode == 0, done.stderr


def test_a_server_that_is_something_else(finished, tmp_path):
  place = finished.copy(tmp_path, "sft")
  web = subprocess.Popen(
      [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
      cwd=tmp_path, text=True, stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL)
  try:
    port = web.stdout.readline().split()[5]
    for flag in ("tool.urls", "rollout.urls"):
      _error(place.call("stage1", f"--{flag}=http://127.0.0.1:{port}"),
             f"http://127.0.0.1:{port}", "404")
    _error(place.call("stage1", "--tool.urls=no url"), "no url")
  finally:
    web.kill()
    web.communicate()


@pytest.mark.parametrize("workdir", ["file", "file/runs", "/proc/nowhere"])
def test_a_work_directory_that_cannot_be(tmp_path, workdir):
  (tmp_path / "file").write_text("mine")
  path = tmp_path / workdir
  _only_error(_run("experiments.sft", f"--workdir={path}"), str(path))
  assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"),
                    reason="root may write anywhere, and there is no setpriv")
def test_a_work_directory_without_permission(tmp_path):
  (tmp_path / "runs").mkdir(mode=0o555)
  command = ([] if os.geteuid() else [
      "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
  for path in (tmp_path, *tmp_path.parents):
    if path.owner() != "root" or path.stat().st_mode & 0o005 != 0o005:
      path.chmod(path.stat().st_mode | 0o005)
    if path.parent == pathlib.Path("/tmp"):
      break
  done = subprocess.run(
      [*command, sys.executable, "-m", "experiments.sft",
       f"--workdir={tmp_path}/runs"],
      cwd=_ROOT, text=True, capture_output=True, timeout=60, check=False)
  _only_error(done, f"--workdir={tmp_path}/runs", "Permission denied")


def test_a_run_in_use(finished, tmp_path):
  place = finished.copy(tmp_path, "sft")
  lock = place.run("sft") / ".lock"
  holder = subprocess.Popen(
      [sys.executable, "-c",
       "import fcntl, os, sys\n"
       "file = open(sys.argv[1], 'w')\n"
       "fcntl.flock(file, fcntl.LOCK_EX)\n"
       "print(os.getpid(), file=file, flush=True)\n"
       "print(flush=True)\n"
       "sys.stdin.read()\n", str(lock)],
      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  try:
    assert holder.stdout.readline() == "\n"
    _only_error(place.call("sft"), str(place.run("sft")),
                f"process {holder.pid}")
  finally:
    holder.communicate("")


def test_a_port_in_use(finished, used_port):
  policy = finished.run("sft") / "policy"
  for module, *flags in (
      ("sandbox_runner",),
      ("sandbox_runner", "--processes=2"),
      ("rstar2_jax.engine", f"--model_path={policy}")):
    _only_error(_run(module, *flags, f"--port={used_port}"),
                f"127.0.0.1:{used_port}", "in use")


@pytest.mark.parametrize("module, flag", [
    ("sandbox_runner", "--prot=1"), ("sandbox_runner", "--port=x"),
    ("sandbox_runner", "--port=99999"), ("sandbox_runner", "--max_running=0"),
    ("rstar2_jax.engine", "--prot=1"), ("rstar2_jax.engine", "--port=x"),
    ("rstar2_jax.engine", "--port=99999"),
])
def test_wrong_flags_of_servers(tmp_path, module, flag):
  needed = [f"--model_path={tmp_path}"] if "engine" in module else []
  _only_error(_run(module, *needed, flag), flag.partition("=")[0])


def test_a_server_of_a_folder_without_a_policy(tmp_path):
  _only_error(_run("rstar2_jax.engine", f"--model_path={tmp_path}",
                   "--port=0"), str(tmp_path), "config.json")
