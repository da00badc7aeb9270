"""From what a slot observed to the status that a caller sees."""

from __future__ import annotations

import os
import signal

from sandbox_runner import protocol
from sandbox_runner import slot_link
from sandbox_runner import wire

Status = protocol.Status

_REASONS = {
    wire.REASON_WALL: Status.TIMEOUT,
    wire.REASON_CPU: Status.TIMEOUT,
    wire.REASON_MEMORY: Status.MEMORY_LIMIT,
    wire.REASON_CANCEL: Status.CANCELLED,
}
_TIMEOUT_KINDS = {wire.REASON_WALL: 'wall', wire.REASON_CPU: 'cpu'}


def status_of(outcome: slot_link.Outcome) -> Status:
  """Decides by limits, wait status and phase, in this order."""
  result = outcome.result
  if outcome.output_exceeded:
    return Status.OUTPUT_LIMIT
  if result.reason:
    return _REASONS[result.reason]
  if os.WIFSIGNALED(result.wait_status):
    return Status.KILLED
  code = os.waitstatus_to_exitcode(result.wait_status)
  if code == 0:
    return Status.SUCCESS
  if result.phase == wire.NOT_COMPILED:
    return Status.SYNTAX_ERROR
  if outcome.memory_error and code == 1:
    return Status.MEMORY_LIMIT
  return Status.RUNTIME_ERROR


def execute_result(
    request: protocol.ExecuteRequest,
    outcome: slot_link.Outcome,
    *,
    tier: str,
    isolation: str,
    node: str,
    queue_ms: float,
) -> protocol.ExecuteResult:
  """The answer to a call that ran."""
  result = outcome.result
  signalled = os.WIFSIGNALED(result.wait_status)
  status = status_of(outcome)
  return protocol.ExecuteResult(
      status=status,
      stdout=outcome.stdout.text(),
      stderr=outcome.stderr.text(),
      value=outcome.value if status is Status.SUCCESS else None,
      exit_code=(
          None if signalled
          else os.waitstatus_to_exitcode(result.wait_status)
      ),
      signal=os.WTERMSIG(result.wait_status) if signalled else None,
      wall_ms=round(result.wall_s * 1e3, 3),
      cpu_ms=round(result.cpu_s * 1e3, 3),
      queue_ms=round(queue_ms, 3),
      max_rss_kb=result.max_rss_kb,
      stdout_bytes=outcome.stdout.total,
      stderr_bytes=outcome.stderr.total,
      stdout_truncated=outcome.stdout.truncated,
      stderr_truncated=outcome.stderr.truncated,
      timeout_kind=_TIMEOUT_KINDS.get(result.reason, ''),
      isolation=isolation,
      tier=tier,
      node=node,
      message=_message(status, request, result),
      request_id=request.request_id,
  )


def refusal(
    status: Status,
    message: str,
    *,
    request_id: str = '',
    isolation: str = '',
    node: str = '',
    queue_ms: float = 0.0,
) -> protocol.ExecuteResult:
  """The answer to a call that did not run."""
  return protocol.ExecuteResult(
      status=status, message=message, request_id=request_id,
      isolation=isolation, node=node, queue_ms=round(queue_ms, 3),
  )


def _message(
    status: Status,
    request: protocol.ExecuteRequest,
    result: wire.Result,
) -> str:
  if status is Status.TIMEOUT:
    if result.reason == wire.REASON_CPU:
      limit = request.cpu_timeout_s or request.timeout_s
      return f'exceeded the CPU time limit of {limit:g} s'
    return f'exceeded the time limit of {request.timeout_s:g} s'
  if status is Status.MEMORY_LIMIT:
    return f'exceeded the memory limit of {request.memory_mb} MB'
  if status is Status.OUTPUT_LIMIT:
    return 'wrote more than the output limit'
  if status is Status.CANCELLED:
    return 'cancelled'
  if status is Status.KILLED:
    number = os.WTERMSIG(result.wait_status)
    try:
      return f'killed by {signal.Signals(number).name}'
    except ValueError:
      return f'killed by signal {number}'
  return ''
