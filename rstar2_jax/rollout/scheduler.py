"""Which rollout server takes which trajectory, and when.

One global queue in order of arrival. Each server has a KV budget in tokens. A
trajectory reserves room for its whole life, worst case by default, on the
server with most room; it stays there across turns (prefix cache) and frees its
room when it ends, which wakes the queue. No polling, no barrier between turns
(paper, section 3.2).
"""

import asyncio
import collections
from collections.abc import AsyncIterator, Sequence
import contextlib
import dataclasses
from typing import Any


@dataclasses.dataclass
class Server:
  """A rollout server as the scheduler sees it."""

  name: str
  client: Any  # rollout.sampler_client.SamplerClient
  kv_capacity: int  # tokens
  max_running: int = 1 << 30  # trajectories
  reserved: int = 0  # tokens
  num_running: int = 0
  is_healthy: bool = True

  @property
  def room(self) -> int:
    """Tokens that can still be reserved; none if all slots are taken."""
    if self.num_running >= self.max_running:
      return 0
    return self.kv_capacity - self.reserved


class Scheduler:
  """Admits trajectories to servers; use it from one event loop only."""

  def __init__(self, servers: Sequence[Server]):
    """Needs at least one server."""
    self.servers = list(servers)
    self._queue: collections.deque[tuple[int, asyncio.Future]] = (
        collections.deque())
    self._peak_use = 0.0

  def take_peak_use(self) -> float:
    """Highest share of all servers' KV that was reserved since last asked."""
    peak, self._peak_use = self._peak_use, self._use()
    return peak

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
  async def admit(self, num_tokens: int) -> AsyncIterator[Server]:
    """Waits for room of `num_tokens` and holds it.

    Args:
      num_tokens: KV entries that the trajectory may need, prompt included.

    Yields:
      The server that the trajectory stays on.
    """
    self.check_fits(num_tokens)
    server = await self._acquire(num_tokens)
    try:
      yield server
    finally:
      server.reserved -= num_tokens
      server.num_running -= 1
      self._wake()

  async def _acquire(self, num_tokens: int) -> Server:
    future = asyncio.get_running_loop().create_future()
    self._queue.append((num_tokens, future))
    self._wake()
    try:
      return await future
    except asyncio.CancelledError:
      if future.done() and not future.cancelled():
        future.result().reserved -= num_tokens
        future.result().num_running -= 1
      self._wake()
      raise

  def _wake(self) -> None:
    """Admits from the head of the queue while its head fits somewhere."""
    while self._queue:
      num_tokens, future = self._queue[0]
      if future.cancelled():
        self._queue.popleft()
        continue
      server = self._roomiest()
      if server is None or server.room < num_tokens:
        return
      self._queue.popleft()
      server.reserved += num_tokens
      server.num_running += 1
      self._peak_use = max(self._peak_use, self._use())
      future.set_result(server)

  def _use(self) -> float:
    return (sum(s.reserved for s in self.servers)
            / sum(s.kv_capacity for s in self.servers))

  def _roomiest(self) -> Server | None:
    healthy = [s for s in self.servers if s.is_healthy]
    # min() keeps the first of equals, so placement does not depend on chance.
    return min(healthy, key=lambda s: -s.room, default=None)
