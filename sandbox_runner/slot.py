"""A slot: the process that runs one call after another, each in a fork.

1. A spare is forked ahead of need. It takes leave of privileges and waits for
   a call on the slot's socket.
2. The spare reads the call, tells the slot its limits, and runs the program.
3. The slot waits for its end, a limit, or a cancellation; then it kills and
   reaps all that the call left, and reports what it observed.
4. The private directories are renewed if the call touched them.

The slot is trusted and never sees the text of a program.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import resource
import select
import signal
import socket
import time
from typing import Protocol

from sandbox_runner import cells
from sandbox_runner import harness
from sandbox_runner import processes
from sandbox_runner import wire

_SOCKET_FD = 3
_PHASE_FD = 4
_FIRST_FREE_FD = 5
_OPEN_FILES = 256
# First look at a call's processes, and the time between looks. Most calls end
# before the first; memory can grow by some 100 MB between two.
_FIRST_LOOK_S = 0.02
_LOOK_EVERY_S = 0.025
# A session has no end of its own and is mostly idle.
_SESSION_LOOK_EVERY_S = 0.2


class Containment(Protocol):
  """What differs between isolation levels."""

  def enter_call(self) -> None:
    """In a spare: gives up privileges, before a call is read."""

  def list_processes(self) -> list[int]:
    """In the slot: the processes of the call."""

  def kill_all(self) -> None:
    """In the slot: ends them."""

  def renew(self) -> None:
    """In the slot: makes the private directories new again."""


class _SpareDied(Exception):
  """A spare ended before it had read a call."""


class Slot:
  """Serves calls from a socket until it closes."""

  def __init__(
      self,
      link: socket.socket,
      output_fds: tuple[int, int],
      shared: mmap.mmap,
      containment: Containment,
  ):
    self._link = link
    self._shared = shared
    self._containment = containment
    null_fd = os.open('/dev/null', os.O_RDONLY)
    for number, fd in enumerate((null_fd, *output_fds)):
      os.dup2(fd, number)
    for fd in (null_fd, *output_fds):
      os.close(fd)
    # Here rather than in each fork, to which they cost 80 page faults.
    harness.open_streams()
    self._gauge = processes.MemoryGauge()
    self._base_bytes = processes.virtual_bytes()
    self._reaped: dict[int, tuple[int, float, int]] = {}

  def serve(self) -> None:
    """Returns when the supervisor has closed the socket."""
    self._link.send(wire.READY)
    while True:
      pid, phase_fd = self._fork_spare()
      try:
        limits = self._wait_for_call(pid, phase_fd)
        if limits is None:
          return
        result = self._watch(pid, phase_fd, limits)
      except _SpareDied:
        self._end_call()
        continue
      finally:
        os.close(phase_fd)
      try:
        self._link.send(result.pack())
      except OSError:
        return
      self._containment.renew()

  def _fork_spare(self) -> tuple[int, int]:
    phase_read, phase_write = os.pipe()
    pid = os.fork()
    if pid == 0:
      _run_spare(self, phase_write)  # does not return
    os.close(phase_write)
    return pid, phase_read

  def _wait_for_call(
      self, pid: int, phase_fd: int
  ) -> tuple[int, float, float, int] | None:
    """The limits of the call that the spare has read; None at the end."""
    poll = select.poll()
    poll.register(phase_fd, select.POLLIN)
    poll.register(self._link, 0)  # only its closing
    poll.poll()
    record = os.read(phase_fd, wire.LIMITS_BYTES)
    if len(record) == wire.LIMITS_BYTES:
      return wire.unpack_limits(record)
    if _is_closed(self._link):
      return None
    raise _SpareDied(pid)

  def _watch(
      self, pid: int, phase_fd: int, limits: tuple[int, float, float, int]
  ) -> wire.Result:
    call_id, wall_s, cpu_s, memory_bytes = limits
    start = time.monotonic()
    self._reaped.clear()
    reason = self._wait_for_end(pid, limits, start)
    wall = time.monotonic() - start
    self._end_call()
    status, _, _ = self._reaped.get(pid, (0, 0.0, 0))
    phase = _last_phase(phase_fd)
    cpu = sum(cpu for _, cpu, _ in self._reaped.values())
    rss = max((rss for _, _, rss in self._reaped.values()), default=0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
      reason = reason or wire.REASON_CPU
    return wire.Result(call_id, phase, status, reason, wall, cpu, rss)

  def _wait_for_end(
      self, pid: int, limits: tuple[int, float, float, int], start: float
  ) -> int:
    """Waits for the program's end or a cause to end it; which one."""
    call_id, wall_s, cpu_s, memory_bytes = limits
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(self._link, select.POLLIN)
    look = start + _FIRST_LOOK_S
    look_every = (
        _LOOK_EVERY_S if wall_s < wire.UNLIMITED_S else _SESSION_LOOK_EVERY_S
    )
    try:
      while True:
        now = time.monotonic()
        wait = min(start + wall_s, look) - now
        for fd, _ in poll.poll(max(0, math.ceil(wait * 1000))):
          if fd == pidfd:
            return wire.REASON_NONE
          if self._is_cancelled(call_id):
            return wire.REASON_CANCEL
        now = time.monotonic()
        if now >= start + wall_s:
          return wire.REASON_WALL
        if now >= look:
          reason = self._look(pid, cpu_s, memory_bytes)
          if reason:
            return reason
          look = time.monotonic() + look_every
    finally:
      os.close(pidfd)

  def _is_cancelled(self, call_id: int) -> bool:
    packet = self._link.recv(64)
    return not packet or wire.cancelled_id(packet) == call_id

  def _look(self, pid: int, cpu_s: float, memory_bytes: int) -> int:
    """Measures the call's processes; the limit they exceed, or none."""
    self._reap(os.WNOHANG, keep=pid)
    pids = self._containment.list_processes()
    used_cpu = processes.cpu_seconds(pids)
    used_cpu += sum(cpu for _, cpu, _ in self._reaped.values())
    if used_cpu >= cpu_s:
      return wire.REASON_CPU
    limit_kb = memory_bytes // 1024
    if self._gauge.used_kb(pids, limit_kb) > limit_kb:
      return wire.REASON_MEMORY
    return wire.REASON_NONE

  def _end_call(self) -> None:
    """Kills and reaps until nothing is left."""
    while True:
      self._containment.kill_all()
      if not self._reap(0):
        return

  def _reap(self, options: int, keep: int = 0) -> bool:
    """Reaps one child, or with WNOHANG all that have ended. False if none.

    A process to keep is left for the poll on its pidfd to notice.
    """
    while True:
      try:
        found = os.waitid(
            os.P_ALL, 0, os.WEXITED | os.WNOWAIT | options
        )
        if found is None or found.si_pid in (0, keep):
          return True
        pid, status, usage = os.wait4(found.si_pid, 0)
      except ChildProcessError:
        return False
      cpu = usage.ru_utime + usage.ru_stime
      self._reaped[pid] = (status, cpu, usage.ru_maxrss)
      if not options:
        return True


