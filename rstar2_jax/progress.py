"""Progress for people: bars with ETA on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator, Sequence
import os
import sys
import threading
import time

import tqdm

_LINE_EVERY_S = 10.0


def bar(
    steps: range, name: str, status: Callable[[], str] = lambda: ""
) -> Iterator[int]:
  """Yields the steps and shows how far they are.

  Args:
    steps: may start late, after a resume.
    name: what is being done.
    status: text shown behind, asked for after each step.
  """
  with counter(steps.stop, name, start=steps.start) as shown:
    for step in steps:
      yield step
      shown.advance(status())


class counter:  # pylint: disable=invalid-name; reads like a function
  """Counts up to a total; `advance` may be called from any thread."""

  def __init__(self, total: int, name: str, *, start: int = 0):
    self._total, self._name, self._done = total, name, start
    self._start = start
    self._lock = threading.Lock()
    self._is_terminal = _is_terminal()
    self._bar = None
    self._begin_s = time.monotonic()
    self._next_line_s = self._begin_s  # so the first one done is shown

  def __enter__(self) -> "counter":
    if self._is_terminal:
      self._bar = tqdm.tqdm(
          total=self._total, initial=self._start, desc=self._name,
          dynamic_ncols=True, leave=True)
    return self

  def __exit__(self, *unused) -> None:
    if self._bar is not None:
      self._bar.close()

  def advance(self, status: str = "") -> None:
    """One more is done."""
    with self._lock:
      self._done += 1
      if self._bar is not None:
        if status:
          self._bar.set_postfix_str(status, refresh=False)
        self._bar.update()
        return
      now_s = time.monotonic()
      is_last = self._done == self._total
      if is_last or now_s >= self._next_line_s:
        self._next_line_s = now_s + _LINE_EVERY_S
        print(self._line(now_s - self._begin_s, status), file=sys.stderr,
              flush=True)

  def _line(self, elapsed_s: float, status: str) -> str:
    num_here = self._done - self._start
    left_s = elapsed_s / num_here * (self._total - self._done)
    line = (f"{self._name}: {self._done}/{self._total} after {elapsed_s:.0f} s,"
            f" {left_s:.0f} s left")
    return f"{line}; {status}" if status else line


def _is_terminal() -> bool:
  """Whether stderr is one that is wide enough for a bar."""
  try:
    return os.get_terminal_size(sys.stderr.fileno()).columns > 0
  except (OSError, ValueError):  # none, or something that stands in for stderr
    return False


def say(text: str) -> None:
  """Prints a line; a bar that is being drawn stays whole."""
  tqdm.tqdm.write(text, file=sys.stdout)
  sys.stdout.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Aligned columns: the first to the left, the others to the right."""
  widths = [max(len(row[i]) for row in (header, *rows))
            for i in range(len(header))]
  def line(cells):
    return "  ".join(
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()
  return "\n".join([line(header), line(["-" * w for w in widths]),
                    *map(line, rows)])
