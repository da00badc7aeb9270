"""Whether an answer equals the reference, as a typed call.

1. Integers are compared here, exactly, at any size, without a process.
2. Equal text is equal.
3. All else goes to math-verify, which runs like a program: isolated, limited.

Only LaTeX extraction is used: math-verify's plain expressions go through
sympy.parse_expr, which evaluates them as Python, and an answer that could run
code could declare itself right.
"""

from __future__ import annotations

import json
import re

from sandbox_runner import protocol
from sandbox_runner import scheduler as scheduler_lib

Status = protocol.Status

TIER = 'verify'
_PROGRAM = r'''
import json, sys
from math_verify import LatexExtractionConfig, parse, verify
pair = json.load(sys.stdin)
def read(text):
  return parse('$' + text.replace('$', ' ') + '$',
               extraction_config=[LatexExtractionConfig()],
               fallback_mode='no_fallback', parsing_timeout=None)
gold, answer = read(pair['reference']), read(pair['answer'])
bool(gold and answer and verify(gold, answer, timeout_seconds=None))
'''
_SPACE = re.compile(r'(?:\s|\\[,;! ])+')
# Digits, or groups of three with one separator throughout.
_INTEGER = re.compile(
    r'([+-]?)([0-9]+|[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:\{,\}[0-9]{3})+)'
)

# math-verify reads `1 2` as a mixed number, 3; and a dollar sign inside an
# answer would let it offer several formulas.
_AMBIGUOUS = re.compile(r'\$|[0-9](?:\s|\\[,;! ])+[0-9]')


def parse_integer(text: str) -> str | None:
  """The canonical digits of an integer literal, None if it is not one.

  Digits rather than an int: Python's conversion is quadratic.
  """
  text = text.replace('\u2212', '-')
  match = _INTEGER.fullmatch(_SPACE.sub(' ', text).strip(' '))
  if match is None:
    return None
  digits = re.sub('[^0-9]', '', match[2]).lstrip('0') or '0'
  return '-' + digits if match[1] == '-' and digits != '0' else digits


def compare_quickly(
    request: protocol.VerifyRequest,
) -> protocol.VerifyResult | None:
  """The verdict if no process is needed for it, else None."""
  answer = parse_integer(request.answer)
  reference = parse_integer(request.reference)
  if reference is not None and answer is not None:
    return _verdict(request, answer == reference, 'integer')
  if request.integers_only:
    return _verdict(request, False, 'integer')
  if request.answer.strip() and request.answer.strip() == (
      request.reference.strip()
  ):
    return _verdict(request, True, 'text')
  if not request.answer.strip() or not request.reference.strip():
    return _verdict(request, False, 'text')
  if _AMBIGUOUS.search(request.answer.strip().strip('$')):
    return _verdict(request, False, 'text')
  return None


def _verdict(
    request: protocol.VerifyRequest, equal: bool, method: str
) -> protocol.VerifyResult:
  return protocol.VerifyResult(
      status=Status.SUCCESS, equal=equal, method=method,
      request_id=request.request_id,
  )


async def verify(
    scheduler: scheduler_lib.Scheduler, request: protocol.VerifyRequest
) -> protocol.VerifyResult:
  """Compares; never raises but for cancellation."""
  quick = compare_quickly(request)
  if quick is not None:
    return quick
  call = protocol.ExecuteRequest(
      code=_PROGRAM,
      stdin=json.dumps(
          {'answer': request.answer, 'reference': request.reference}
      ),
      timeout_s=request.timeout_s, deadline_s=request.deadline_s,
      tenant=request.tenant, seed=0,
  )
  result = await scheduler.execute(call, tier=TIER)
  if result.status is Status.SUCCESS and result.value in ('True', 'False'):
    return _verdict(request, result.value == 'True', 'math_verify')
  if 'ModuleNotFoundError' in result.stderr:
    return protocol.VerifyResult(
        status=Status.SANDBOX_UNAVAILABLE, request_id=request.request_id,
        message='math-verify is not installed: pip install math-verify',
    )
  status = result.status
  if status is Status.SUCCESS:
    status = Status.RUNTIME_ERROR
  lines = result.stderr.strip().splitlines()
  return protocol.VerifyResult(
      status=status, method='math_verify', request_id=request.request_id,
      message=result.message or (lines[-1] if lines else ''),
  )
