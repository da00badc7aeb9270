"""The servers that a client knows: which to ask next, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import dataclasses
import random
import time
from typing import Any

import aiohttp

from sandbox_runner import protocol

Status = protocol.Status

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 2.0
# How long a node that failed is tried only if no other is left.
_AVOID_S = 5.0
_HEALTH_TIMEOUT_S = 20.0
# What a lost or broken node looks like from here.
ERRORS = (
    aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError
)


@dataclasses.dataclass(frozen=True)
class Policy:
  """How long and how often.

  Attributes:
    deadline_s: for a call with all its attempts, where its request names none.
    max_attempts: of one call.
    connect_timeout_s: until a node counts as gone.
    max_connections: open at a time to all nodes; more calls wait for one.
  """

  deadline_s: float = 300.0
  max_attempts: int = 20
  connect_timeout_s: float = 5.0
  max_connections: int = 4096


class Node:
  """One server, and what is known of it."""

  def __init__(self, url: str):
    self.url = url.rstrip('/')
    self.in_flight = 0
    self.avoid_until = 0.0

  def rank(self) -> tuple[bool, int, float]:
    """Least is best; equals are drawn."""
    avoided = time.monotonic() < self.avoid_until
    return avoided, self.in_flight, random.random()


class Nodes:
  """All servers of one client, and its connections to them."""

  def __init__(self, urls: Sequence[str], policy: Policy):
    if not urls:
      raise ValueError('urls: at least one is needed')
    self.policy = policy
    self._nodes = [Node(url) for url in urls]
    self._http: aiohttp.ClientSession | None = None

  def choose(self) -> Node:
    """The node with the fewest calls of ours, if possible one that works."""
    return min(self._nodes, key=Node.rank)

  async def close(self) -> None:
    """Closes all connections."""
    if self._http is not None:
      await self._http.close()

  async def check(self) -> None:
    """Raises ConnectionError naming the first node that is not healthy."""
    for node in self._nodes:
      try:
        async with self._session().get(
            f'{node.url}/healthz',
            timeout=aiohttp.ClientTimeout(total=_HEALTH_TIMEOUT_S),
        ) as answer:
          text = await answer.text()
      except ERRORS as e:
        raise ConnectionError(self.note_failure(node, e)) from None
      if answer.status != 200:
        raise ConnectionError(f'{node.url}: {text}')

  def note_failure(self, node: Node, error: Exception) -> str:
    """Avoids a node for a while. The error as one line."""
    node.avoid_until = time.monotonic() + _AVOID_S
    return f'{node.url}: {str(error) or type(error).__name__}'

  def _session(self) -> aiohttp.ClientSession:
    if self._http is None:
      self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(
          limit=self.policy.max_connections
      ))
    return self._http

  async def post(
      self,
      node: Node,
      path: str,
      body: dict[str, Any],
      timeout_s: float,
      *,
      method: str = 'POST',
      weight: int = 1,
  ) -> dict[str, Any]:
    """The decoded answer, whatever its code. Raises ERRORS."""
    node.in_flight += weight
    try:
      async with self._session().request(
          method, node.url + path, json=body, timeout=aiohttp.ClientTimeout(
              total=max(timeout_s, 1e-3),
              sock_connect=self.policy.connect_timeout_s,
          ),
      ) as answer:
        decoded = await answer.json(content_type=None)
    finally:
      node.in_flight -= weight
    if not isinstance(decoded, dict):
      raise ValueError(f'HTTP {answer.status} without an object')
    if decoded.get('status') == Status.SANDBOX_UNAVAILABLE:
      node.avoid_until = time.monotonic() + _AVOID_S
    return decoded


class Backoff:
  """Growing pauses, with chance in them so that clients do not march."""

  def __init__(self):
    self._next_s = _FIRST_BACKOFF_S

  async def wait(self, end: float) -> bool:
    """Pauses. False, at once, if the pause would pass the end."""
    pause_s = self._next_s * (0.5 + random.random())
    self._next_s = min(2 * self._next_s, _MAX_BACKOFF_S)
    if time.monotonic() + pause_s >= end:
      return False
    await asyncio.sleep(pause_s)
    return True
