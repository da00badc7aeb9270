"""What tests of the experiments share."""


import pytest

from tests.experiments import tiny


@pytest.fixture(scope="session", name="first_start")
def _first_start(tmp_path_factory):
  """Stage 1 in an empty work directory, once; not to be written to."""
  place = tiny.Place(tmp_path_factory.mktemp("first"))
  return place, place.call("stage1")


@pytest.fixture(scope="session", name="finished")
def _finished(first_start) -> tiny.Place:
  """SFT and stage 1 without interruption; copy it to go on."""
  place, done = first_start
  assert done.returncode == 0, done.stderr
  return place
