"""`experiments.report`: what the page says of one run and of several."""

import json
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

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
    (path / "summary.json").write_text(json.dumps({"history": [
        {"stage": "sft", "pass_at_1": 0.25, "by_source": {"gcd": 0.2}},
        {"stage": "stage2", "pass_at_1": 0.75, "by_source": {"gcd": 0.7}}]}))
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
