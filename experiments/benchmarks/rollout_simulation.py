"""Rollout servers and their clock, simulated; the scheduler is the real one.

An event loop whose clock jumps to the next event runs the coroutines of
`rollout.scheduler` as they are. A simulated server decodes all its requests at
once: a step of b sequences takes step_s + b * token_s, so more sequences give
more tokens per second, each of them fewer. Nothing is decoded during a prefill.
Its KV cache holds a number of tokens. What runs comes first; in the rest stay
the prefixes of trajectories between two turns, the oldest of which give way,
and are prefilled again when their turn comes. When what runs does not fit any
more, half of it is evicted, as the paper says of its servers.
"""

import asyncio
import collections
from collections.abc import Coroutine, Sequence
import dataclasses
import math
import random
import selectors
from typing import Any

from rstar2_jax.rollout import scheduler


@dataclasses.dataclass(frozen=True)
class Turn:
  """Tokens sampled, then a tool call of so many seconds and tokens."""

  new_tokens: int
  tool_s: float
  tool_tokens: int


@dataclasses.dataclass(frozen=True)
class Trace:
  """A trajectory as it will go, which no scheduler knows."""

  num_prompt: int
  turns: tuple[Turn, ...]

  @property
  def num_new(self) -> int:
    """Tokens that are sampled."""
    return sum(t.new_tokens for t in self.turns)

  @property
  def num_tokens(self) -> int:
    """Tokens in the end, prompt and tool output included."""
    return self.num_prompt + self.num_new + sum(
        t.tool_tokens for t in self.turns)

  @property
  def tool_s(self) -> float:
    """Seconds in calls."""
    return sum(t.tool_s for t in self.turns)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
  """What a simulated server is made of."""

  kv_capacity: int = 655_360  # tokens: 100 GB of Qwen3-14B's in bfloat16
  step_s: float = 0.020  # of a decode step, whatever is in it
  token_s: float = 0.0002  # more for each sequence
  prefill_tokens_per_s: float = 20_000.0
  max_running: int = 512  # sequences in a step
  refill: float = 0.9  # share of the KV that waiting sequences may fill

  @property
  def best_tokens_per_s(self) -> float:
    """With all sequences that a step may have."""
    return self.max_running / (self.step_s + self.max_running * self.token_s)


def heavy_tailed(
    num: int, *, max_new: int, seed: int, median: float = 0.25,
    sigma: float = 0.8, max_turns: int = 10,
) -> list[Trace]:
  """Traces whose lengths are lognormal, cut at the longest response.

  Args:
    num: of them.
    max_new: tokens of the longest response.
    seed: of the draws.
    median: response, as a share of the longest.
    sigma: of the logarithm of lengths.
    max_turns: turns are 1 to this, more for longer responses.
  """
  rng = random.Random(seed)
  traces = []
  for _ in range(num):
    total = int(max_new * median * math.exp(sigma * rng.gauss(0, 1)))
    total = max(64, min(max_new, total))
    num_turns = min(max_turns, 1 + int(rng.expovariate(1) * 1.5
                                       + 4 * total / max_new))
    each = total // num_turns
    # One call in fifty waits for its limit.
    turns = [Turn(max(1, each - 60), 4.0 if rng.random() < 0.02
                  else rng.expovariate(5), 60) for _ in range(num_turns - 1)]
    turns.append(Turn(max(1, each), 0.0, 0))
    traces.append(Trace(256, tuple(turns)))
  return traces


class _Clock(selectors.BaseSelector):
  """A selector without files: to wait is to move the clock."""

  def __init__(self):
    self.now_s = 0.0
    self._real = selectors.SelectSelector()

  def register(self, fileobj, events, data=None):
    return self._real.register(fileobj, events, data)

  def unregister(self, fileobj):
    return self._real.unregister(fileobj)

  def select(self, timeout=None):
    if timeout is None:
      raise RuntimeError("the simulation waits for nothing")
    self.now_s += max(0.0, timeout)
    return []

  def get_map(self):
    return self._real.get_map()

  def close(self):
    self._real.close()


