"""Scalars as TensorBoard events, written where the caller can see it fail."""

from collections.abc import Mapping
import os
import time

from tensorboardX import event_file_writer
from tensorboardX import summary
from tensorboardX.proto import event_pb2

_FLUSH_EVERY_S = 10.0


class Events:
  """One event file of a session.

  tensorboardX's own SummaryWriter writes from a thread, so a full disk would
  show as a hang or as a traceback at exit, and never to who wrote.
  """

  def __init__(self, folder: str, *, first_step: int):
    """Starts a file.

    Args:
      folder: where event files are.
      first_step: what earlier files hold from here on does not count.

    Raises:
      OSError: it cannot be written.
    """
    self._writer = event_file_writer.EventsWriter(
        os.path.join(folder, "events"), f".{time.time_ns()}")
    self._next_flush_s = 0.0
    self._write(event_pb2.Event(
        step=first_step, session_log=event_pb2.SessionLog(
            status=event_pb2.SessionLog.START)))

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Adds the scalars of one step.

    Args:
      step: 0-based.
      scalars: numbers by name; NaN shows as a gap.

    Raises:
      OSError: they cannot be written.
    """
    self._write(event_pb2.Event(step=step, summary=summary.Summary(value=[
        summary.Summary.Value(tag=name, simple_value=value)
        for name, value in scalars.items()])))
    if time.monotonic() >= self._next_flush_s:
      self._writer.flush()
      self._next_flush_s = time.monotonic() + _FLUSH_EVERY_S

  def close(self) -> None:
    """Ends the file."""
    self._writer.close()

  def _write(self, event: event_pb2.Event) -> None:
    event.wall_time = time.time()
    self._writer.write_event(event)
