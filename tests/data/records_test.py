"""A user's own problems: every defect is named with file and line."""

import json
import sys

import pytest

from rstar2_jax.data import prompts
from rstar2_jax.data import records


def _write(path, *rows):
  path.write_text("\n".join(
      row if isinstance(row, str) else json.dumps(row) for row in rows))
  return path


def test_reads_fields_and_keeps_the_others(tmp_path):
  path = _write(
      tmp_path / "mine.jsonl",
      {"problem": "1 + 1?", "answer": 2},
      "",
      {"problem": "Größe?", "answer": "1,024", "id": "b", "level": 3,
       "source": "book", "page": 7})
  first, second = records.read_jsonl(path)
  assert (first.id, first.problem, first.answer) == ("mine-1", "1 + 1?", "2")
  assert (second.id, second.answer, second.level) == ("b", "1024", 3)
  assert second.source == "book" and second.metadata == {"page": 7}


@pytest.mark.parametrize("answer, expected", [
    (7, "7"), (-7, "-7"), (7.0, "7"), ("  42 ", "42"), ("+3", "3"),
    ("042", "42"), ("-0", "0"), ("1,234,567", "1234567"), ("18.0", "18"),
    (10**30, str(10**30)),
    (7.5, None), ("1/2", None), ("10,24", None), ("x", None), ("", None),
    (None, None), (True, None), ([7], None), (float("nan"), None),
    (float("inf"), None), ("1e3", None), ("٣", None),
])
def test_integers(answer, expected):
  assert records.read_integer(answer) == expected


@pytest.mark.parametrize("bad, message", [
    ("{", r"mine\.jsonl:2: not valid JSON"),
    ("[1]", r"mine\.jsonl:2: expected a JSON object, got list"),
    ({"answer": 1}, r"mine\.jsonl:2: needs a field 'problem'"),
    ({"problem": " ", "answer": 1}, r"mine\.jsonl:2: needs a field 'problem'"),
    ({"problem": "a"}, r"mine\.jsonl:2: needs a field 'answer'"),
    ({"problem": "a", "answer": "1/2"},
     r"mine\.jsonl:2: answer '1/2' is not an integer"),
    ({"problem": "a", "answer": "1", "id": "mine-1"},
     r"mine\.jsonl:2: id 'mine-1' is also that of line 1"),
])
def test_a_bad_line_is_named(tmp_path, bad, message):
  path = _write(tmp_path / "mine.jsonl", {"problem": "a", "answer": 1}, bad)
  with pytest.raises(ValueError, match=message) as error:
    records.read_jsonl(path)
  assert "\n" not in str(error.value)


def test_invalid_utf8_is_named(tmp_path):
  path = tmp_path / "mine.jsonl"
  path.write_bytes(b'{"problem": "\xff", "answer": 1}')
  with pytest.raises(ValueError, match=r"mine\.jsonl:1: not valid JSON"):
    records.read_jsonl(path)


def test_missing_or_empty_file(tmp_path):
  with pytest.raises(ValueError, match="none.jsonl: cannot be read: No such"):
    records.read_jsonl(tmp_path / "none.jsonl")
  with pytest.raises(ValueError, match="holds no problem"):
    records.read_jsonl(_write(tmp_path / "mine.jsonl", ""))


def test_hub_without_the_package_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(ValueError, match="hf:some/name: .*pip install datasets"):
    prompts.open_source("hf:some/name", split="train", seed=0)


def test_unknown_source_is_named():
  with pytest.raises(ValueError, match="unknown data 'gsm8k'"):
    prompts.open_source("gsm8k", split="train", seed=0)


def test_records_come_in_a_new_order_each_epoch(tmp_path):
  path = _write(tmp_path / "mine.jsonl",
                *({"problem": f"p{i}", "answer": i} for i in range(20)))
  source = prompts.open_source(str(path), split="train", seed=3)
  epochs = [[source[20 * e + i].answer for i in range(20)] for e in range(3)]
  assert all(sorted(e, key=int) == [str(i) for i in range(20)] for e in epochs)
  assert epochs[0] != epochs[1] != epochs[2]
  # A fresh source starts anywhere, in any order.
  again = prompts.open_source(str(path), split="train", seed=3)
  assert [again[i].answer for i in (45, 3, 45)] == [
      epochs[2][5], epochs[0][3], epochs[2][5]]
  heldout = prompts.open_source(str(path), split="heldout", seed=3)
  assert [heldout[i].answer for i in range(20)] == [str(i) for i in range(20)]


def test_procedural_source_checks_families_at_once():
  with pytest.raises(ValueError, match="unknown problem family"):
    prompts.open_source("procedural", split="train", seed=0, families=["x"])
  source = prompts.open_source("procedural", split="train", seed=0,
                               families=["gcd"], max_level=1)
  assert source[3].source == "gcd" and source[3].level == 1
