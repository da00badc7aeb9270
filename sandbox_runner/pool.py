"""Zygotes and slots of one server: started on demand, replaced at death."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from sandbox_runner import rootfs
from sandbox_runner import slot_link
from sandbox_runner import wire

_BOOT = (
    'import sys; sys.path.insert(0, sys.argv[1]); '
    'from sandbox_runner import zygote; zygote.main(sys.argv[2])'
)
_START_TIMEOUT_S = 120.0
_ENVIRONMENT = {
    'PATH': '/usr/local/bin:/usr/bin:/bin',
    'HOME': '/tmp',
    'TMPDIR': '/tmp',
    'LANG': 'C.UTF-8',
    'TZ': 'UTC',
    'PYTHONHASHSEED': '0',
    # One thread: zygotes must not have more, and cores are shared.
    'OPENBLAS_NUM_THREADS': '1',
    'OMP_NUM_THREADS': '1',
    'MKL_NUM_THREADS': '1',
}


class Unavailable(Exception):
  """No slot can be had; the text says why."""


class Zygote:
  """The supervisor's end of one zygote process."""

  def __init__(self, tier: str, isolation: str, workspace: str):
    self._link, theirs = socket.socketpair(
        socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self._link.setblocking(False)
    interpreter = rootfs.current_interpreter()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    options = dict(
        fd=theirs.fileno(), parent=os.getpid(), tier=tier,
        isolation=isolation, workspace=workspace, source_root=root,
        prefix=interpreter.prefix, base_prefix=interpreter.base_prefix,
        site_packages=interpreter.site_packages,
    )
    # -E would drop the hash seed; the environment is our own anyway.
    self.process = subprocess.Popen(
        [sys.executable, '-s', '-S', '-P', '-c', _BOOT, root,
         json.dumps(options)],
        env=_ENVIRONMENT, pass_fds=[theirs.fileno()], cwd='/',
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )
    theirs.close()

  async def wait_ready(self) -> None:
    """Raises Unavailable if it cannot start."""
    loop = asyncio.get_running_loop()
    try:
      async with asyncio.timeout(_START_TIMEOUT_S):
        packet = await loop.sock_recv(self._link, 4096)
    except TimeoutError:
      self.close()
      raise Unavailable('a zygote did not start in time') from None
    except OSError as e:
      packet = wire.FAILED + str(e).encode()
    if packet != wire.ZYGOTE_READY:
      self.close()
      why = packet[1:].decode('utf-8', 'replace')
      raise Unavailable(why or 'a zygote ended while it started')

  @property
  def alive(self) -> bool:
    """False once the process has ended."""
    return self.process.poll() is None

  def spawn(self, link: slot_link.SlotLink) -> None:
    """Asks for a slot. Raises Unavailable."""
    try:
      link.hand_over(self._link)
    except OSError as e:
      link.close()
      raise Unavailable(f'zygote: {e}') from None

  def close(self) -> None:
    """Ends the process and all its slots."""
    self._link.close()
    self.process.kill()
    self.process.wait()


class Pool:
  """Hands out slots by tier."""

  def __init__(
      self,
      *,
      isolation: str,
      workspace: str,
      output_limits: slot_link.OutputLimits,
      max_calls_per_slot: int = 1000,
      grace_s: float = 1.0,
  ):
    self.isolation = isolation
    self.num_slots_started = 0
    self.num_slots_died = 0
    self._workspace = workspace
    self._limits = output_limits
    self._max_calls = max_calls_per_slot
    self._grace_s = grace_s
    self._zygotes: dict[str, asyncio.Future[Zygote]] = {}
    self._idle: dict[str, list[slot_link.SlotLink]] = {}
    self._links: set[slot_link.SlotLink] = set()

  async def acquire(self, tier: str) -> slot_link.SlotLink:
    """A slot of the tier, new if none is idle. Raises Unavailable."""
    idle = self._idle.setdefault(tier, [])
    while idle:
      link = idle.pop()
      if not link.dead:
        return link
      self._discard(link)
    return await self._start_slot(tier)

  def release(self, link: slot_link.SlotLink) -> None:
    """Takes a slot back after a call."""
    if link.dead or link.num_calls >= self._max_calls:
      self._discard(link)
    else:
      self._idle[link.tier].append(link)

  def discard(self, link: slot_link.SlotLink) -> None:
    """Ends a slot that must not be used again."""
    link.kill()
    self._discard(link)

  def _discard(self, link: slot_link.SlotLink) -> None:
    if link in self._links:
      self._links.discard(link)
      self.num_slots_died += 1
    if not link.dead:
      link.close()

  async def _start_slot(self, tier: str) -> slot_link.SlotLink:
    zygote = await self.zygote(tier)
    link = slot_link.SlotLink(
        asyncio.get_running_loop(), tier, self._limits, self._grace_s
    )
    self._links.add(link)
    try:
      zygote.spawn(link)
      async with asyncio.timeout(_START_TIMEOUT_S):
        await asyncio.shield(link.ready)
    except (Unavailable, slot_link.SlotDied, TimeoutError) as e:
      self.discard(link)
      raise Unavailable(f'cannot start a slot: {e}') from None
    except BaseException:
      self.discard(link)
      raise
    self.num_slots_started += 1
    return link

  async def zygote(self, tier: str) -> Zygote:
    """The tier's zygote, started if needed. Raises Unavailable."""
    future = self._zygotes.get(tier)
    if future is not None and future.done():
      failed = future.cancelled() or future.exception() is not None
      if failed or not future.result().alive:
        future = None
    if future is None:
      future = asyncio.ensure_future(self._start_zygote(tier))
      self._zygotes[tier] = future
    return await asyncio.shield(future)

  async def _start_zygote(self, tier: str) -> Zygote:
    zygote = Zygote(tier, self.isolation, self._workspace)
    await zygote.wait_ready()
    return zygote

  def counts(self) -> dict[str, dict[str, int]]:
    """Slots per tier: idle and in all."""
    counts: dict[str, dict[str, int]] = {}
    for link in self._links:
      tier = counts.setdefault(link.tier, {'idle': 0, 'total': 0})
      tier['total'] += 1
    for name, idle in self._idle.items():
      if name in counts:
        counts[name]['idle'] = sum(not link.dead for link in idle)
    return counts

  async def close(self) -> None:
    """Ends everything."""
    slots = [os.dup(link.pidfd) for link in self._links if link.pidfd >= 0]
    for link in list(self._links):
      self._discard(link)
    # A slot whose socket closes ends its call first, then itself.
    end = time.monotonic() + self._grace_s
    while time.monotonic() < end and not all(map(_has_ended, slots)):
      await asyncio.sleep(0.005)
    for pidfd in slots:
      if not _has_ended(pidfd):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
      os.close(pidfd)
    for future in self._zygotes.values():
      if not future.done():
        future.cancel()
      elif not future.cancelled() and future.exception() is None:
        future.result().close()


def _has_ended(pidfd: int) -> bool:
  poll = select.poll()
  poll.register(pidfd, select.POLLIN)
  return bool(poll.poll(0))
