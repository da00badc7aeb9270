"""The processes of a call: what they use, and how they are ended.

In a slot that is PID 1 of its own namespace they are all that /proc shows.
At the other levels they are the slot's descendants: a slot is a subreaper, so
that a process cannot leave by losing its parent.
"""

from __future__ import annotations

import os
import signal

_PAGE_KB = os.sysconf('SC_PAGESIZE') // 1024
_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')


def list_contained() -> list[int]:
  """All processes of this PID namespace but PID 1."""
  return [
      int(name)
      for name in os.listdir('/proc')
      if name.isdigit() and name != '1'
  ]


def list_descendants() -> list[int]:
  """All descendants of this process, nearest first."""
  found: list[int] = []
  pending = [os.getpid()]
  while pending:
    pid = pending.pop()
    for child in _children(pid):
      found.append(child)
      pending.append(child)
  return found


def _children(pid: int) -> list[int]:
  children: list[int] = []
  try:
    for task in os.listdir(f'/proc/{pid}/task'):
      with open(f'/proc/{pid}/task/{task}/children', 'rb') as file:
        children += map(int, file.read().split())
  except OSError:  # ended meanwhile
    pass
  return children


def kill_contained() -> None:
  """Ends every process of this PID namespace. Only for a PID 1."""
  if os.getpid() != 1:  # kill(-1) would reach the whole machine
    raise RuntimeError('not PID 1 of a namespace')
  try:
    os.kill(-1, signal.SIGKILL)
  except ProcessLookupError:
    pass


def kill_descendants() -> None:
  """Ends every descendant of this process."""
  for pid in list_descendants():
    try:
      os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
      pass


def cpu_seconds(pids: list[int]) -> float:
  """CPU time of processes and of the children that they waited for."""
  ticks = 0
  for pid in pids:
    try:
      with open(f'/proc/{pid}/stat', 'rb', buffering=0) as file:
        fields = file.read().rpartition(b')')[2].split()
    except OSError:
      continue
    ticks += sum(map(int, fields[11:15]))
  return ticks * _TICK_S


class MemoryGauge:
  """Estimates what the processes of a call hold beyond the preloaded base.

  A fork shares the preloaded pages; its resident size counts them all. So
  sizes are taken over the base, and when several processes may share pages
  of their own too, the kernel's proportional sizes decide.
  """

  _PROPORTIONAL_EVERY = 4  # measurements; it walks page tables

  def __init__(self):
    self._base_size, self._base_resident = _statm('self') or (0, 0)
    self._count = 0

  def used_kb(self, pids: list[int], limit_kb: int) -> int:
    """Kilobytes held by pids; exact only near and above limit_kb."""
    total = estimate = 0
    for pid in pids:
      sizes = _statm(pid)
      if sizes is None:
        continue
      size, resident = sizes
      total += resident
      # A process that has called exec shares nothing with the base.
      base = self._base_resident if size >= 0.9 * self._base_size else 0
      estimate += max(0, resident - base)
    if len(pids) <= 1 or total <= limit_kb:
      return estimate
    self._count += 1
    if estimate <= limit_kb and self._count % self._PROPORTIONAL_EVERY:
      return estimate
    return sum(map(_proportional_kb, pids))


def _statm(pid: int | str) -> tuple[int, int] | None:
  try:
    with open(f'/proc/{pid}/statm', 'rb', buffering=0) as file:
      size, resident = file.read().split()[:2]
  except (OSError, ValueError):
    return None
  return int(size) * _PAGE_KB, int(resident) * _PAGE_KB


def _proportional_kb(pid: int) -> int:
  try:
    with open(f'/proc/{pid}/smaps_rollup', 'rb', buffering=0) as file:
      for line in file.read().splitlines():
        if line.startswith(b'Pss:'):
          return int(line.split()[1])
  except OSError:  # ended, or hides itself: then its full size counts
    pass
  sizes = _statm(pid)
  return sizes[1] if sizes else 0


def virtual_bytes() -> int:
  """Address space of this process."""
  return (_statm('self') or (0, 0))[0] * 1024
