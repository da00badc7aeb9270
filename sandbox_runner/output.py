"""What is kept of a stream: its head, its tail, and how long it was."""

from __future__ import annotations


class Capture:
  """Keeps a bounded part of the bytes that it is given."""

  __slots__ = ('total', '_head', '_tail', '_head_bytes', '_tail_bytes')

  def __init__(self, head_bytes: int, tail_bytes: int):
    self.total = 0
    self._head = b''
    self._tail = b''
    self._head_bytes = head_bytes
    self._tail_bytes = tail_bytes

  def add(self, data: bytes) -> None:
    """Takes the next bytes of the stream."""
    self.total += len(data)
    room = self._head_bytes - len(self._head)
    if room > 0:
      self._head += data[:room]
      data = data[room:]
    if data:
      self._tail = (self._tail + data)[-self._tail_bytes:]

  @property
  def truncated(self) -> bool:
    """True if bytes in the middle are not kept."""
    return self.total > len(self._head) + len(self._tail)

  def text(self) -> str:
    """What is kept, decoded; a line in the middle tells what is missing."""
    if not self.truncated:
      return (self._head + self._tail).decode('utf-8', 'replace')
    head = _cut_end(self._head)
    tail = _cut_start(self._tail)
    missing = self.total - len(head) - len(tail)
    return (
        head.decode('utf-8', 'replace')
        + f'\n... {missing} bytes omitted ...\n'
        + tail.decode('utf-8', 'replace')
    )


def _cut_end(data: bytes) -> bytes:
  """Drops a character of which the end is missing."""
  for back in range(1, min(4, len(data)) + 1):
    byte = data[-back]
    if byte < 0x80:
      return data
    if byte >= 0xC0:  # the first byte of a character
      width = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
      return data[:-back] if back < width else data
  return data


def _cut_start(data: bytes) -> bytes:
  """Drops a character of which the start is missing."""
  start = 0
  while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
    start += 1
  return data[start:]
