"""`experiments.report`: what the page says of one run and of several."""

import json
import os
import pathlib
import signal
import stat
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from experiments import stage2
from rstar2_jax import flag_tables

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_EVIL = "</td><script>broken = 1</script>"


def _run_folder(path, *, num_steps=12, is_finished=True, **given):
  """A folder as a run leaves it: config, session, metrics, summary."""
  path.mkdir(parents=True)
  values = flag_tables.values(stage2.CONFIGS["laptop"]) | given
  config = {}
  for name, value in values.items():
    group, _, field = name.rpartition(".")
    (config.setdefault(group, {}) if group else config)[field or name] = value
  (path / "config.json").write_text(json.dumps(config))
  (path / "session.json").write_text(json.dumps({
      "command": ["stage2.py", _EVIL], "versions": {"jax": "0.10.2"},
      "wall_s": 61.0}))
  (path / "metrics.jsonl").write_text("".join(
      json.dumps({"step": i, "rollout/reward": 0.5,
                  "rollout/truncated": 0.9 if i > 4 else 0.1,
                  "learner/entropy": None if i == 3 else 0.1}) + "\n"
      for i in range(num_steps)) + '{"step": 99, "roll')  # torn
  if is_finished:
    (path / "summary.json").write_text(json.dumps({
        "stage": "stage2", "steps": num_steps, "wall_s": 61.0, "history": [
            {"stage": "sft", "pass_at_1": 0.25, "by_source": {"gcd": 0.2}},
            {"stage": "stage2", "pass_at_1": 0.75,
             "by_source": {"gcd": 0.7}}]}))
  return path


def _report(*arguments):
  return subprocess.run(
      [sys.executable, "-m", "experiments.report", *map(str, arguments)],
      cwd=_ROOT, text=True, capture_output=True, timeout=120, check=False)


def _rows(page, heading):
  """Text of the table cells below a heading."""
  body = page.split(f"<h2>{heading}</h2>")[1].split("<table>")[1]
  table = ElementTree.fromstring(f"<table>{body.split('</table>')[0]}</table>")
  return [[cell.text or "" for cell in row] for row in table.iter("tr")][1:]


def test_one_run(tmp_path):
  run = _run_folder(tmp_path / "a", **{"roc.enabled": False})
  done = _report(run)
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout == f"report: {run}/report.html\n"
  page = (run / "report.html").read_text()
  assert _rows(page, "Settings that differ from the preset") == [
      ["--roc.enabled", "False", "True"]]
  assert [row[:3] for row in _rows(page, "Held-out results")] == [
      ["a", "sft", "25.0 %"], ["a", "stage2", "75.0 %"]]
  (_, step, text), = _rows(page, "Warnings")
  assert step == "7" and text.startswith("rollout/truncated = 0.58")
  assert "jax 0.10.2" in page and "61 s" in page
  assert "Reward" in page and "KV cache" not in page  # not in the metrics
  assert _EVIL not in page and "&lt;script&gt;" in page


def test_runs_over_each_other(tmp_path):
  runs = [_run_folder(tmp_path / "a"),
          _run_folder(tmp_path / "b", is_finished=False, num_steps=3,
                      **{"roc.keep": 4})]
  done = _report(*runs)
  assert done.stdout == f"report: {tmp_path}/report.html\n"
  page = (tmp_path / "report.html").read_text()
  assert _rows(page, "Settings that differ from the preset") == [
      ["--roc.keep", "8", "4", "8"]]
  chart = page.split(">Reward<")[1].split("</svg>")[0]
  assert ">a: all<" in chart and ">b: all<" in chart


def test_unknown_card_has_no_preset(tmp_path):
  run = _run_folder(tmp_path / "a", stage="my_stage")
  assert _report(run).returncode == 0
  assert "<p>none</p>" in (run / "report.html").read_text()


def test_bad_input_is_one_line(tmp_path):
  for arguments, said in [
      ([], "name a run folder"),
      ([tmp_path / "none"], "none is no run folder (no readable config.json)"),
      ([_run_folder(tmp_path / "a"), f"--output={tmp_path}/none/x.html"],
       "cannot be written")]:
    done = _report(*arguments)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name, content, is_shown", [
    ("config.json", b"[]", False), ("config.json", b"{", False),
    ("session.json", b"[1]", False), ("session.json", b"\xff", False),
    # What is left is shown.
    ("session.json", b'{"versions": ["a"], "command": {}}', True),
    ("summary.json", b"[]", True), ("summary.json", b"{}", True),
    ("summary.json", b'{"history": null}', True),
    ("summary.json", b'{"history": [1]}', True),
    ("metrics.jsonl", b'{"step": 0, "rollout/reward": "high"}\n', True),
    ("metrics.jsonl", b'\xff\xfe\n[1]\n{"step": "x"}\n7\n', True),
])
def test_files_of_another_shape_are_one_line_or_left_out(
    tmp_path, name, content, is_shown):
  run = _run_folder(tmp_path / "run")
  (run / name).write_bytes(content)
  done = _report(run)
  if is_shown:
    assert (done.returncode, done.stderr) == (0, "")
  else:
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and name in done.stderr


def test_only_files_are_replaced(tmp_path):
  run = _run_folder(tmp_path / "run")
  os.mkfifo(tmp_path / "pipe")
  for output in (tmp_path / "pipe", tmp_path):
    done = _report(run, f"--output={output}")
    assert done.returncode == 2
    assert "is there and is no file" in done.stderr
  assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
  (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
  assert _report(run, f"--output={tmp_path}/link.html").returncode == 0
  assert (tmp_path / "link.html").is_symlink()
  assert "Warnings" in (tmp_path / "real.html").read_text()


def test_a_reader_that_stops_is_no_error(tmp_path):
  run = _run_folder(tmp_path / "run")
  done = subprocess.run(
      ["bash", "-c", f'"{sys.executable}" -m experiments.report "{run}" | :;'
       ' echo "${PIPESTATUS[0]}"'], cwd=_ROOT, text=True, capture_output=True,
      check=False)
  assert done.stderr == ""
  assert done.stdout.strip() in ("0", str(128 + signal.SIGPIPE))


def test_folder_names_need_not_be_text(tmp_path):
  run = _run_folder(tmp_path / "run")
  strange = os.fsencode(tmp_path) + b"/a\xffb"
  os.rename(run, strange)
  done = subprocess.run(
      [sys.executable, "-m", "experiments.report", strange,
       "--output", str(tmp_path / "r.html")], cwd=_ROOT, capture_output=True,
      check=False)
  assert (done.returncode, done.stderr) == (0, b"")
  assert "a\ufffdb" in (tmp_path / "r.html").read_text(encoding="utf-8")
