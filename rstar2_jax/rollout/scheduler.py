"""Which rollout server takes which trajectory, and when.

One global queue in order of arrival. Each server has a KV budget in tokens. A
trajectory reserves room when it is admitted, stays on its server across turns
(prefix cache) and frees its room when it ends, which wakes the queue. No
polling, no barrier between turns (paper, section 3.2).

  worst_case    room for prompt and longest response: nothing is ever evicted
                (paper: the largest K that an engine holds without overflow).
  expected      room for what a trajectory will hold on average, as lengths of
                earlier ones make likely; admits more, and may evict.
  static        as many per server, launched at once (paper's baseline).
  least_loaded  to the server with the fewest, launched at once (released code).
"""

import asyncio
import bisect
import collections
from collections.abc import AsyncIterator, Sequence
import contextlib
import dataclasses
import time
from typing import Any, Literal

Mode = Literal["worst_case", "expected", "static", "least_loaded"]

_MIN_LENGTHS = 16  # before so many are known, `expected` is the worst case
_MAX_LENGTHS = 4096  # the latest ones count


@dataclasses.dataclass
class Server:
  """A rollout server as the scheduler sees it."""

  name: str
  client: Any  # rollout.sampler_client.SamplerClient
  kv_capacity: int  # tokens
  max_running: int = 1 << 30  # trajectories
  reserved: int = 0  # tokens
  worst_case: int = 0  # tokens, if all that run grow as long as they may
  num_running: int = 0
  is_healthy: bool = True
  busy_s: float = 0.0  # with a trajectory, since statistics were taken
  busy_since_s: float = 0.0

  @property
  def room(self) -> int:
    """Tokens that can still be reserved; none if all slots are taken."""
    if self.num_running >= self.max_running:
      return 0
    return self.kv_capacity - self.reserved


@dataclasses.dataclass
class Lease:
  """A trajectory's place on a server; `grow` and `end` keep it true.

  Attributes:
    server: where it stays.
    num_prompt: tokens of its prompt.
    worst_case: tokens that it may come to.
    reserved: tokens that it holds.
    length: tokens so far, as last told.
  """

  server: Server
  num_prompt: int
  worst_case: int
  reserved: int
  length: int


@dataclasses.dataclass
class _Waiter:
  num_prompt: int
  worst_case: int
  future: asyncio.Future
  since_s: float
  place: Server | None  # decided at arrival by static and least_loaded


