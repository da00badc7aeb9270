"""Files of all forms, and what is wrong in them."""

import json

import pytest

from rstar2_jax.data import row_files


def test_jsonl_hands_on_bad_lines(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'{"a": 1}\n\n[2]\n{"a": \n\xff\xfe\n{"a": 3}')
  found = list(row_files.read(str(path)))
  assert [(type(f).__name__, f.where) for f in found] == [
      ("Row", f"{path}:1"), ("Reject", f"{path}:3"), ("Reject", f"{path}:4"),
      ("Reject", f"{path}:5"), ("Row", f"{path}:6")]
  assert [f.reason for f in found[1:4]] == ["not an object", "not JSON",
                                            "not JSON"]


def test_json_is_a_list(tmp_path):
  path = tmp_path / "a.json"
  path.write_text(json.dumps([{"a": 1}, 5]))
  row, reject = row_files.read(str(path))
  assert row.values == {"a": 1} and reject.where == f"{path} row 2"
  path.write_text("{}")
  with pytest.raises(ValueError, match="list of objects"):
    list(row_files.read(str(path)))


def test_parquet(tmp_path):
  pytest.importorskip("pyarrow")
  import pyarrow  # pylint: disable=g-import-not-at-top
  from pyarrow import parquet  # pylint: disable=g-import-not-at-top
  path = tmp_path / "a.parquet"
  parquet.write_table(pyarrow.Table.from_pylist([{"a": 1}, {"a": 2}]), path)
  assert [r.values["a"] for r in row_files.read(str(path))] == [1, 2]
  path.write_text("no parquet")
  with pytest.raises(ValueError, match="no readable parquet"):
    list(row_files.read(str(path)))


@pytest.mark.parametrize("name", ["none.jsonl", "a.txt", "a"])
def test_what_is_no_input(name):
  with pytest.raises(ValueError, match=name):
    list(row_files.read(name))
