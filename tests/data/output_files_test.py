"""Files that are replaced as a whole."""

import json

import pytest

from rstar2_jax.data import output_files


def test_values_are_read_back(tmp_path):
  output_files.write_json(str(tmp_path / "a.json"), {"a": [1, None]})
  assert json.loads((tmp_path / "a.json").read_text()) == {"a": [1, None]}
  rows = [{"a": "é"}, {"b": "x\ny"}]
  output_files.write_jsonl(str(tmp_path / "a.jsonl"), iter(rows))
  text = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
  assert [json.loads(line) for line in text.splitlines()] == rows
  assert "é" in text


def test_the_old_file_stays_where_the_new_one_fails(tmp_path):
  path = tmp_path / "a.txt"
  output_files.write(str(path), "old", is_durable=True)
  (tmp_path / "a.txt.new").mkdir()
  with pytest.raises(OSError):
    output_files.write(str(path), "new")
  assert path.read_text() == "old"
