"""HTTP routes of answer verification."""

from __future__ import annotations

import dataclasses
from typing import Any

from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import protocol
from sandbox_runner import scheduler as scheduler_lib
from sandbox_runner import verification


def routes(scheduler: scheduler_lib.Scheduler) -> list[web.RouteDef]:
  """The routes of this module."""

  async def compare(request: web.Request, item: Any) -> (
      protocol.VerifyResult
  ):
    try:
      wanted = protocol.VerifyRequest.from_json(item)
    except protocol.InvalidRequest as e:
      return protocol.VerifyResult(
          status=protocol.Status.INVALID_REQUEST, message=str(e),
          request_id=answers.request_id_of(item),
      )
    tenant = answers.tenant_of(request, wanted.tenant)
    return await verification.verify(
        scheduler, dataclasses.replace(wanted, tenant=tenant)
    )

  async def verify(request: web.Request) -> web.Response:
    """POST /v1/verify."""
    try:
      item = protocol.decode_json(await request.read())
    except protocol.InvalidRequest as e:
      return answers.result(answers.invalid(e))
    return answers.result(await compare(request, item))

  async def verify_batch(request: web.Request) -> web.Response:
    """POST /v1/verify_batch: {"requests": [...]} -> {"results": [...]}."""
    try:
      items = answers.batch_items(
          protocol.decode_json(await request.read())
      )
    except protocol.InvalidRequest as e:
      return answers.result(answers.invalid(e))
    done = await answers.gather([compare(request, item) for item in items])
    return answers.json({'results': [result.to_json() for result in done]})

  return [
      web.post('/v1/verify', verify),
      web.post('/v1/verify_batch', verify_batch),
  ]
