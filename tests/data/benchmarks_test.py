"""Benchmarks by name and file; the shared sets where they lie."""

import json
import os
import pathlib

import pytest

from rstar2_jax.data import benchmarks

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DATA = pathlib.Path(
    os.environ.get("RSTAR2_DATA", _ROOT.parent / "shared/data")) / "unified"


def _write(path, *rows):
  path.write_text("".join(json.dumps(r) + "\n" for r in rows))
  return str(path)


@pytest.mark.parametrize("text,name,place", [
    ("aime24", "aime24", "hf:HuggingFaceH4/aime_2024"),
    ("gsm8k=data/test.jsonl", "gsm8k", "data/test.jsonl"),
    ("data/mine.jsonl", "mine", "data/mine.jsonl"),
    ("x=hf:a/b", "x", "hf:a/b"),
])
def test_names(text, name, place):
  assert benchmarks.parse(text) == (name, place)


@pytest.mark.parametrize("text,message", [
    ("aime99", "unknown benchmark 'aime99'; known are aime24, aime25, hmmt25"),
    ("bfcl_v3", "bfcl-eval"), ("arena_hard", "judge"), ("=x", "NAME=FILE"),
    ("a/b=x", "NAME=FILE"),
])
def test_unknown_names(text, message):
  with pytest.raises(ValueError, match=message):
    benchmarks.parse(text)


def test_answers_are_kept_as_they_are(tmp_path):
  place = _write(
      tmp_path / "b.jsonl", {"problem": "a", "answer": 7},
      {"question": "b", "answer": "so\n#### 1,200"},
      {"problem": "c", "answer": r"$\frac{1}{2}$", "id": 5})
  found = benchmarks.load("b", place)
  assert [(p.id, p.answer, benchmarks.is_integer(p)) for p in found] == [
      ("b/0", "7", True), ("b/1", "1200", True), ("b/5", r"\frac{1}{2}", False)]
  assert {p.source for p in found} == {"b"}


def test_equal_ids_are_told_apart(tmp_path):
  place = _write(tmp_path / "b.jsonl", *[
      {"id": "1", "problem": p, "answer": 1} for p in "ab"])
  assert [p.id for p in benchmarks.load("b", place)] == ["b/0", "b/1"]


def test_multiple_choice(tmp_path):
  row = {"Question": "Which?", "Correct Answer": " yes ",
         "Incorrect Answer 1": "no", "Incorrect Answer 2": "maybe",
         "Incorrect Answer 3": "never"}
  place = _write(tmp_path / "g.jsonl", *[row] * 20)
  found = benchmarks.load("g", place)
  for p in found:
    assert f"({p.answer}) yes" in p.problem
    assert all(f" {text}" in p.problem for text in ("no", "maybe", "never"))
  assert len({p.answer for p in found}) > 1
  assert benchmarks.load("g", place) == found


def test_a_bad_row_spoils_the_set(tmp_path):
  place = _write(tmp_path / "b.jsonl", {"problem": "a", "answer": 7},
                 {"problem": "b"})
  with pytest.raises(ValueError, match=r"b\.jsonl:2: no answer.*read whole"):
    benchmarks.load("b", place)
  (tmp_path / "e.jsonl").write_text("")
  with pytest.raises(ValueError, match="holds no problem"):
    benchmarks.load("e", str(tmp_path / "e.jsonl"))


@pytest.mark.skipif(not _DATA.is_dir(), reason=f"{_DATA} is absent")
@pytest.mark.parametrize("name,problems,integers", [
    ("aime24", 30, 30), ("aime25", 30, 30), ("hmmt_feb_2025", 30, 14),
    ("math500", 500, 313), ("gsm8k_test", 1319, 1319)])
def test_shared_sets(name, problems, integers):
  found = benchmarks.load(name, str(_DATA / f"eval_{name}.jsonl"))
  assert len(found) == problems
  assert sum(map(benchmarks.is_integer, found)) == integers