def run(main: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
  """Runs a coroutine on a clock that jumps; (its result, simulated seconds)."""
  clock = _Clock()
  loop = asyncio.SelectorEventLoop(clock)
  loop.time = lambda: clock.now_s  # type: ignore[method-assign]
  try:
    return loop.run_until_complete(main), clock.now_s
  finally:
    loop.close()


@dataclasses.dataclass(eq=False)
class _Request:
  name: int  # of its trajectory
  length: float  # tokens of the sequence so far
  left: float  # tokens to sample
  done: asyncio.Future


class SimulatedServer:
  """Decodes requests; see the module.

  Attributes:
    num_evictions: sequences that lost their place.
    num_tokens: sampled.
    num_prefilled: tokens that were not in the cache.
  """

  def __init__(self, hardware: Hardware):
    self.num_evictions = 0
    self.num_prefilled = 0.0
    self.num_tokens = 0.0
    self._hardware = hardware
    self._running: list[_Request] = []
    self._queue: collections.deque[_Request] = collections.deque()
    self._at_s = 0.0
    self._prefill_s = 0.0  # to do before decoding goes on
    self._cached: dict[int, float] = {}  # tokens by trajectory, oldest first
    self._next: asyncio.TimerHandle | None = None

  async def generate(
      self, name: int, length: int, new_tokens: int
  ) -> None:
    """Samples tokens.

    Args:
      name: of the trajectory.
      length: its tokens before.
      new_tokens: that are sampled.
    """
    loop = asyncio.get_running_loop()
    request = _Request(name, length, new_tokens, loop.create_future())
    self._advance(loop.time())
    self._queue.append(request)
    self._refill(loop)
    await request.done

  def _rate(self) -> float:
    """Tokens per second of each running sequence."""
    hardware = self._hardware
    return 1 / (hardware.step_s + len(self._running) * hardware.token_s)

  def _advance(self, now_s: float) -> None:
    """What has been sampled since the last event."""
    prefill_s = min(now_s - self._at_s, self._prefill_s)
    self._prefill_s -= prefill_s
    if self._running:
      sampled = (now_s - self._at_s - prefill_s) * self._rate()
      for request in self._running:
        step = min(sampled, request.left)
        request.left -= step
        request.length += step
        self.num_tokens += step
    self._at_s = now_s

  def _refill(self, loop: asyncio.AbstractEventLoop) -> None:
    """Ends what is done, evicts, admits, and plans the next event."""
    for request in [r for r in self._running if r.left <= 1e-6]:
      self._running.remove(request)
      self._cached[request.name] = request.length
      if not request.done.done():
        request.done.set_result(None)
    hardware = self._hardware
    used = sum(r.length for r in self._running)
    if used > hardware.kv_capacity - 1 and len(self._running) > 1:
      victims = self._running[len(self._running) // 2:]
      del self._running[len(self._running) // 2:]
      self.num_evictions += len(victims)
      self._queue.extendleft(reversed(victims))
      used = sum(r.length for r in self._running)
    while (self._queue and len(self._running) < hardware.max_running
           and (used + self._queue[0].length
                < hardware.refill * hardware.kv_capacity)):
      request = self._queue.popleft()
      uncached = request.length - self._cached.pop(request.name, 0.0)
      self.num_prefilled += uncached
      self._prefill_s += uncached / hardware.prefill_tokens_per_s
      self._running.append(request)
      used += request.length
    cached = sum(self._cached.values())
    while self._cached and used + cached > hardware.kv_capacity:
      cached -= self._cached.pop(next(iter(self._cached)))
    self._plan(loop, hardware.kv_capacity - used)

  def _plan(self, loop: asyncio.AbstractEventLoop, room: float) -> None:
    if self._next is not None:
      self._next.cancel()
      self._next = None
    if not self._running:
      return
    rate = self._rate()
    wait_s = min(r.left for r in self._running) / rate
    if len(self._running) > 1:
      wait_s = min(wait_s, max(room, 1.0) / (rate * len(self._running)))
    self._next = loop.call_later(
        self._prefill_s + wait_s, self._on_event, loop)

  def _on_event(self, loop: asyncio.AbstractEventLoop) -> None:
    self._advance(loop.time())
    self._refill(loop)


class _Barrier:
  """Lets nobody on until all have come; those that end leave it."""

  def __init__(self, num: int):
    self._num = num
    self._waiting: list[asyncio.Future] = []

  async def wait(self) -> None:
    """Returns when all others wait, too."""
    if self._num:
      future = asyncio.get_running_loop().create_future()
      self._waiting.append(future)
      self._check()
      await future

  def leave(self) -> None:
    """One fewer comes from now on."""
    if self._num:
      self._num -= 1
      self._check()

  def _check(self) -> None:
    if len(self._waiting) == self._num:
      waiting, self._waiting = self._waiting, []
      for future in waiting:
        future.set_result(None)


@dataclasses.dataclass(frozen=True)
class Result:
  """What a simulated step came to."""

  makespan_s: float
  evictions: int  # of running sequences
  prefilled: float  # tokens, over those that were not sampled
  idle: float  # share of server time without a trajectory
  queue_wait_s: float
  lengths_in_order: tuple[int, ...]  # of trajectories as they ended


def simulate(
    traces: Sequence[Trace], *, num_servers: int, hardware: Hardware,
    max_new: int, warm_up: Sequence[int] = (), has_barrier: bool = False,
    **admission: Any,
) -> Result:
  """One training step's rollouts.

  Args:
    traces: in order of arrival.
    num_servers: of them.
    hardware: of each.
    max_new: tokens of the longest response, which the scheduler knows.
    warm_up: response lengths that it has seen in earlier steps.
    has_barrier: a turn starts when all have ended the one before, and its
      calls are run together (the paper's first version).
    **admission: of `scheduler.Scheduler`.
  """
  async def main() -> Result:
    servers = [scheduler.Server(
        name=f"s{i}", client=SimulatedServer(hardware),
        kv_capacity=hardware.kv_capacity, max_running=hardware.max_running)
               for i in range(num_servers)]
    queue = scheduler.Scheduler(servers, **admission)
    for length in warm_up:
      async with queue.admit(1, 1 + max_new) as lease:
        queue.grow(lease, 1 + length)
    queue.take_statistics()
    lengths: list[int] = []
    barrier = _Barrier(len(traces) if has_barrier else 0)

    async def one(name: int, trace: Trace) -> None:
      async with queue.admit(
          trace.num_prompt, trace.num_prompt + max_new) as lease:
        length = trace.num_prompt
        for turn in trace.turns:
          queue.grow(lease, length)
          await lease.server.client.generate(name, length, turn.new_tokens)
          length += turn.new_tokens + turn.tool_tokens
          await barrier.wait()
          await asyncio.sleep(turn.tool_s)
          await barrier.wait()
        queue.grow(lease, length)
      barrier.leave()
      lengths.append(length)

    await asyncio.gather(*(one(i, t) for i, t in enumerate(traces)))
    found = queue.take_statistics()
    return Result(
        asyncio.get_running_loop().time(),
        sum(s.client.num_evictions for s in servers),
        sum(s.client.num_prefilled for s in servers)
        / sum(t.num_tokens - t.num_new for t in traces),
        found.get("server_idle", 0.0), found.get("queue_wait_s", 0.0),
        tuple(lengths))

  return run(main())[0]


def lower_bound_s(
    traces: Sequence[Trace], *, num_servers: int, hardware: Hardware
) -> float:
  """Seconds that no scheduler can go below: all the work, and the longest.

  A server is taken to sample at its best rate all the time, although its KV
  seldom holds so many sequences; the bound is not reached.
  """
  work_s = sum(t.num_new for t in traces) / (
      hardware.best_tokens_per_s * num_servers)
  alone_s = hardware.step_s + hardware.token_s
  return max(work_s, max(t.num_new * alone_s + t.tool_s for t in traces))
