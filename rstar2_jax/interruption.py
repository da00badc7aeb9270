"""Ctrl-C and SIGTERM end a run between two steps, with a checkpoint."""

import signal
import sys
import threading


class Interrupted(Exception):
  """The run was asked to stop and has saved; the message says how to go on."""


class Interruption:
  """While active, the first signal asks; a second one ends at once.

  A jitted update donates its inputs, so a KeyboardInterrupt in the middle
  would leave no state to save. Between two steps there always is one.
  """

  _SIGNALS = (signal.SIGINT, signal.SIGTERM)

  def __init__(self):
    self.requested = False
    self._previous = {}

  def __enter__(self) -> "Interruption":
    if threading.current_thread() is threading.main_thread():
      for number in self._SIGNALS:
        self._previous[number] = signal.signal(number, self._note)
    return self

  def __exit__(self, *unused) -> None:
    self.end()

  def end(self) -> None:
    """All steps are done and saved: from here on a signal ends at once."""
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _note(self, number, unused_frame) -> None:
    if self.requested:
      raise KeyboardInterrupt
    self.requested = True
    print("\nstopping after this step, with a checkpoint (again: stop at once,"
          " from the last checkpoint)", file=sys.stderr, flush=True)
