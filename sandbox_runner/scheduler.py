"""Which call runs next, and which are refused.

1. A call is admitted if the queue has room (count and bytes) and if it can be
   expected to start before its deadline; else it is refused at once.
2. Tenants take turns; within a tenant, first come, first served.
3. At most `max_running` calls run at a time, each in a slot of its tier.
4. A call whose deadline passes while it waits is answered then, not dropped.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
import dataclasses
import heapq
import itertools
import logging
import re
import time
from typing import TypeVar

from sandbox_runner import metrics
from sandbox_runner import pool as pool_lib
from sandbox_runner import protocol
from sandbox_runner import results
from sandbox_runner import slot_link
from sandbox_runner import wire

Status = protocol.Status
T = TypeVar('T')

_FULL = re.compile(r'\b(?:scipy|sympy|pandas|mpmath|networkx)\b')
_NUMPY = re.compile(r'\b(?:numpy|np)\b')
_SWEEP_EVERY_S = 0.05
# A slot can die by the fault of another (its zygote's, the machine's); the
# call is then run once more.
_MAX_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True)
class QueueLimits:
  """Bounds on what waits. deadline_s is for calls that name none."""

  max_calls: int = 50_000
  max_bytes: int = 512 << 20
  deadline_s: float = 600.0


class Refused(Exception):
  """A call that will not run.

  Attributes:
    status: queue_timeout or sandbox_unavailable.
    retry_after_s: when it may be worth another try.
  """

  def __init__(self, status: Status, message: str, retry_after_s: float = 1.0):
    super().__init__(message)
    self.status = status
    self.retry_after_s = retry_after_s


def choose_tier(code: str) -> str:
  """What to preload, by the names that a source mentions.

  A wrong guess costs time only: the program imports what it needs itself.
  """
  if _FULL.search(code):
    return protocol.Tier.FULL
  if _NUMPY.search(code):
    return protocol.Tier.NUMPY
  return protocol.Tier.BARE


class _Ticket:
  """A place in the queue."""

  __slots__ = ('tenant', 'num_bytes', 'deadline', 'arrival', 'turn')

  def __init__(self, tenant, num_bytes, deadline, arrival, turn):
    self.tenant = tenant
    self.num_bytes = num_bytes
    self.deadline = deadline
    self.arrival = arrival
    self.turn = turn


class Scheduler:
  """Runs calls in the slots of a pool."""

  def __init__(
      self,
      pool: pool_lib.Pool,
      *,
      max_running: int,
      limits: QueueLimits,
      node: str,
  ):
    self.pool = pool
    self.node = node
    self.metrics = metrics.Metrics()
    self.max_running = max_running
    self._limits = limits
    self._running = 0
    self._queues: dict[str, collections.deque[_Ticket]] = {}
    self._rotation: collections.deque[str] = collections.deque()
    self._num_queued = 0
    self._queued_bytes = 0
    self._deadlines: list[tuple[float, int, _Ticket]] = []
    self._order = itertools.count()
    # Time that a call holds its slot, smoothed; for admission.
    self._service_s = 0.01
    self._sweeper: asyncio.Task | None = None

  @property
  def num_queued(self) -> int:
    """Calls that wait."""
    return self._num_queued

  @property
  def num_running(self) -> int:
    """Calls that run."""
    return self._running

  async def execute(
      self, request: protocol.ExecuteRequest, *, tier: str | None = None
  ) -> protocol.ExecuteResult:
    """Runs one call; always answers, and before its deadline if it waits.

    Cancelling this coroutine removes the call from the queue or ends it.
    """
    start = time.monotonic()
    tier = tier or request.tier or choose_tier(request.code)
    try:
      result = await self.run_turn(
          lambda: self._run(request, tier, start),
          tenant=request.tenant,
          num_bytes=len(request.code) + len(request.stdin),
          deadline_s=request.deadline_s,
      )
    except Refused as e:
      result = results.refusal(
          e.status, str(e), request_id=request.request_id,
          isolation=self.pool.isolation, node=self.node,
          queue_ms=1e3 * (time.monotonic() - start),
      )
    except asyncio.CancelledError:
      self.metrics.count_call(Status.CANCELLED, tier)
      raise
    self.metrics.observe(result, tier)
    return result

  async def run_turn(
      self,
      work: Callable[[], Awaitable[T]],
      *,
      tenant: str,
      num_bytes: int,
      deadline_s: float | None,
  ) -> T:
    """Waits for a turn, then runs work. Raises Refused."""
    await self._wait_turn(tenant, num_bytes, deadline_s)
    start = time.monotonic()
    try:
      return await work()
    finally:
      held = time.monotonic() - start
      self._service_s += 0.05 * (held - self._service_s)
      self._running -= 1
      self._dispatch()

  async def _wait_turn(
      self, tenant: str, num_bytes: int, deadline_s: float | None
  ) -> None:
    if self._running < self.max_running and not self._num_queued:
      self._running += 1
      return
    deadline_s = deadline_s or self._limits.deadline_s
    self._check_room(num_bytes, deadline_s)
    loop = asyncio.get_running_loop()
    now = time.monotonic()
    ticket = _Ticket(
        tenant, num_bytes, now + deadline_s, now, loop.create_future()
    )
    self._enqueue(ticket)
    try:
      await ticket.turn
    except asyncio.CancelledError:
      if ticket.turn.done() and not ticket.turn.cancelled() and (
          ticket.turn.exception() is None
      ):
        self._running -= 1  # the turn had come already
        self._dispatch()
      else:
        self._forget(ticket)
      raise

  def _check_room(self, num_bytes: int, deadline_s: float) -> None:
    limits = self._limits
    wait_s = self.expected_wait_s()
    if self._num_queued >= limits.max_calls:
      raise Refused(
          Status.QUEUE_TIMEOUT,
          f'queue is full: {self._num_queued} calls wait', wait_s,
      )
    if self._queued_bytes + num_bytes > limits.max_bytes:
      raise Refused(
          Status.QUEUE_TIMEOUT,
          f'queue is full: {self._queued_bytes} bytes wait', wait_s,
      )
    if wait_s > deadline_s:
      raise Refused(
          Status.QUEUE_TIMEOUT,
          f'cannot start within {deadline_s:g} s: expected wait is '
          f'{wait_s:.1f} s', wait_s,
      )

  def expected_wait_s(self) -> float:
    """Predicted time in the queue of a call that came now."""
    if self._running < self.max_running:
      return 0.0
    return (self._num_queued + 1) * self._service_s / self.max_running

  def _enqueue(self, ticket: _Ticket) -> None:
    queue = self._queues.get(ticket.tenant)
    if queue is None:
      queue = self._queues[ticket.tenant] = collections.deque()
      self._rotation.append(ticket.tenant)
    queue.append(ticket)
    self._num_queued += 1
    self._queued_bytes += ticket.num_bytes
    heapq.heappush(
        self._deadlines, (ticket.deadline, next(self._order), ticket)
    )
    if self._sweeper is None:
      self._sweeper = asyncio.ensure_future(self._sweep())

  def _forget(self, ticket: _Ticket) -> None:
    self._num_queued -= 1
    self._queued_bytes -= ticket.num_bytes

  def _dispatch(self) -> None:
    while self._running < self.max_running and self._rotation:
      tenant = self._rotation[0]
      queue = self._queues[tenant]
      self._rotation.rotate(-1)
      while queue:
        ticket = queue.popleft()
        if not ticket.turn.done():
          self._forget(ticket)
          self._running += 1
          ticket.turn.set_result(None)
          break
      if not queue:
        del self._queues[tenant]
        self._rotation.remove(tenant)

  async def _sweep(self) -> None:
    """Answers calls whose deadline passes while they wait."""
    while self._deadlines:
      now = time.monotonic()
      while self._deadlines and (
          self._deadlines[0][0] <= now or self._deadlines[0][2].turn.done()
      ):
        ticket = heapq.heappop(self._deadlines)[2]
        if not ticket.turn.done():
          self._forget(ticket)
          waited = now - ticket.arrival
          ticket.turn.set_exception(Refused(
              Status.QUEUE_TIMEOUT, f'did not start within {waited:.1f} s',
              self.expected_wait_s(),
          ))
      await asyncio.sleep(_SWEEP_EVERY_S)
    self._sweeper = None

  async def _run(
      self, request: protocol.ExecuteRequest, tier: str, arrival: float
  ) -> protocol.ExecuteResult:
    source = request.code.encode('utf-8', 'replace')
    stdin = request.stdin.encode('utf-8', 'replace')
    for attempt in range(_MAX_ATTEMPTS):
      try:
        async with asyncio.timeout(_remaining_s(request, arrival)):
          link = await self.pool.acquire(tier)
      except pool_lib.Unavailable as e:
        raise Refused(Status.SANDBOX_UNAVAILABLE, str(e)) from None
      except TimeoutError:
        raise Refused(
            Status.QUEUE_TIMEOUT,
            f'did not start within {request.deadline_s:g} s',
        ) from None
      queue_ms = 1e3 * (time.monotonic() - arrival)
      wall_s = request.timeout_s
      remaining_s = _remaining_s(request, arrival)
      if remaining_s is not None:
        wall_s = min(wall_s, max(remaining_s, 1e-3))
      try:
        call = _call(request, link, wall_s)
        outcome = await link.run(call, source, stdin)
      except slot_link.SlotDied as e:
        logging.warning('slot died: %s', e)
        if attempt + 1 == _MAX_ATTEMPTS:
          raise Refused(Status.SANDBOX_UNAVAILABLE, str(e)) from None
        continue
      finally:
        self.pool.release(link)
      result = results.execute_result(
          request, outcome, tier=tier, isolation=self.pool.isolation,
          node=self.node, queue_ms=queue_ms,
      )
      if result.timeout_kind == 'wall' and wall_s < request.timeout_s:
        # Not the program's fault: it did not get the time it was promised.
        result = dataclasses.replace(
            result, status=Status.QUEUE_TIMEOUT, timeout_kind='',
            message=f'the deadline of {request.deadline_s:g} s passed '
            f'{wall_s:.3f} s after the start',
        )
      return result
    raise AssertionError('unreachable')


def _remaining_s(
    request: protocol.ExecuteRequest, arrival: float
) -> float | None:
  if request.deadline_s is None:
    return None
  return arrival + request.deadline_s - time.monotonic()


def _call(
    request: protocol.ExecuteRequest,
    link: slot_link.SlotLink,
    wall_s: float,
) -> wire.Call:
  return wire.Call(
      call_id=link.num_calls,
      wall_s=wall_s,
      cpu_s=request.cpu_timeout_s or request.timeout_s,
      memory_bytes=request.memory_mb << 20,
      seed=request.seed,
  )
