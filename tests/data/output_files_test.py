"""Files that are replaced as a whole."""

import json
import os

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
  (tmp_path / f"a.txt.{os.getpid()}.new").mkdir()
  with pytest.raises(OSError):
    output_files.write(str(path), "new")
  assert path.read_text() == "old"


def test_devices_stay_and_links_are_followed(tmp_path):
  with pytest.raises(OSError, match="is there and is no file"):
    output_files.write("/dev/null", "text")
  assert not os.path.isfile("/dev/null")
  (tmp_path / "link").symlink_to(tmp_path / "real")
  (tmp_path / "real.new").write_text("another's")
  output_files.write(str(tmp_path / "link"), "text")
  assert (tmp_path / "link").is_symlink()
  assert (tmp_path / "real").read_text() == "text"
  assert (tmp_path / "real.new").read_text() == "another's"
