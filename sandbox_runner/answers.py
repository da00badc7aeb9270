"""How results become HTTP responses."""

from __future__ import annotations

import asyncio
import json as json_lib
from typing import Any

from aiohttp import web

from sandbox_runner import protocol
from sandbox_runner import results

Status = protocol.Status

# Whoever sent the request can tell by the code alone whether to retry.
_HTTP_CODES = {
    Status.QUEUE_TIMEOUT: 429,
    Status.SANDBOX_UNAVAILABLE: 503,
    Status.INVALID_REQUEST: 422,
}


def json(body: Any, status: int = 200, **kwargs: Any) -> web.Response:
  """A JSON response."""
  return web.Response(
      body=json_lib.dumps(body).encode('utf-8', 'replace'), status=status,
      content_type='application/json', **kwargs,
  )


def result(outcome: protocol.ExecuteResult | protocol.VerifyResult) -> (
    web.Response
):
  """The response to a native call."""
  code = _HTTP_CODES.get(outcome.status, 200)
  headers = {'Retry-After': '1'} if code in (429, 503) else None
  return json(outcome.to_json(), code, headers=headers)


def invalid(
    error: protocol.InvalidRequest, request_id: str = ''
) -> protocol.ExecuteResult:
  """The answer to a request that breaks the schema."""
  return results.refusal(
      Status.INVALID_REQUEST, str(error), request_id=request_id
  )


def tenant_of(request: web.Request, named: str) -> str:
  """Who shares a turn: whom the request names, else its connection's peer."""
  return named or request.remote or ''


async def gather(coroutines: list) -> list:
  """Results in order; if cancelled, cancels all and waits for them."""
  tasks = [asyncio.ensure_future(c) for c in coroutines]
  try:
    return await asyncio.gather(*tasks)
  except BaseException:
    for task in tasks:
      task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    raise


def request_id_of(item: Any) -> str:
  """The request_id of an item that may break the schema."""
  request_id = item.get('request_id') if isinstance(item, dict) else None
  return request_id[:256] if isinstance(request_id, str) else ''


def batch_items(body: Any) -> list[Any]:
  """The items of {"requests": [...]}. Raises InvalidRequest."""
  if not isinstance(body, dict) or not isinstance(body.get('requests'), list):
    raise protocol.InvalidRequest('requests', 'expected an array')
  items = body['requests']
  if len(items) > protocol.MAX_BATCH_ITEMS:
    raise protocol.InvalidRequest(
        'requests', f'{len(items)} items, limit is {protocol.MAX_BATCH_ITEMS}'
    )
  return items
