"""Preparing RL data as a user does it; the real sets where they lie."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DATA = pathlib.Path(
    os.environ.get("RSTAR2_DATA", _ROOT.parent / "shared/data"))


def _call(*flags):
  return subprocess.run(
      [sys.executable, "-m", "experiments.prepare_rl", *flags], cwd=_ROOT,
      text=True, capture_output=True, timeout=120, check=False)


def _write(path, *rows):
  path.write_text("".join(
      r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
  return path


def _read(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(name="files")
def _files(tmp_path):
  shared = "a train leaves the town at nine and runs ten miles an hour"
  train = _write(
      tmp_path / "train.jsonl",
      {"problem": "What is 2+2?", "answer": "4"}, "{broken\n",
      {"question": "How many?", "answer": "so\n#### 1,200"},
      {"problem": "what is 2 + 2", "answer": 4},
      {"problem": "Half?", "answer": "1/2"},
      {"problem": f"Today {shared}. When?", "answer": 11})
  evals = _write(tmp_path / "eval.jsonl",
                 {"problem": f"If {shared}, where is it?", "answer": "x"})
  return train, evals


def test_problems_rejects_and_report(files, tmp_path):
  train, evals = files
  out = tmp_path / "out"
  done = _call(f"--inputs={train}", f"--evals={evals}", f"--out={out}")
  assert done.returncode == 0, done.stderr
  assert _read(out / "problems.jsonl") == [
      {"id": "problem-000000", "problem": "What is 2+2?", "answer": "4",
       "source": "train.jsonl"},
      {"id": "problem-000001", "problem": "How many?", "answer": "1200",
       "source": "train.jsonl"}]
  assert [(r["where"].rpartition(":")[2], r["reason"])
          for r in _read(out / "rejects.jsonl")] == [
              ("2", "not JSON"),
              ("5", "answer is no integer of bounded length"),
              ("4", "duplicate"), ("6", "overlaps an evaluation set")]
  report = json.loads((out / "report.json").read_text())
  assert report["left"] == {
      "rows read": 6, "with problem and answer": 5, "integer answer": 4,
      "not too long": 4, "once": 3, "not in an evaluation set": 2}


def test_without_evaluation_sets_it_says_so(files, tmp_path):
  done = _call(f"--inputs={files[0]}", f"--out={tmp_path / 'out'}")
  assert done.returncode == 0 and "no --evals" in done.stdout


def test_bad_input_is_one_line(files, tmp_path):
  train, _ = files
  bad = _write(tmp_path / "bad.jsonl", {"x": 1})
  for flags, said in (
      ([], "--inputs"), (["--inputs=none.jsonl"], "none.jsonl"),
      ([f"--inputs={bad}", f"--out={tmp_path / 'o'}"], "no problem is left"),
      ([f"--inputs={train}", f"--evals={bad}"], "read whole"),
      (["--inptus=a"], "did you mean --inputs"),
      ([f"--inputs={train}", "--max_digits=0"], "--max_digits=0")):
    done = _call(*flags)
    assert done.returncode == 2 and said in done.stderr, flags
    assert done.stderr.count("\n") == 1, done.stderr


def test_real_sets_lose_what_math500_has(tmp_path):
  if not _DATA.is_dir():
    pytest.skip("no data sets here: set RSTAR2_DATA to their folder")
  out = tmp_path / "out"
  done = _call(f"--inputs={_DATA}/aime_1983_2023/train.jsonl",
               f"--evals={_DATA}/math500/test.jsonl", f"--out={out}")
  assert done.returncode == 0, done.stderr
  shares = [int(r["detail"].partition("%")[0])
            for r in _read(out / "rejects.jsonl") if "overlaps" in r["reason"]]
  # Six rows of this set stand in MATH-500 word for word, four nearly.
  assert sum(s == 100 for s in shares) >= 6
  assert sum(s >= 50 for s in shares) >= 8
