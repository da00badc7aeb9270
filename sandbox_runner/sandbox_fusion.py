"""SandboxFusion's `/run_code`, with its field names and its retry signal.

verl's client retries HTTP 504 and nothing else, so a call that may be retried
is answered with 504 and Retry-After.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import protocol
from sandbox_runner import scheduler as scheduler_lib

Status = protocol.Status

_RETRY = (Status.QUEUE_TIMEOUT, Status.CANCELLED)


class SandboxFusion:
  """The routes over a scheduler."""

  def __init__(
      self, scheduler: scheduler_lib.Scheduler, *, timeout_s: float
  ):
    self._scheduler = scheduler
    self._timeout_s = timeout_s

  def routes(self) -> list[web.RouteDef]:
    """`/run_code` and `/v1/ping`."""
    return [
        web.post('/run_code', self._run_code), web.get('/v1/ping', self._ping),
    ]

  async def _ping(self, request: web.Request) -> web.Response:
    return answers.json('pong')

  async def _run_code(self, request: web.Request) -> web.Response:
    try:
      call = self._call(
          protocol.decode_json(await request.read()), request.remote or ''
      )
    except protocol.InvalidRequest as e:
      return answers.json({'detail': str(e)}, 422)
    result = await self._scheduler.execute(call)
    if result.status in _RETRY:
      return answers.json(
          {'detail': result.message}, 504, headers={'Retry-After': '1'}
      )
    return answers.json(_answer(result))

  def _call(self, body: Any, peer: str) -> protocol.ExecuteRequest:
    if not isinstance(body, dict):
      raise protocol.InvalidRequest('', 'expected an object')
    if body.get('language') != 'python':
      raise protocol.InvalidRequest('language', 'only python is supported')
    if body.get('files') or body.get('fetch_files'):
      raise protocol.InvalidRequest(
          'files', 'files are not supported; put their text into the code'
      )
    memory_mb = body.get('memory_limit_MB')
    call = {
        'code': body.get('code'), 'stdin': body.get('stdin'),
        'timeout_s': body.get('run_timeout') or self._timeout_s,
        'tenant': peer[:256],
    }
    if isinstance(memory_mb, int) and memory_mb > 0:
      call['memory_mb'] = memory_mb
    return protocol.ExecuteRequest.from_json(call)


def _answer(result: protocol.ExecuteResult) -> dict[str, Any]:
  status, run_status, code = 'Failed', 'Finished', result.exit_code
  message = result.message
  if result.status is Status.SUCCESS:
    status = 'Success'
  elif result.status is Status.SANDBOX_UNAVAILABLE:
    status, run_status = 'SandboxError', 'Error'
  elif result.status is Status.TIMEOUT:
    run_status, code = 'TimeLimitExceeded', None
  elif result.status is Status.MEMORY_LIMIT:
    code = 137 if result.signal else code
  elif result.signal:
    code = -result.signal
  return {
      'status': status,
      'message': message,
      'compile_result': None,
      'run_result': {
          'status': run_status,
          'execution_time': result.wall_ms / 1e3,
          'return_code': code,
          'stdout': result.stdout,
          'stderr': result.stderr,
      },
      'executor_pod_name': result.node or None,
      'files': {},
  }
