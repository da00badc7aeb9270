"""docs/metrics.md and what runs write say the same."""

import fnmatch
import pathlib
import re

import pytest

from tests.experiments import tiny

_TABLE = (tiny.ROOT / "docs" / "metrics.md").read_text()
_ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
_ROWS = {name: (unit.strip(), meaning.strip())
         for name, unit, meaning in _ROW.findall(_TABLE)}


@pytest.fixture(scope="module", name="place")
def _place(finished, tmp_path_factory) -> tiny.Place:
  """SFT, and a stage 1 with every optional metric."""
  place = finished.copy(tmp_path_factory.mktemp("metrics"), "sft")
  done = place.call(
      "stage1", "--loss.kl_coef=0.01", "--loss.importance_cap=2",
      "--num_steps=4", "--profile_steps=2:3")
  assert done.returncode == 0, done.stderr
  return place


def _written(place):
  lines = [line for stage in ("sft", "stage1")
           for line in (place.run(stage) / "metrics.jsonl").read_text().split()]
  return set(re.findall(r'"([a-z]+/[^"]+)"', "".join(lines)))


def test_every_metric_is_in_the_table_with_a_unit(place):
  missing = {name for name in _written(place)
             if not any(fnmatch.fnmatch(name, row) for row in _ROWS)}
  assert not missing
  assert all(unit and meaning for unit, meaning in _ROWS.values())


def test_every_row_of_the_table_is_written(place):
  """None is left behind when a metric goes."""
  written = _written(place)
  assert len(_ROWS) > 40
  assert not {row for row in _ROWS if not fnmatch.filter(written, row)}


def test_the_flag_for_profiles_reaches_the_loop(place):
  traces = place.run("stage1").glob("profile/plugins/profile/*/*.trace.json.gz")
  assert [pathlib.Path(t).stat().st_size > 1000 for t in traces] == [True]
