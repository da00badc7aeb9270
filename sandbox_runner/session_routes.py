"""HTTP routes of sessions."""

from __future__ import annotations

import dataclasses

from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import protocol
from sandbox_runner import results
from sandbox_runner import scheduler as scheduler_lib
from sandbox_runner import sessions as sessions_lib

Status = protocol.Status
SESSIONS = web.AppKey('sessions', sessions_lib.Sessions)


async def create(request: web.Request) -> web.Response:
  """POST /v1/sessions -> {"session_id": ...}."""
  body = await request.read()
  try:
    wanted = protocol.SessionRequest.from_json(
        protocol.decode_json(body) if body.strip() else {}
    )
  except protocol.InvalidRequest as e:
    return answers.result(answers.invalid(e))
  try:
    session_id = await request.app[SESSIONS].create(wanted)
  except scheduler_lib.Refused as e:
    return answers.result(results.refusal(e.status, str(e)))
  return answers.json({'session_id': session_id, 'tier': wanted.tier})


async def execute(request: web.Request) -> web.Response:
  """POST /v1/sessions/ID/exec, with the fields of /v1/execute."""
  try:
    cell = protocol.ExecuteRequest.from_json(
        protocol.decode_json(await request.read())
    )
  except protocol.InvalidRequest as e:
    return answers.result(answers.invalid(e))
  session_id = request.match_info['session_id']
  cell = dataclasses.replace(
      cell, tenant=answers.tenant_of(request, cell.tenant)
  )
  result = await request.app[SESSIONS].execute(session_id, cell)
  if result is None:
    return answers.json(no_session(cell.request_id).to_json(), 404)
  return answers.result(result)


async def delete(request: web.Request) -> web.Response:
  """DELETE /v1/sessions/ID."""
  if await request.app[SESSIONS].delete(request.match_info['session_id']):
    return answers.json({'deleted': True})
  return answers.json(no_session('').to_json(), 404)


def no_session(request_id: str) -> protocol.ExecuteResult:
  """The answer to a request for a session that is gone."""
  return dataclasses.replace(
      results.refusal(
          Status.SANDBOX_UNAVAILABLE,
          'no such session: deleted, idle too long, or lost',
          request_id=request_id,
      ),
      session_lost=True,
  )


def routes() -> list[web.RouteDef]:
  """The routes of this module."""
  return [
      web.post('/v1/sessions', create),
      web.post('/v1/sessions/{session_id}/exec', execute),
      web.delete('/v1/sessions/{session_id}', delete),
  ]