class Scheduler:
  """Admits trajectories to servers; use it from one event loop only."""

  def __init__(
      self, servers: Sequence[Server], *, mode: Mode = "worst_case",
      quantile: float = 0.75, overcommit: float = 5.0,
  ):
    """Starts empty.

    Args:
      servers: at least one.
      mode: see the module.
      quantile: of the known lengths, to which `expected` takes one to grow.
      overcommit: `expected` admits no more than what, at its longest, fills
        this many times a server's KV.
    """
    self.servers = list(servers)
    self._mode = mode
    self._quantile = quantile
    self._overcommit = overcommit
    self._queue: collections.deque[_Waiter] = collections.deque()
    self._num_placed = 0
    self._assigned = [0] * len(self.servers)  # waiting or running
    self._lengths: list[int] = []  # of responses that ended, sorted
    self._latest: collections.deque[int] = collections.deque()
    self._peak_use = 0.0
    self._waits_s: list[float] = []
    self._begin_s: float | None = None
    self._end_s = 0.0

  @property
  def queue_length(self) -> int:
    """Trajectories that wait for room."""
    return len(self._queue)

  def check_fits(self, num_tokens: int) -> None:
    """Raises ValueError if no server could ever hold so many tokens."""
    largest = max(s.kv_capacity for s in self.servers)
    if num_tokens > largest:
      raise ValueError(
          f"a trajectory of {num_tokens} tokens fits no rollout server (largest"
          f" KV cache: {largest} tokens); lower rollout.max_response_tokens")

  @contextlib.asynccontextmanager
  async def admit(
      self, num_prompt: int, worst_case: int
  ) -> AsyncIterator[Lease]:
    """Waits for room and holds it.

    Args:
      num_prompt: tokens of the prompt.
      worst_case: tokens of prompt and longest response.

    Yields:
      The place that the trajectory keeps; tell it how it grows.
    """
    self.check_fits(worst_case)
    lease = await self._acquire(num_prompt, worst_case)
    try:
      yield lease
    finally:
      self._release(lease)
      self._remember(lease.length - lease.num_prompt)
      self._wake()

  def grow(self, lease: Lease, length: int) -> None:
    """Tells how long a trajectory is now; its room follows, never shrinking.

    Args:
      lease: of the trajectory.
      length: tokens, prompt included.
    """
    lease.length = max(lease.length, length)
    expected = self._reserve(lease.num_prompt, lease.worst_case, lease.length)
    if expected > lease.reserved:
      lease.server.reserved += expected - lease.reserved
      lease.reserved = expected

  def take_statistics(self) -> dict[str, float]:
    """What happened since last asked.

    Returns:
      `kv_use`: highest share of all servers' KV that was reserved;
      `queue_wait_s`: mean wait for room; `server_idle`: share of the servers'
      time, from the first admission to the last end, without a trajectory.
    """
    now_s = self._now_s()
    for server in self.servers:
      if server.num_running:
        server.busy_s += now_s - server.busy_since_s
        server.busy_since_s = now_s
    end_s = now_s if any(s.num_running for s in self.servers) else self._end_s
    span_s = end_s - self._begin_s if self._begin_s is not None else 0.0
    busy_s = sum(s.busy_s for s in self.servers)
    found = {"kv_use": self._peak_use}
    if self._waits_s:
      found["queue_wait_s"] = sum(self._waits_s) / len(self._waits_s)
    if span_s > 0:
      found["server_idle"] = max(
          0.0, 1 - busy_s / (span_s * len(self.servers)))
    for server in self.servers:
      server.busy_s = 0.0
    self._waits_s = []
    self._peak_use = self._use()
    self._begin_s = (
        now_s if any(s.num_running for s in self.servers) else None)
    return found

  async def _acquire(self, num_prompt: int, worst_case: int) -> Lease:
    future = asyncio.get_running_loop().create_future()
    waiter = _Waiter(num_prompt, worst_case, future, self._now_s(),
                     self._place())
    self._queue.append(waiter)
    self._wake()
    try:
      return await future
    except asyncio.CancelledError:
      if future.done() and not future.cancelled():
        self._release(future.result())
      elif waiter.place is not None:
        self._assigned[self.servers.index(waiter.place)] -= 1
      self._wake()
      raise

  def _place(self) -> Server | None:
    """The server of a new arrival, where room has no say in it."""
    if self._mode in ("worst_case", "expected"):
      return None
    healthy = [i for i, s in enumerate(self.servers) if s.is_healthy]
    if not healthy:
      return None
    index = (healthy[self._num_placed % len(healthy)]
             if self._mode == "static"
             else min(healthy, key=lambda i: self._assigned[i]))
    self._num_placed += 1
    self._assigned[index] += 1
    return self.servers[index]

  def _wake(self) -> None:
    """Admits from the head of the queue while its head fits somewhere."""
    while self._queue:
      waiter = self._queue[0]
      if waiter.future.cancelled():
        self._queue.popleft()
        continue
      server = waiter.place or self._roomiest(waiter)
      if server is None:
        return
      self._queue.popleft()
      waiter.future.set_result(self._lease(waiter, server))

  def _lease(self, waiter: _Waiter, server: Server) -> Lease:
    now_s = self._now_s()
    reserved = self._reserve(
        waiter.num_prompt, waiter.worst_case, waiter.num_prompt)
    if waiter.place is None and self._mode in ("static", "least_loaded"):
      self._assigned[self.servers.index(server)] += 1  # none was healthy then
    if not server.num_running:
      server.busy_since_s = now_s
    server.reserved += reserved
    server.worst_case += waiter.worst_case
    server.num_running += 1
    self._begin_s = now_s if self._begin_s is None else self._begin_s
    self._waits_s.append(now_s - waiter.since_s)
    self._peak_use = max(self._peak_use, self._use())
    return Lease(server, waiter.num_prompt, waiter.worst_case, reserved,
                 waiter.num_prompt)

  def _release(self, lease: Lease) -> None:
    server = lease.server
    server.reserved -= lease.reserved
    server.worst_case -= lease.worst_case
    server.num_running -= 1
    self._end_s = self._now_s()
    if not server.num_running:
      server.busy_s += self._end_s - server.busy_since_s
    if self._mode in ("static", "least_loaded"):
      self._assigned[self.servers.index(server)] -= 1

  def _reserve(self, num_prompt: int, worst_case: int, length: int) -> int:
    """Tokens to hold for a trajectory that has come to a length."""
    if self._mode != "expected" or len(self._lengths) < _MIN_LENGTHS:
      return worst_case
    # Of those that came as far, how far did most go?
    first = bisect.bisect_right(self._lengths, length - num_prompt)
    longer = len(self._lengths) - first
    if not longer:
      return worst_case
    index = first + min(longer - 1, int(self._quantile * longer))
    final = min(worst_case, num_prompt + self._lengths[index])
    # It grows to there while others end: on average it holds half the way.
    return (length + final + 1) // 2

  def _remember(self, length: int) -> None:
    bisect.insort(self._lengths, length)
    self._latest.append(length)
    if len(self._latest) > _MAX_LENGTHS:
      oldest = self._latest.popleft()
      del self._lengths[bisect.bisect_left(self._lengths, oldest)]

  def _roomiest(self, waiter: _Waiter) -> Server | None:
    """The healthy server with most room, if the trajectory fits there."""
    healthy = [s for s in self.servers if s.is_healthy]
    # min() keeps the first of equals, so placement does not depend on chance.
    server = min(healthy, key=lambda s: -s.room, default=None)
    if server is None:
      return None
    needed = self._reserve(
        waiter.num_prompt, waiter.worst_case, waiter.num_prompt)
    most = self._overcommit * server.kv_capacity
    if server.room < needed or server.worst_case + waiter.worst_case > most:
      return None
    return server

  def _use(self) -> float:
    return (sum(s.reserved for s in self.servers)
            / sum(s.kv_capacity for s in self.servers))

  def _now_s(self) -> float:
    """The loop's clock, which a simulation may run faster."""
    try:
      return asyncio.get_running_loop().time()
    except RuntimeError:  # asked from outside
      return time.monotonic()
