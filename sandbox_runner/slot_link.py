"""The supervisor's end of one slot: sends calls, collects what comes back.

The pipes for stdout and stderr live as long as the slot. When a slot reports a
result, every process that could write to them is dead, so what they hold then
is the rest of that call's output and nothing else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import os
import signal
import socket

from sandbox_runner import output
from sandbox_runner import wire

_READ_BYTES = 1 << 18
_SEALS = (
    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
    | fcntl.F_SEAL_SEAL
)


class SlotDied(Exception):
  """The slot ended before it reported a result."""


@dataclasses.dataclass(frozen=True)
class OutputLimits:
  """Bytes per stream: kept at the start and at the end, and in all."""

  head_bytes: int = 48 << 10
  tail_bytes: int = 16 << 10
  max_bytes: int = 4 << 20


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Everything known about a call that ended."""

  result: wire.Result
  stdout: output.Capture
  stderr: output.Capture
  value: str | None
  memory_error: bool
  output_exceeded: bool


class SlotLink:
  """One slot. Runs one call at a time."""

  def __init__(
      self,
      loop: asyncio.AbstractEventLoop,
      tier: str,
      limits: OutputLimits,
      grace_s: float,
  ):
    self.tier = tier
    self.num_calls = 0
    self.dead = False
    self.ready: asyncio.Future[None] = loop.create_future()
    self._loop = loop
    self._limits = limits
    self._grace_s = grace_s
    self._pidfd = -1
    self._waiter: asyncio.Future[Outcome] | None = None
    self._exceeded = False
    self._open()

  def _open(self) -> None:
    self._link, self._slot_end = socket.socketpair(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self._link.setblocking(False)
    pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    self._reads = [read for read, _ in pipes]
    self._writes = [write for _, write in pipes]
    for fd in self._reads:
      os.set_blocking(fd, False)
    self._value_fd = os.memfd_create('value', os.MFD_CLOEXEC)
    os.ftruncate(self._value_fd, wire.VALUE_BYTES)
    self._reset_captures()
    self._loop.add_reader(self._link.fileno(), self._on_packet)
    for fd, capture_index in zip(self._reads, (0, 1), strict=True):
      self._loop.add_reader(fd, self._on_output, fd, capture_index)

  def hand_over(self, zygote: socket.socket) -> None:
    """Gives the slot's ends to a zygote, which forks the slot."""
    fds = [self._slot_end.fileno(), *self._writes, self._value_fd]
    socket.send_fds(zygote, [wire.SPAWN], fds)
    self._slot_end.close()
    for fd in self._writes:
      os.close(fd)
    self._writes = []

  @property
  def pidfd(self) -> int:
    """Descriptor of the slot's process; -1 before it is known."""
    return self._pidfd

  async def run(
      self, call: wire.Call, source: bytes, stdin: bytes
  ) -> Outcome:
    """Runs a call to its end.

    Cancelling this coroutine ends the call; the slot stays usable.

    Raises:
      SlotDied: the slot ended or stopped answering; it must be thrown away.
    """
    self.begin(call, source, stdin)
    backstop = self._loop.call_later(
        call.wall_s + self._grace_s, self.kill
    )
    try:
      return await self.finished(call.call_id)
    finally:
      backstop.cancel()

  def begin(
      self, call: wire.Call, source: bytes, stdin: bytes, fds: tuple = ()
  ) -> None:
    """Sends a call. Raises SlotDied."""
    self._reset_captures()
    self._waiter = self._loop.create_future()
    sent = list(fds)
    made: list[int] = []
    if len(source) > wire.MAX_INLINE_BYTES:
      made.append(sealed_file(source))
      call = dataclasses.replace(call, code_fd=True)
      source = b''
    if stdin:
      made.append(sealed_file(stdin))
      call = dataclasses.replace(call, stdin_fd=True)
    try:
      packet = [call.pack(), source]
      if sent or made:
        socket.send_fds(self._link, packet, sent + made)
      else:
        self._link.send(b''.join(packet))
    except OSError as e:
      self._die()
      raise SlotDied(str(e)) from None
    finally:
      for fd in made:
        os.close(fd)
    self.num_calls += 1

  async def finished(self, call_id: int) -> Outcome:
    """Waits for the end of the call that was begun. Raises SlotDied."""
    waiter = self._waiter
    assert waiter is not None  # `begin` made it
    try:
      return await asyncio.shield(waiter)
    except asyncio.CancelledError:
      self.cancel(call_id)
      # The slot answers within moments; it must be free before it is reused.
      await asyncio.wait([waiter], timeout=self._grace_s)
      if not waiter.done():
        self.kill()
      raise

  def cancel(self, call_id: int) -> None:
    """Asks the slot to end the call now."""
    try:
      self._link.send(wire.pack_cancel(call_id))
    except OSError:
      self._die()

  def kill(self) -> None:
    """Ends the slot and, with it, everything in it."""
    if self._pidfd >= 0:
      try:
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
      except ProcessLookupError:
        pass
    self._die()

  def has_exceeded(self) -> bool:
    """Whether the call has written more than a stream may hold."""
    self._read_all()
    return any(
        capture.total > self._limits.max_bytes for capture in self._captures
    )

  def drain(self) -> tuple[output.Capture, output.Capture]:
    """Takes what the pipes hold, and starts new captures."""
    self._read_all()
    captures = self._captures
    self._reset_captures()
    return captures

  def _reset_captures(self) -> None:
    head, tail = self._limits.head_bytes, self._limits.tail_bytes
    self._captures = output.Capture(head, tail), output.Capture(head, tail)
    self._exceeded = False

  def _outcome(self, result: wire.Result) -> Outcome:
    exceeded = self._exceeded
    stdout, stderr = self.drain()
    exceeded = exceeded or max(stdout.total, stderr.total) > (
        self._limits.max_bytes
    )
    value, flags = self._take_value()
    return Outcome(
        result, stdout, stderr, value,
        bool(flags & wire.FLAG_MEMORY_ERROR), exceeded,
    )

  def _take_value(self) -> tuple[str | None, int]:
    if os.fstat(self._value_fd).st_blocks == 0:
      return None, 0
    memory = os.pread(self._value_fd, wire.VALUE_BYTES, 0)
    # New pages, so that the next call finds nothing of this one.
    os.ftruncate(self._value_fd, 0)
    os.ftruncate(self._value_fd, wire.VALUE_BYTES)
    size, flags = wire.VALUE_HEADER.unpack_from(memory)
    if not flags & wire.FLAG_HAS_VALUE:
      return None, flags
    start = wire.VALUE_HEADER.size
    return memory[start:start + size].decode('utf-8', 'replace'), flags

  def _on_output(self, fd: int, index: int) -> None:
    self._read(fd, index)
    if self._captures[index].total > self._limits.max_bytes:
      if not self._exceeded and self._waiter is not None:
        self._exceeded = True
        self.cancel(self.num_calls - 1)

  def _read_all(self) -> None:
    for index, fd in enumerate(self._reads):
      while self._read(fd, index):
        pass

  def _read(self, fd: int, index: int) -> bool:
    try:
      data = os.read(fd, _READ_BYTES)
    except BlockingIOError:
      return False
    if not data:  # the slot is gone; its socket tells
      self._loop.remove_reader(fd)
      return False
    self._captures[index].add(data)
    return True

  def _on_packet(self) -> None:
    try:
      packet, fds, _, _ = socket.recv_fds(self._link, 4096, 1)
    except BlockingIOError:
      return
    except OSError:
      packet, fds = b'', []
    kind = packet[:1]
    if kind == wire.RESULT:
      if self._waiter is not None and not self._waiter.done():
        # Collected now: when the waiter wakes, the slot may have died.
        self._waiter.set_result(self._outcome(wire.Result.unpack(packet)))
    elif kind == wire.KEEPER:
      self._pidfd = fds[0]
    elif kind == wire.READY:
      if not self.ready.done():
        self.ready.set_result(None)
    else:
      self._die(packet[1:].decode('utf-8', 'replace'))

  def _die(self, why: str = '') -> None:
    if self.dead:
      return
    self.dead = True
    error = SlotDied(why or 'the slot ended unexpectedly')
    for future in (self.ready, self._waiter):
      if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # not every future is awaited
    self.close()

  def close(self) -> None:
    """Closes every descriptor; the slot ends when it notices."""
    self.dead = True
    for fd in (self._link.fileno(), *self._reads):
      if fd >= 0:
        self._loop.remove_reader(fd)
    self._link.close()
    self._slot_end.close()
    for fd in (*self._reads, *self._writes, self._value_fd):
      os.close(fd)
    self._reads, self._writes = [], []
    if self._pidfd >= 0:
      os.close(self._pidfd)
    self._pidfd = self._value_fd = -1


def sealed_file(data: bytes) -> int:
  """A sealed file in memory: its reader can neither change nor grow it."""
  fd = os.memfd_create('input', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
  view = memoryview(data)
  while view:
    view = view[os.write(fd, view):]
  os.lseek(fd, 0, os.SEEK_SET)
  fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
  return fd
