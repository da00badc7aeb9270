"""Log lines that cannot hang the server.

A parent that starts a server with a pipe for stderr and never reads it would
otherwise stop the event loop with the first 64 KiB of warnings.
"""

from __future__ import annotations

import logging
import os
import select

from aiohttp import http_exceptions

_STDERR = 2
# A pipe that is ready takes this much without blocking.
_MAX_BYTES = min(4096, select.PIPE_BUF)


class _Handler(logging.Handler):
  """Writes to stderr if it takes the line at once, else drops it."""

  def __init__(self):
    super().__init__()
    self._poll = select.poll()
    self._poll.register(_STDERR, select.POLLOUT)

  def emit(self, record: logging.LogRecord) -> None:
    """Never raises, never blocks."""
    try:
      line = self.format(record).encode('utf-8', 'backslashreplace')
      if len(line) >= _MAX_BYTES:
        half = _MAX_BYTES // 2 - 8
        line = line[:half] + b' ... ' + line[-half:]
      if any(event & select.POLLOUT for _, event in self._poll.poll(0)):
        os.write(_STDERR, line + b'\n')
    except (OSError, ValueError):  # stderr is closed
      pass


def _is_ours(record: logging.LogRecord) -> bool:
  """False for what a client's broken HTTP makes aiohttp complain about."""
  return not record.exc_info or not isinstance(
      record.exc_info[1], http_exceptions.HttpProcessingError
  )


def configure() -> None:
  """Sends this process's log to stderr."""
  handler = _Handler()
  handler.setFormatter(logging.Formatter('sandbox_runner: %(message)s'))
  handler.addFilter(_is_ours)
  logging.basicConfig(handlers=[handler])