def _run_spare(slot: Slot, phase_write: int) -> None:
  """The life of a spare and of the call it becomes. Never returns."""
  code = 70
  try:
    os.setsid()
    _arrange_descriptors(slot, phase_write)
    slot._containment.enter_call()
    code = _run_call(slot)
  finally:
    os._exit(code)


def _arrange_descriptors(slot: Slot, phase_write: int) -> None:
  # Copies above all numbers used, then down to the fixed ones.
  wanted = (slot._link.fileno(), phase_write)
  copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in wanted]
  for number, copy in enumerate(copies, _SOCKET_FD):
    os.dup2(copy, number)
  os.closerange(_FIRST_FREE_FD, _OPEN_FILES)
  for number in (1, 2):
    # An earlier call may have made the pipes, which it shared, non-blocking.
    fcntl.fcntl(number, fcntl.F_SETFL, 0)


def _run_call(slot: Slot) -> int:
  call, source, fds = _receive_call()
  os.write(_PHASE_FD, wire.pack_limits(call))
  if call.stdin_fd:
    os.dup2(fds[-1], 0)
    os.close(fds.pop())
  _set_limits(slot._base_bytes, call)
  if call.code_fd:
    with open(fds.pop(), 'rb') as file:
      source = file.read()
  if call.session:
    os.set_inheritable(fds[0], False)
    os.close(_SOCKET_FD)
    harness.reseed(call.seed)
    os.write(_PHASE_FD, wire.COMPILED)
    os.close(_PHASE_FD)
    return cells.serve(socket.socket(fileno=fds[0]), slot._shared)
  os.close(_SOCKET_FD)
  program = harness.compile_program(source)
  os.write(_PHASE_FD, wire.COMPILED if program else wire.NOT_COMPILED)
  os.close(_PHASE_FD)
  if program is None:
    return 1
  harness.reseed(call.seed)
  return harness.run_program(program, slot._shared)


def _receive_call() -> tuple[wire.Call, bytes, list[int]]:
  with socket.socket(fileno=os.dup(_SOCKET_FD)) as link:
    while True:
      packet, fds, _, _ = socket.recv_fds(link, wire.MAX_PACKET_BYTES, 4)
      if not packet:
        os._exit(0)
      if packet[:1] == wire.CALL:  # else a cancellation that came too late
        return *wire.Call.unpack(packet), list(fds)


def _set_limits(base_bytes: int, call: wire.Call) -> None:
  space = base_bytes + call.memory_bytes
  resource.setrlimit(resource.RLIMIT_AS, (space, space))
  if not call.session:
    # The slot's looks are finer; this holds when the slot cannot look.
    seconds = math.ceil(call.cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _last_phase(phase_fd: int) -> bytes:
  """What the process said last before it could run user code."""
  os.set_blocking(phase_fd, False)
  try:
    return os.read(phase_fd, 1) or wire.STARTED
  except BlockingIOError:
    return wire.STARTED


def _is_closed(link: socket.socket) -> bool:
  poll = select.poll()
  poll.register(link, 0)
  return any(event & select.POLLHUP for _, event in poll.poll(0))
