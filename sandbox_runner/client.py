"""Calls sandbox runners: deadlines, retries, several nodes with failover.

    async with client.AsyncClient(['http://127.0.0.1:8088']) as sandbox:
      result = await sandbox.run('print(6 * 7)', timeout_s=4)

    with client.Client(['http://127.0.0.1:8088']) as sandbox:
      result = sandbox.run('print(6 * 7)')

What a program did is a result, whatever it did. Only infrastructure errors (a
node that is gone or full) are tried again, on the node with the fewest calls
in flight, as long as the deadline and the number of attempts allow; then the
last of them is the result. Nothing is raised but `protocol.InvalidRequest`,
and `SessionLost` for sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
import concurrent.futures
import dataclasses
import threading
import time
from typing import Any, TypeVar

from sandbox_runner import nodes as nodes_lib
from sandbox_runner import protocol

T = TypeVar('T')
Status = protocol.Status
Policy = nodes_lib.Policy

_MAX_BATCH_ITEMS = 100


class SessionLost(Exception):
  """A session is gone, with its state. Make another and replay its cells.

  Attributes:
    result: the answer to the cell with which it ended.
  """

  def __init__(self, result: protocol.ExecuteResult):
    super().__init__(result.message)
    self.result = result


class AsyncClient:
  """A client for one event loop."""

  def __init__(self, urls: Sequence[str], policy: Policy = Policy()):
    self._nodes = nodes_lib.Nodes(urls, policy)
    self._policy = policy
    self.num_retries = 0

  async def __aenter__(self) -> AsyncClient:
    return self

  async def __aexit__(self, *error: Any) -> None:
    await self.close()

  async def close(self) -> None:
    """Closes all connections."""
    await self._nodes.close()

  async def run(self, code: str, **fields: Any) -> protocol.ExecuteResult:
    """Runs a program; fields as in protocol.ExecuteRequest."""
    return await self.execute(protocol.ExecuteRequest(code=code, **fields))

  async def execute(
      self, request: protocol.ExecuteRequest
  ) -> protocol.ExecuteResult:
    """Runs one program."""
    return (await self._with_retries(
        [request], '/v1/execute', protocol.ExecuteResult
    ))[0]

  async def execute_batch(
      self, requests: Sequence[protocol.ExecuteRequest]
  ) -> list[protocol.ExecuteResult]:
    """Runs programs at the same time; results in their order.

    They travel in groups, which costs less than one request each; only the
    items that met an infrastructure error are sent again.
    """
    groups = [
        list(requests[i:i + _MAX_BATCH_ITEMS])
        for i in range(0, len(requests), _MAX_BATCH_ITEMS)
    ]
    results = await asyncio.gather(*(
        self._with_retries(
            group, '/v1/execute_batch', protocol.ExecuteResult
        )
        for group in groups
    ))
    return [result for group in results for result in group]

  async def verify(
      self, answer: str, reference: str, **fields: Any
  ) -> protocol.VerifyResult:
    """Compares an answer; fields as in protocol.VerifyRequest."""
    request = protocol.VerifyRequest(
        answer=answer, reference=reference, **fields
    )
    return (await self._with_retries(
        [request], '/v1/verify', protocol.VerifyResult
    ))[0]

  async def create_session(
      self, request: protocol.SessionRequest = protocol.SessionRequest()
  ) -> AsyncSession:
    """Starts a stateful interpreter on the node with the fewest calls.

    Raises ConnectionError if no node gives one before the deadline.
    """
    end = time.monotonic() + self._policy.deadline_s
    backoff = nodes_lib.Backoff()
    for _ in range(self._policy.max_attempts):
      node = self._nodes.choose()
      try:
        body = await self._nodes.post(
            node, '/v1/sessions', request.to_json(), end - time.monotonic()
        )
        if 'session_id' in body:
          return AsyncSession(self._nodes, node, body['session_id'])
        why = body.get('message', '')
        if body.get('status') == Status.INVALID_REQUEST:
          raise protocol.InvalidRequest('', why)
      except protocol.InvalidRequest:
        raise
      except nodes_lib.ERRORS as e:
        why = self._nodes.note_failure(node, e)
      if not await backoff.wait(end):
        break
    raise ConnectionError(f'no session: {why}')

  async def check(self) -> None:
    """Raises ConnectionError naming the first node that is not healthy."""
    await self._nodes.check()

  async def _with_retries(
      self, requests: list, path: str, result_type: Any
  ) -> list:
    """Sends what still lacks an answer, until nothing does."""
    start = time.monotonic()
    ends = [
        start + (r.deadline_s or self._policy.deadline_s) for r in requests
    ]
    results: list = [None] * len(requests)
    pending = list(range(len(requests)))
    backoff = nodes_lib.Backoff()
    for attempt in range(self._policy.max_attempts):
      now = time.monotonic()
      sent = [
          dataclasses.replace(
              requests[i], deadline_s=max(ends[i] - now, 1e-3)
          )
          for i in pending
      ]
      answers = await self._try_once(sent, path, result_type)
      for i, answer in zip(pending, answers, strict=True):
        results[i] = answer
      pending = [
          i for i in pending if results[i].status.is_infrastructure
      ]
      if not pending or attempt + 1 == self._policy.max_attempts:
        break
      if not await backoff.wait(max(ends[i] for i in pending)):
        break
      self.num_retries += len(pending)
    return results

  async def _try_once(
      self, requests: list, path: str, result_type: Any
  ) -> list:
    node = self._nodes.choose()
    one = not path.endswith('_batch')
    body = requests[0].to_json() if one else {
        'requests': [request.to_json() for request in requests]
    }
    # Servers answer by the deadline; the rest is for the way.
    timeout_s = 1.0 + max(request.deadline_s for request in requests)
    try:
      answer = await self._nodes.post(
          node, path, body, timeout_s, weight=len(requests)
      )
      if one:
        return [result_type.from_json(answer)]
      if answer.get('status') == Status.INVALID_REQUEST:
        return [result_type.from_json(answer)] * len(requests)
      results = [result_type.from_json(item) for item in answer['results']]
      if len(results) != len(requests):
        raise ValueError(f'{len(results)} results for {len(requests)}')
      return results
    except (*nodes_lib.ERRORS, KeyError) as e:
      message = self._nodes.note_failure(node, e)
      return [
          result_type(
              status=Status.SANDBOX_UNAVAILABLE, message=message,
              request_id=request.request_id,
          )
          for request in requests
      ]

class AsyncSession:
  """A stateful interpreter on one node."""

  def __init__(
      self, nodes: nodes_lib.Nodes, node: nodes_lib.Node, session_id: str
  ):
    self._nodes = nodes
    self._node = node
    self.session_id = session_id

  async def run(self, code: str, **fields: Any) -> protocol.ExecuteResult:
    """Runs a cell; fields as in protocol.ExecuteRequest.

    Never sent twice: a cell may have changed the state before the node was
    lost. Raises SessionLost when the session has ended.
    """
    request = protocol.ExecuteRequest(code=code, **fields)
    deadline_s = request.deadline_s or (
        self._nodes.policy.deadline_s + request.timeout_s
    )
    path = f'/v1/sessions/{self.session_id}/exec'
    try:
      result = protocol.ExecuteResult.from_json(await self._nodes.post(
          self._node, path, request.to_json(), deadline_s + 1.0
      ))
    except nodes_lib.ERRORS as e:
      result = protocol.ExecuteResult(
          status=Status.SANDBOX_UNAVAILABLE, session_lost=True,
          message=self._nodes.note_failure(self._node, e),
      )
    if result.session_lost:
      raise SessionLost(result)
    return result

  async def close(self) -> None:
    """Ends the session; of no effect if it has ended."""
    try:
      await self._nodes.post(
          self._node, f'/v1/sessions/{self.session_id}', {}, 10.0,
          method='DELETE',
      )
    except nodes_lib.ERRORS:
      pass


class Client:
  """A client for programs without an event loop; may be used by threads."""

  def __init__(self, urls: Sequence[str], policy: Policy = Policy()):
    self._client = AsyncClient(urls, policy)
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
        target=self._loop.run_forever, name='sandbox client', daemon=True
    )
    self._thread.start()

  def __enter__(self) -> Client:
    return self

  def __exit__(self, *error: Any) -> None:
    self.close()

  @property
  def num_retries(self) -> int:
    """Calls that were sent again."""
    return self._client.num_retries

  def _wait(self, work: Coroutine[Any, Any, T]) -> T:
    future: concurrent.futures.Future = asyncio.run_coroutine_threadsafe(
        work, self._loop
    )
    try:
      return future.result()
    except BaseException:  # e.g. Ctrl-C: then the call must not go on
      future.cancel()
      raise

  def run(self, code: str, **fields: Any) -> protocol.ExecuteResult:
    """See AsyncClient.run."""
    return self._wait(self._client.run(code, **fields))

  def execute(
      self, request: protocol.ExecuteRequest
  ) -> protocol.ExecuteResult:
    """See AsyncClient.execute."""
    return self._wait(self._client.execute(request))

  def execute_batch(
      self, requests: Sequence[protocol.ExecuteRequest]
  ) -> list[protocol.ExecuteResult]:
    """See AsyncClient.execute_batch."""
    return self._wait(self._client.execute_batch(requests))

  def verify(
      self, answer: str, reference: str, **fields: Any
  ) -> protocol.VerifyResult:
    """See AsyncClient.verify."""
    return self._wait(self._client.verify(answer, reference, **fields))

  def create_session(
      self, request: protocol.SessionRequest = protocol.SessionRequest()
  ) -> Session:
    """See AsyncClient.create_session."""
    made = self._wait(self._client.create_session(request))
    return Session(made, self._wait)

  def check(self) -> None:
    """See AsyncClient.check."""
    self._wait(self._client.check())

  def close(self) -> None:
    """Closes all connections."""
    if self._loop.is_closed():
      return
    self._wait(self._client.close())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()


class Session:
  """See AsyncSession."""

  def __init__(
      self, session: AsyncSession,
      wait: Callable[[Coroutine[Any, Any, Any]], Any],
  ):
    self._session = session
    self._wait = wait

  @property
  def session_id(self) -> str:
    """What the server calls it."""
    return self._session.session_id

  def run(self, code: str, **fields: Any) -> protocol.ExecuteResult:
    """See AsyncSession.run."""
    return self._wait(self._session.run(code, **fields))

  def close(self) -> None:
    """See AsyncSession.close."""
    self._wait(self._session.close())
