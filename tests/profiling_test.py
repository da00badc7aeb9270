"""Which steps are traced, and that a trace is there however the loop ends."""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from rstar2_jax import profiling


def _events(folder):
  """Names of what a trace shows, and the steps it names."""
  (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
  events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
  return {e.get("name", "") for e in events}, {
      int(e["args"]["step_num"]) for e in events
      if e.get("name") == "step" and "step_num" in e.get("args", {})}


def _work(step):
  with jax.profiler.TraceAnnotation(f"work-{step}"):
    jnp.ones(8).sum().block_until_ready()


@pytest.mark.parametrize("first, window, traced", [
    (0, "1:3", {1, 2}), (2, "1:3", {2}), (0, "4:9", {4})])
def test_steps_of_the_window_are_traced(tmp_path, first, window, traced):
  """Also after a resume within it, and where the run ends before it does."""
  done = []
  for step in profiling.traced(range(first, 5), window, str(tmp_path)):
    _work(step)
    done.append(step)
  assert done == [*range(first, 5)]
  names, steps = _events(tmp_path)
  assert steps == traced
  assert {n for n in names if n.startswith("work-")} == {
      f"work-{s}" for s in traced}


@pytest.mark.parametrize("window", ["", "7:9"])
def test_nothing_is_written_without_a_step_in_the_window(tmp_path, window):
  assert [*profiling.traced(range(3), window, str(tmp_path))] == [0, 1, 2]
  assert not any(tmp_path.iterdir())


def test_a_loop_left_early_ends_its_trace(tmp_path):
  steps = profiling.traced(range(9), "1:8", str(tmp_path))
  for step in steps:
    _work(step)
    if step == 2:
      break
  steps.close()
  assert _events(tmp_path)[1] == {1, 2}
  # Another can start.
  assert [*profiling.traced(range(1), "0:1", str(tmp_path / "next"))] == [0]
  assert _events(tmp_path / "next")[1] == {0}
