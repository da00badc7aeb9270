"""JAX profiler traces of chosen steps."""

from collections.abc import Generator, Iterable

import jax

from rstar2_jax import progress


def traced(steps: Iterable[int], window: str, folder: str) -> Generator[int]:
  """Yields the steps; while those of the window run, a trace is recorded.

  Close it (`contextlib.closing`): a loop that is left early ends its trace.

  Args:
    steps: step numbers, ascending.
    window: "FIRST:END", steps FIRST to END - 1; empty: no trace.
    folder: where the trace goes, as TensorBoard's profile plugin, XProf and
      Perfetto read it: plugins/profile/TIME/*.
  """
  first, end = parse_window(window)
  is_on = was_on = False
  try:
    for step in steps:
      if first <= step < end and not is_on:
        jax.profiler.start_trace(folder)
        is_on = was_on = True
      with jax.profiler.StepTraceAnnotation("step", step_num=step):
        yield step
      if is_on and step + 1 >= end:
        jax.profiler.stop_trace()
        is_on = False
  finally:
    if is_on:
      jax.profiler.stop_trace()
    if window:
      progress.say(f"profile: {folder}" if was_on else
                   f"--profile_steps={window}: no such step was run")


def parse_window(window: str) -> tuple[int, int]:
  """(3, 5) for "3:5"; (0, 0) for ""."""
  first, _, end = (window or "0:0").partition(":")
  return int(first), int(end)
