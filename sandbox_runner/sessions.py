"""Stateful interpreters: one slot each, kept alive from cell to cell.

A session holds a slot but a turn only while a cell runs. What ends its process
(a limit, a crash, the program itself) loses the session, and the answer to
that cell says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import secrets
import socket
import time

from sandbox_runner import cells
from sandbox_runner import pool as pool_lib
from sandbox_runner import protocol
from sandbox_runner import results
from sandbox_runner import scheduler as scheduler_lib
from sandbox_runner import slot_link
from sandbox_runner import wire

Status = protocol.Status

_START_TIMEOUT_S = 30.0
_SWEEP_EVERY_S = 0.25
# For a slot to notice the end of a session's process, or to bring it about.
_END_TIMEOUT_S = 2.0


class _Session:
  """One interpreter and the supervisor's end of its socket."""

  def __init__(
      self,
      link: slot_link.SlotLink,
      cells_socket: socket.socket,
      request: protocol.SessionRequest,
      call: wire.Call,
  ):
    self.link = link
    self.cells_socket = cells_socket
    self.request = request
    self.call = call
    self.ended = asyncio.ensure_future(link.finished(call.call_id))
    self.lock = asyncio.Lock()
    self.last_used = time.monotonic()


class Sessions:
  """All sessions of one server."""

  def __init__(
      self,
      scheduler: scheduler_lib.Scheduler,
      *,
      max_sessions: int,
      id_prefix: str = '',
  ):
    self._scheduler = scheduler
    self._pool = scheduler.pool
    self._max_sessions = max_sessions
    self._id_prefix = id_prefix
    self._sessions: dict[str, _Session] = {}
    self._num_starting = 0
    self._sweeper: asyncio.Task | None = None

  def __len__(self) -> int:
    return len(self._sessions)

  async def create(self, request: protocol.SessionRequest) -> str:
    """Starts a session. Returns its id; raises scheduler.Refused."""
    if len(self._sessions) + self._num_starting >= self._max_sessions:
      raise scheduler_lib.Refused(
          Status.QUEUE_TIMEOUT,
          f'{self._max_sessions} sessions are open, the limit',
      )
    self._num_starting += 1
    try:
      session = await self._start(request)
    finally:
      self._num_starting -= 1
    session_id = self._id_prefix + secrets.token_hex(16)
    self._sessions[session_id] = session
    if self._sweeper is None or self._sweeper.done():
      self._sweeper = asyncio.ensure_future(self._sweep())
    return session_id

  async def _start(self, request: protocol.SessionRequest) -> _Session:
    try:
      link = await self._pool.acquire(request.tier)
    except pool_lib.Unavailable as e:
      raise scheduler_lib.Refused(
          Status.SANDBOX_UNAVAILABLE, str(e)
      ) from None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    call = wire.Call(
        link.num_calls, wire.UNLIMITED_S, wire.UNLIMITED_S,
        request.memory_mb << 20, request.seed, session=True,
    )
    try:
      with theirs:
        link.begin(call, b'', b'', (theirs.fileno(),))
      loop = asyncio.get_running_loop()
      async with asyncio.timeout(_START_TIMEOUT_S):
        if not await loop.sock_recv(ours, wire.MAX_PACKET_BYTES):
          raise slot_link.SlotDied('the session ended while it started')
    except (OSError, slot_link.SlotDied, TimeoutError) as e:
      ours.close()
      self._pool.discard(link)
      raise scheduler_lib.Refused(
          Status.SANDBOX_UNAVAILABLE, f'cannot start a session: {e}'
      ) from None
    except BaseException:
      ours.close()
      self._pool.discard(link)
      raise
    return _Session(link, ours, request, call)

  async def execute(
      self, session_id: str, request: protocol.ExecuteRequest
  ) -> protocol.ExecuteResult | None:
    """Runs a cell. None if there is no such session (any more).

    Cells of one session run one at a time, in the order in which they come.
    Cancelling this coroutine while the cell runs loses the session.
    """
    session = self._sessions.get(session_id)
    if session is None:
      return None
    start = time.monotonic()
    async with session.lock:
      if self._sessions.get(session_id) is not session:
        return None
      session.last_used = float('inf')  # not idle
      try:
        result = await self._scheduler.run_turn(
            lambda: self._run_cell(session, request, start),
            tenant=request.tenant,
            num_bytes=len(request.code) + len(request.stdin),
            deadline_s=request.deadline_s,
        )
      except scheduler_lib.Refused as e:
        result = results.refusal(
            e.status, str(e), request_id=request.request_id,
            isolation=self._pool.isolation, node=self._scheduler.node,
        )
      except asyncio.CancelledError:
        self._close(session_id)
        raise
      finally:
        session.last_used = time.monotonic()
      if result.session_lost:
        self._close(session_id)
    self._scheduler.metrics.observe(result, session.request.tier)
    return result

  async def _run_cell(
      self,
      session: _Session,
      request: protocol.ExecuteRequest,
      arrival: float,
  ) -> protocol.ExecuteResult:
    start = time.monotonic()
    queue_ms = 1e3 * (start - arrival)
    loop = asyncio.get_running_loop()
    try:
      _send_cell(session.cells_socket, request)
    except OSError:
      pass  # the process is gone; its end is awaited below
    reply = asyncio.ensure_future(
        loop.sock_recv(session.cells_socket, wire.MAX_PACKET_BYTES)
    )
    try:
      await asyncio.wait(
          (reply, session.ended), timeout=request.timeout_s,
          return_when=asyncio.FIRST_COMPLETED,
      )
      wall_s = time.monotonic() - start
      answered = reply.done() and not reply.exception() and reply.result()
      if answered and not session.ended.done():
        # A cell that is done before it can be ended for its output is over
        # the limit all the same: what it comes to must not depend on speed.
        if not session.link.has_exceeded():
          return self._cell_result(
              session, request, reply.result(), wall_s, queue_ms
          )
        session.link.cancel(session.call.call_id)
      timed_out = not session.ended.done() and not reply.done()
      return await self._lost_result(
          session, request, timed_out, wall_s, queue_ms
      )
    finally:
      reply.cancel()

  def _cell_result(
      self,
      session: _Session,
      request: protocol.ExecuteRequest,
      reply: bytes,
      wall_s: float,
      queue_ms: float,
  ) -> protocol.ExecuteResult:
    code, compiled, has_value, cpu_s = cells.REPLY.unpack_from(reply)
    stdout, stderr = session.link.drain()
    status = Status.SUCCESS if code == 0 else Status.RUNTIME_ERROR
    if not compiled:
      status = Status.SYNTAX_ERROR
    value = None
    if has_value and code == 0:
      value = reply[cells.REPLY.size:].decode('utf-8', 'replace')
    return protocol.ExecuteResult(
        status=status, stdout=stdout.text(), stderr=stderr.text(),
        value=value, exit_code=code, wall_ms=round(1e3 * wall_s, 3),
        cpu_ms=round(1e3 * cpu_s, 3), queue_ms=round(queue_ms, 3),
        stdout_bytes=stdout.total, stderr_bytes=stderr.total,
        stdout_truncated=stdout.truncated, stderr_truncated=stderr.truncated,
        isolation=self._pool.isolation, tier=session.request.tier,
        node=self._scheduler.node, request_id=request.request_id,
    )

  async def _lost_result(
      self,
      session: _Session,
      request: protocol.ExecuteRequest,
      timed_out: bool,
      wall_s: float,
      queue_ms: float,
  ) -> protocol.ExecuteResult:
    """The answer to a cell with which the session ended."""
    if timed_out:
      session.link.cancel(session.call.call_id)
    await asyncio.wait((session.ended,), timeout=_END_TIMEOUT_S)
    try:
      if not session.ended.done():
        session.link.kill()
      outcome = await session.ended
    except slot_link.SlotDied as e:
      status = Status.TIMEOUT if timed_out else Status.SANDBOX_UNAVAILABLE
      return dataclasses.replace(
          results.refusal(
              status, f'session lost: {e}', request_id=request.request_id,
              isolation=self._pool.isolation, node=self._scheduler.node,
          ),
          session_lost=True, timeout_kind='wall' if timed_out else '',
      )
    if timed_out and not outcome.output_exceeded:
      outcome = dataclasses.replace(outcome, result=dataclasses.replace(
          outcome.result, reason=wire.REASON_WALL
      ))
    result = results.execute_result(
        dataclasses.replace(request, memory_mb=session.request.memory_mb),
        outcome, tier=session.request.tier, isolation=self._pool.isolation,
        node=self._scheduler.node, queue_ms=queue_ms,
    )
    message = result.message or 'the interpreter ended'
    return dataclasses.replace(
        result, session_lost=True, message=f'session lost: {message}',
        wall_ms=round(1e3 * wall_s, 3),
    )

  async def delete(self, session_id: str) -> bool:
    """Ends a session. False if there is none of this id."""
    if session_id not in self._sessions:
      return False
    self._close(session_id)
    return True

  def _close(self, session_id: str) -> None:
    session = self._sessions.pop(session_id, None)
    if session is None:
      return
    session.ended.cancel()
    session.cells_socket.close()
    # Its slot served one session; a new one costs less than proof of health.
    self._pool.discard(session.link)

  async def _sweep(self) -> None:
    while self._sessions:
      now = time.monotonic()
      for session_id, session in list(self._sessions.items()):
        idle_s = now - session.last_used
        if idle_s > session.request.idle_ttl_s or session.link.dead:
          logging.info('session ends after %.0f s idle', idle_s)
          self._close(session_id)
      await asyncio.sleep(_SWEEP_EVERY_S)

  def close(self) -> None:
    """Ends all sessions."""
    for session_id in list(self._sessions):
      self._close(session_id)


def _send_cell(
    link: socket.socket, request: protocol.ExecuteRequest
) -> None:
  source = request.code.encode('utf-8', 'replace')
  stdin = request.stdin.encode('utf-8', 'replace')
  flags, fds = 0, []
  if len(source) > wire.MAX_INLINE_BYTES:
    flags |= wire.CELL_CODE_FD
    fds.append(slot_link.sealed_file(source))
    source = b''
  if stdin:
    flags |= wire.CELL_STDIN_FD
    fds.append(slot_link.sealed_file(stdin))
  try:
    socket.send_fds(link, [bytes([flags]), source], fds)
  finally:
    for fd in fds:
      os.close(fd)
