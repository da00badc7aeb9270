"""The HTTP front-end: native routes, and how the server starts and stops."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from typing import Any

from aiohttp import web

from sandbox_runner import pool as pool_lib
from sandbox_runner import protocol
from sandbox_runner import results
from sandbox_runner import scheduler as scheduler_lib

Status = protocol.Status
SCHEDULER = web.AppKey('scheduler', scheduler_lib.Scheduler)

_MAX_BODY_BYTES = 64 << 20
_CANARY = protocol.ExecuteRequest(
    code='print(6 * 7)', timeout_s=10.0, tenant='(canary)'
)
# Whoever sent the request can tell by the code alone whether to retry.
_HTTP_CODES = {
    Status.QUEUE_TIMEOUT: 429,
    Status.SANDBOX_UNAVAILABLE: 503,
    Status.INVALID_REQUEST: 422,
}


def json_answer(body: Any, status: int = 200, **kwargs: Any) -> web.Response:
  """A JSON response."""
  return web.Response(
      body=json.dumps(body).encode('utf-8', 'replace'), status=status,
      content_type='application/json', **kwargs,
  )


def _answer(result: protocol.ExecuteResult) -> web.Response:
  code = _HTTP_CODES.get(result.status, 200)
  headers = {'Retry-After': '1'} if code in (429, 503) else None
  return json_answer(result.to_json(), code, headers=headers)


def invalid(error: protocol.InvalidRequest, request_id: str = '') -> (
    protocol.ExecuteResult
):
  """The answer to a request that breaks the schema."""
  return results.refusal(
      Status.INVALID_REQUEST, str(error), request_id=request_id
  )


def tenant_of(request: web.Request, named: str) -> str:
  """Who shares a turn: whom the request names, else its connection's peer."""
  return named or request.remote or ''


async def execute(request: web.Request) -> web.Response:
  """POST /v1/execute."""
  try:
    call = protocol.ExecuteRequest.from_json(
        protocol.decode_json(await request.read())
    )
  except protocol.InvalidRequest as e:
    return _answer(invalid(e))
  call = dataclasses.replace(call, tenant=tenant_of(request, call.tenant))
  return _answer(await request.app[SCHEDULER].execute(call))


async def execute_batch(request: web.Request) -> web.Response:
  """POST /v1/execute_batch: {"requests": [...]} -> {"results": [...]}."""
  try:
    items = _batch_items(protocol.decode_json(await request.read()))
  except protocol.InvalidRequest as e:
    return _answer(invalid(e))
  scheduler = request.app[SCHEDULER]

  async def run(item: Any) -> dict[str, Any]:
    try:
      call = protocol.ExecuteRequest.from_json(item)
    except protocol.InvalidRequest as e:
      return invalid(e, _request_id(item)).to_json()
    call = dataclasses.replace(call, tenant=tenant_of(request, call.tenant))
    return (await scheduler.execute(call)).to_json()

  answers = await gather([run(item) for item in items])
  return json_answer({'results': answers})


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


def _request_id(item: Any) -> str:
  request_id = item.get('request_id') if isinstance(item, dict) else None
  return request_id[:256] if isinstance(request_id, str) else ''


def _batch_items(body: Any) -> list[Any]:
  if not isinstance(body, dict) or not isinstance(body.get('requests'), list):
    raise protocol.InvalidRequest('requests', 'expected an array')
  items = body['requests']
  if len(items) > protocol.MAX_BATCH_ITEMS:
    raise protocol.InvalidRequest(
        'requests', f'{len(items)} items, limit is {protocol.MAX_BATCH_ITEMS}'
    )
  return items


async def healthz(request: web.Request) -> web.Response:
  """GET /healthz: runs a canary through a slot."""
  result = await run_canary(request.app[SCHEDULER])
  body = {'status': 'ok', 'isolation': result.isolation, 'node': result.node}
  if result.status is Status.SUCCESS and result.stdout == '42\n':
    return json_answer(body)
  body |= {'status': result.status, 'message': result.message}
  return json_answer(body, 503)


async def run_canary(
    scheduler: scheduler_lib.Scheduler,
) -> protocol.ExecuteResult:
  """Runs a known program."""
  return await scheduler.execute(_CANARY)


async def show_metrics(request: web.Request) -> web.Response:
  """GET /metrics."""
  scheduler = request.app[SCHEDULER]
  pool = scheduler.pool
  gauges = {
      'sandbox_running': scheduler.num_running,
      'sandbox_queued': scheduler.num_queued,
      'sandbox_expected_wait_seconds': scheduler.expected_wait_s(),
      'sandbox_slots_started': pool.num_slots_started,
      'sandbox_slots_ended': pool.num_slots_died,
      'sandbox_open_descriptors': len(os.listdir('/proc/self/fd')),
  }
  for tier, counts in pool.counts().items():
    for state, count in counts.items():
      gauges[f'sandbox_slots{{tier="{tier}",state="{state}"}}'] = count
  text = scheduler.metrics.text(gauges, pool.isolation)
  return web.Response(text=text, content_type='text/plain')


@web.middleware
async def _errors_as_results(request: web.Request, handler) -> (
    web.StreamResponse
):
  """Bodies that aiohttp itself refuses are answered in our schema too."""
  try:
    return await handler(request)
  except web.HTTPRequestEntityTooLarge:
    error = protocol.InvalidRequest(
        '', f'body is larger than {_MAX_BODY_BYTES} bytes'
    )
    return json_answer(invalid(error).to_json(), 413)


def make_app(scheduler: scheduler_lib.Scheduler) -> web.Application:
  """The application over a scheduler."""
  app = web.Application(
      client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_results]
  )
  app[SCHEDULER] = scheduler
  app.add_routes([
      web.post('/v1/execute', execute),
      web.post('/v1/execute_batch', execute_batch),
      web.get('/healthz', healthz),
      web.get('/metrics', show_metrics),
  ])
  return app


def listen(host: str, port: int, *, reuse_port: bool) -> socket.socket:
  """A listening socket. Raises OSError."""
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  sock = socket.socket(family, socket.SOCK_STREAM)
  try:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
      sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    sock.listen(4096)
  except OSError:
    sock.close()
    raise
  return sock


async def serve(app: web.Application, sock: socket.socket) -> web.AppRunner:
  """Starts answering on a socket."""
  runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
  await runner.setup()
  await web.SockSite(runner, sock, backlog=4096).start()
  return runner


async def warm(pool: pool_lib.Pool, tiers: tuple[str, ...]) -> None:
  """Starts zygotes one after another, so that they do not crowd out calls."""
  for tier in tiers:
    try:
      await pool.zygote(tier)
    except pool_lib.Unavailable:
      pass  # the calls that need it will say so
