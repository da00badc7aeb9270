"""Calls the sandbox runner: deadlines, retries of infrastructure errors only.

A policy error (exception, timeout, ...) is a result and returned as it is. An
infrastructure error (node gone, queue full) is retried until the deadline, then
returned with its own status, so that the episode can be masked out instead of
scored (P19). A call goes to the node with the fewest in flight; one that has
failed rests for a while, longer each time, unless all do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
import dataclasses
import random
import time
from typing import Any, Protocol

import aiohttp

from rstar2_jax import types
from sandbox_runner import protocol

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
_FIRST_REST_S = 0.5
_MAX_REST_S = 10.0
_CONNECT_TIMEOUT_S = 5.0


class ToolClient(Protocol):
  """Runs one program."""

  async def execute(self, code: str, stdin: str) -> types.ToolResult:
    """Runs `code` with `stdin`; returns a typed result, never raises."""


@dataclasses.dataclass
class _Node:
  url: str
  in_flight: int = 0
  rest_s: float = 0.0  # length of the last rest; 0 while all is well
  rest_until_s: float = 0.0  # monotonic clock

  def succeed(self) -> None:
    self.rest_s = self.rest_until_s = 0.0

  def fail(self) -> None:
    now_s = time.monotonic()
    # Calls that fail together are one failure.
    if now_s >= self.rest_until_s:
      self.rest_s = min(max(2 * self.rest_s, _FIRST_REST_S), _MAX_REST_S)
    self.rest_until_s = now_s + self.rest_s


class SandboxClient:
  """A ToolClient over one or several sandbox runners."""

  def __init__(
      self,
      urls: Sequence[str],
      *,
      timeout_s: float,
      cpu_timeout_s: float,
      memory_mb: int,
      deadline_s: float,
  ):
    self._nodes = [_Node(url.rstrip("/")) for url in urls]
    self._timeout_s = timeout_s
    self._cpu_timeout_s = cpu_timeout_s
    self._memory_mb = memory_mb
    self._deadline_s = deadline_s
    self._session: aiohttp.ClientSession | None = None
    self.num_retries = 0

  async def execute(self, code: str, stdin: str) -> types.ToolResult:
    """Runs one program within `deadline_s`, queue and retries included."""
    return await self._with_retries(
        lambda deadline: self._try_once(code, stdin, deadline))

  async def verify(self, answer: str, reference: str) -> bool | None:
    """Whether math-verify calls two answers equal, isolated and limited.

    Args:
      answer: LaTeX of a model.
      reference: LaTeX of the truth.

    Returns:
      The verdict, False for what cannot be read or takes too long; None if no
      node has answered within `deadline_s`.
    """
    result = await self._with_retries(
        lambda deadline: self._verify_once(answer, reference, deadline))
    return None if result.status.is_infra_error else result.value == "True"

  async def _with_retries(
      self, attempt: Callable[[float], Awaitable[types.ToolResult]]
  ) -> types.ToolResult:
    deadline = time.monotonic() + self._deadline_s
    backoff_s = _FIRST_BACKOFF_S
    while True:
      result = await attempt(deadline)
      remaining_s = deadline - time.monotonic()
      if not result.status.is_infra_error or remaining_s < 2 * backoff_s:
        return result
      self.num_retries += 1
      await asyncio.sleep(backoff_s * (0.5 + random.random()))
      backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

  async def close(self) -> None:
    """Closes the connections."""
    if self._session is not None:
      await self._session.close()

  async def check(self) -> None:
    """Raises ConnectionError naming the first node that does not answer."""
    for node in self._nodes:
      try:
        async with self._http().get(
            node.url + "/healthz", timeout=aiohttp.ClientTimeout(total=20)
        ) as response:
          if response.status != 200:
            raise ConnectionError(f"status {response.status}")
      except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as e:
        raise ConnectionError(
            f"sandbox runner {node.url} does not answer"
            f" ({str(e) or type(e).__name__}); start one with"
            " `python -m sandbox_runner --port PORT`") from e

  def _http(self) -> aiohttp.ClientSession:
    if self._session is None:
      self._session = aiohttp.ClientSession(
          connector=aiohttp.TCPConnector(limit=0))
    return self._session

  def _next_node(self) -> _Node:
    """The least busy node; of resting ones that whose rest ends first."""
    now_s = time.monotonic()
    return min(self._nodes, key=lambda n: (
        n.rest_until_s if n.rest_until_s > now_s else 0.0, n.in_flight))

  async def _try_once(
      self, code: str, stdin: str, deadline: float
  ) -> types.ToolResult:
    remaining_s = max(deadline - time.monotonic(), 0.01)
    return await self._post("/v1/execute", protocol.ExecuteRequest(
        code=code, stdin=stdin, timeout_s=self._timeout_s,
        cpu_timeout_s=self._cpu_timeout_s, memory_mb=self._memory_mb,
        deadline_s=remaining_s), remaining_s, lambda body: _from_protocol(
            protocol.ExecuteResult.from_json(body)))

  async def _verify_once(
      self, answer: str, reference: str, deadline: float
  ) -> types.ToolResult:
    remaining_s = max(deadline - time.monotonic(), 0.01)
    return await self._post("/v1/verify", protocol.VerifyRequest(
        answer=answer, reference=reference, deadline_s=remaining_s),
        remaining_s, lambda body: _from_verdict(
            protocol.VerifyResult.from_json(body)))

  async def _post(
      self, path: str, request: Any, remaining_s: float,
      parse: Callable[[Any], types.ToolResult],
  ) -> types.ToolResult:
    node = self._next_node()
    node.in_flight += 1
    try:
      async with self._http().post(
          node.url + path, json=request.to_json(),
          timeout=aiohttp.ClientTimeout(
              total=remaining_s, sock_connect=_CONNECT_TIMEOUT_S)
      ) as response:
        body = await response.json(content_type=None)
      result = parse(body)
      if result.status.is_infra_error:
        node.fail()
      else:
        node.succeed()
      return result
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError,
            KeyError) as e:
      node.fail()
      return types.ToolResult(
          status=types.ToolStatus.SANDBOX_UNAVAILABLE,
          message=f"{node.url}: {type(e).__name__}: {e}")
    finally:
      node.in_flight -= 1


def _from_verdict(result: protocol.VerifyResult) -> types.ToolResult:
  return types.ToolResult(
      status=types.ToolStatus(str(result.status)), value=str(result.equal),
      message=result.message or "")


def _from_protocol(result: protocol.ExecuteResult) -> types.ToolResult:
  return types.ToolResult(
      status=types.ToolStatus(str(result.status)),
      stdout=result.stdout,
      stderr=result.stderr,
      value=result.value or "",
      message=result.message or "",
      exit_code=result.exit_code,
      signal=result.signal,
      wall_ms=result.wall_ms,
      cpu_ms=result.cpu_ms,
      queue_ms=result.queue_ms,
      truncated=result.stdout_truncated or result.stderr_truncated)
