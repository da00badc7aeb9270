"""code-judge's HTTP routes, with its field names and its retry signals.

rStar's client posts `/run/long-batch` and sends again the items whose reason
is `queue_timeout`; so every call that may be retried answers so.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import protocol
from sandbox_runner import scheduler as scheduler_lib

Status = protocol.Status

_MAX_CHARS = 1000  # code-judge's default for what it sends back per stream
_REASONS = {
    Status.TIMEOUT: 'worker_timeout',
    Status.QUEUE_TIMEOUT: 'queue_timeout',
    Status.CANCELLED: 'queue_timeout',
    Status.SANDBOX_UNAVAILABLE: 'internal_error',
    Status.INVALID_REQUEST: 'invalid_input',
}
_FIELDS = ('type', 'solution', 'input', 'expected_output', 'sub_id', 'options')


class CodeJudge:
  """The routes over a scheduler."""

  def __init__(
      self, scheduler: scheduler_lib.Scheduler, *, timeout_s: float
  ):
    self._scheduler = scheduler
    self._timeout_s = timeout_s

  def routes(self) -> list[web.RouteDef]:
    """`/run*` with the streams, `/judge*` without."""
    routes = [
        web.get('/ping', self._ping), web.get('/status', self._status),
    ]
    for name, full in (('run', True), ('judge', False)):
      routes += [
          web.post(f'/{name}', self._one(full)),
          web.post(f'/{name}/batch', self._batch(full)),
          web.post(f'/{name}/long-batch', self._batch(full)),
      ]
    return routes

  async def _ping(self, request: web.Request) -> web.Response:
    return answers.json('pong')

  async def _status(self, request: web.Request) -> web.Response:
    return answers.json({
        'queue': self._scheduler.num_queued,
        'num_workers': self._scheduler.max_running,
    })

  def _one(self, full: bool):
    async def handle(request: web.Request) -> web.Response:
      try:
        item = protocol.decode_json(await request.read())
        if not isinstance(item, dict):
          raise protocol.InvalidRequest('', 'expected an object')
      except protocol.InvalidRequest as e:
        return answers.json({'detail': str(e)}, 422)
      return answers.json(await self._run(request, item, full))

    return handle

  def _batch(self, full: bool):
    async def handle(request: web.Request) -> web.Response:
      try:
        body = protocol.decode_json(await request.read())
        items = _submissions(body)
      except protocol.InvalidRequest as e:
        return answers.json({'detail': str(e)}, 422)
      results = await answers.gather(
          [self._run(request, item, full) for item in items]
      )
      return answers.json({'sub_id': body.get('sub_id'), 'results': results})

    return handle

  async def _run(
      self, request: web.Request, item: Any, full: bool
  ) -> dict[str, Any]:
    sub_id = item.get('sub_id') if isinstance(item, dict) else None
    try:
      call = self._call(item, request.remote or '')
      result = await self._scheduler.execute(call)
    except protocol.InvalidRequest as e:
      result = answers.invalid(e)
    expected = item.get('expected_output') if isinstance(item, dict) else None
    return _answer(result, sub_id, expected, full)

  def _call(self, item: Any, peer: str) -> protocol.ExecuteRequest:
    if not isinstance(item, dict):
      raise protocol.InvalidRequest('', 'expected an object')
    if item.get('type', 'python') != 'python':
      raise protocol.InvalidRequest('type', 'only python is supported')
    expected = item.get('expected_output')
    if expected is not None and not isinstance(expected, str):
      raise protocol.InvalidRequest('expected_output', 'expected a string')
    call = {
        'code': item.get('solution'), 'stdin': item.get('input'),
        'timeout_s': self._timeout_s, 'tenant': peer[:256],
    }
    try:
      return protocol.ExecuteRequest.from_json(call)
    except protocol.InvalidRequest as e:
      theirs = {'code': 'solution', 'stdin': 'input'}.get(e.field, e.field)
      text = str(e).removeprefix(f'{e.field}: ')
      raise protocol.InvalidRequest(theirs, text) from None


def _submissions(body: Any) -> list[Any]:
  if not isinstance(body, dict):
    raise protocol.InvalidRequest('', 'expected an object')
  items = body.get('submissions')
  if not isinstance(items, list) or not items:
    raise protocol.InvalidRequest('submissions', 'expected a filled array')
  if len(items) > protocol.MAX_BATCH_ITEMS:
    raise protocol.InvalidRequest(
        'submissions',
        f'{len(items)} items, limit is {protocol.MAX_BATCH_ITEMS}',
    )
  return items


def _answer(
    result: protocol.ExecuteResult,
    sub_id: Any,
    expected: str | None,
    full: bool,
) -> dict[str, Any]:
  ran = result.status is Status.SUCCESS
  success = ran and (
      expected is None or result.stdout.strip() == expected.strip()
  )
  answer = {
      'sub_id': sub_id, 'success': success, 'run_success': ran,
      'cost': result.wall_ms / 1e3, 'reason': _REASONS.get(result.status, ''),
  }
  if full:
    stderr = result.stderr
    if not stderr and not ran:
      stderr = result.message
    # The end of a traceback says most.
    answer |= {
        'stdout': result.stdout[:_MAX_CHARS], 'stderr': stderr[-_MAX_CHARS:]
    }
  return answer
