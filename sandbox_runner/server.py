"""The HTTP front-end: native routes, and how the server starts and stops."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
from typing import Any

from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import code_judge
from sandbox_runner import front_ends
from sandbox_runner import pool as pool_lib
from sandbox_runner import protocol
from sandbox_runner import results
from sandbox_runner import sandbox_fusion
from sandbox_runner import scheduler as scheduler_lib
from sandbox_runner import session_routes
from sandbox_runner import sessions as sessions_lib
from sandbox_runner import verify_routes

Status = protocol.Status
SCHEDULER = web.AppKey('scheduler', scheduler_lib.Scheduler)

BACKLOG = 4096
_MAX_BODY_BYTES = 64 << 20
# For calls that run when the server is told to end.
_SHUTDOWN_TIMEOUT_S = 2.0
_CANARY = protocol.ExecuteRequest(
    code='print(6 * 7)', timeout_s=10.0, tenant='(canary)'
)


async def execute(request: web.Request) -> web.Response:
  """POST /v1/execute."""
  try:
    call = protocol.ExecuteRequest.from_json(
        protocol.decode_json(await request.read())
    )
  except protocol.InvalidRequest as e:
    return answers.result(answers.invalid(e))
  call = dataclasses.replace(
      call, tenant=answers.tenant_of(request, call.tenant)
  )
  return answers.result(await request.app[SCHEDULER].execute(call))


async def execute_batch(request: web.Request) -> web.Response:
  """POST /v1/execute_batch: {"requests": [...]} -> {"results": [...]}."""
  try:
    items = answers.batch_items(protocol.decode_json(await request.read()))
  except protocol.InvalidRequest as e:
    return answers.result(answers.invalid(e))
  scheduler = request.app[SCHEDULER]

  async def run(item: Any) -> dict[str, Any]:
    try:
      call = protocol.ExecuteRequest.from_json(item)
    except protocol.InvalidRequest as e:
      return answers.invalid(e, answers.request_id_of(item)).to_json()
    call = dataclasses.replace(
        call, tenant=answers.tenant_of(request, call.tenant)
    )
    return (await scheduler.execute(call)).to_json()

  done = await answers.gather([run(item) for item in items])
  return answers.json({'results': done})


async def healthz(request: web.Request) -> web.Response:
  """GET /healthz: runs a canary through a slot."""
  result = await run_canary(request.app[SCHEDULER])
  body = {'status': 'ok', 'isolation': result.isolation, 'node': result.node}
  if result.status is Status.SUCCESS and result.stdout == '42\n':
    return answers.json(body)
  body |= {'status': result.status, 'message': result.message}
  return answers.json(body, 503)


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
      'sandbox_sessions': len(request.app[session_routes.SESSIONS]),
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
  """What aiohttp refuses and what we fail at is answered in our schema too."""
  try:
    return await handler(request)
  except web.HTTPRequestEntityTooLarge:
    error = protocol.InvalidRequest(
        '', f'body is larger than {_MAX_BODY_BYTES} bytes'
    )
    return answers.json(answers.invalid(error).to_json(), 413)
  except web.HTTPException:
    raise
  except Exception as e:
    logging.exception('internal error')
    return answers.result(results.refusal(
        Status.SANDBOX_UNAVAILABLE, f'internal error: {type(e).__name__}'
    ))


def make_app(
    scheduler: scheduler_lib.Scheduler,
    *,
    max_sessions: int,
    foreign_timeout_s: float,
    peers: front_ends.Peers | None = None,
) -> web.Application:
  """The application over a scheduler.

  Args:
    scheduler: runs the calls.
    max_sessions: sessions that may be open.
    foreign_timeout_s: wall limit where code-judge or SandboxFusion name none.
    peers: the other front-ends on the port, if there are any.
  """
  middlewares = [_errors_as_results]
  if peers is not None:
    middlewares += [peers.pass_on, peers.join_metrics]
  app = web.Application(
      client_max_size=_MAX_BODY_BYTES, middlewares=middlewares
  )
  app[SCHEDULER] = scheduler
  app[session_routes.SESSIONS] = sessions_lib.Sessions(
      scheduler, max_sessions=max_sessions,
      id_prefix=peers.session_prefix() if peers else '',
  )
  app.on_cleanup.append(_close_sessions)
  if peers is not None:
    app.on_cleanup.append(peers.close)
  app.add_routes([
      web.post('/v1/execute', execute),
      web.post('/v1/execute_batch', execute_batch),
      web.get('/healthz', healthz),
      web.get('/metrics', show_metrics),
      *session_routes.routes(),
      *verify_routes.routes(scheduler),
      *code_judge.CodeJudge(scheduler, timeout_s=foreign_timeout_s).routes(),
      *sandbox_fusion.SandboxFusion(
          scheduler, timeout_s=foreign_timeout_s
      ).routes(),
  ])
  return app


async def _close_sessions(app: web.Application) -> None:
  app[session_routes.SESSIONS].close()


def bind(
    host: str, port: int, reuse_port: bool, *, probe: bool = True
) -> socket.socket:
  """A bound socket that does not listen yet. Raises OSError.

  Args:
    host: address.
    port: 0 picks a free one.
    reuse_port: let others of this server bind the same port.
    probe: refuse a port that another server holds, even if that one would
      share it.
  """
  family = socket.AF_INET6 if ':' in host else socket.AF_INET
  if reuse_port and probe and port:
    with socket.socket(family, socket.SOCK_STREAM) as other:
      other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
      other.bind((host, port))
      other.listen()
  sock = socket.socket(family, socket.SOCK_STREAM)
  try:
    option = socket.SO_REUSEPORT if reuse_port else socket.SO_REUSEADDR
    sock.setsockopt(socket.SOL_SOCKET, option, 1)
    sock.bind((host, port))
  except OSError:
    sock.close()
    raise
  return sock


async def serve(
    app: web.Application, sockets: list[socket.socket]
) -> web.AppRunner:
  """Starts answering on listening sockets."""
  runner = web.AppRunner(
      app, handler_cancellation=True, access_log=None,
      shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
  )
  await runner.setup()
  for sock in sockets:
    await web.SockSite(runner, sock, backlog=BACKLOG).start()
  return runner


async def warm(pool: pool_lib.Pool, tiers: tuple[str, ...]) -> None:
  """Starts zygotes one after another, so that they do not crowd out calls."""
  for tier in tiers:
    try:
      await pool.zygote(tier)
    except pool_lib.Unavailable:
      pass  # the calls that need it will say so
