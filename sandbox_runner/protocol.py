"""The wire format of the sandbox: requests, results, statuses, JSON codecs.

Standard library only; with `schema`, all that a client library needs to
import. A result's status is decided from wait status, timers and cgroup
events, never from text that the program printed.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import enum
import json
from typing import Any

from sandbox_runner import schema

MAX_SOURCE_BYTES = 1 << 20
MAX_STDIN_BYTES = 8 << 20
MAX_BATCH_ITEMS = 1000
MAX_TIMEOUT_S = 3600.0
MAX_MEMORY_MB = 1 << 20


class Status(enum.StrEnum):
  """How a call ended. Exactly one per call."""

  SUCCESS = 'success'
  SYNTAX_ERROR = 'syntax_error'  # did not compile; nothing ran
  RUNTIME_ERROR = 'runtime_error'  # exit code other than 0
  TIMEOUT = 'timeout'  # see timeout_kind: wall or cpu
  MEMORY_LIMIT = 'memory_limit'
  OUTPUT_LIMIT = 'output_limit'  # wrote past the hard cap and was killed
  KILLED = 'killed'  # died of a signal that the sandbox did not send
  CANCELLED = 'cancelled'  # the client went away or asked for it
  QUEUE_TIMEOUT = 'queue_timeout'  # could not start before its deadline
  SANDBOX_UNAVAILABLE = 'sandbox_unavailable'  # the sandbox's own fault
  INVALID_REQUEST = 'invalid_request'  # the caller's fault; nothing ran

  @property
  def is_infrastructure(self) -> bool:
    """True if the program is not to blame; the caller may retry."""
    return self in _INFRASTRUCTURE


_INFRASTRUCTURE = frozenset(
    {Status.CANCELLED, Status.QUEUE_TIMEOUT, Status.SANDBOX_UNAVAILABLE}
)


class Tier(enum.StrEnum):
  """What is imported before the call starts; changes speed, not meaning."""

  BARE = 'bare'
  NUMPY = 'numpy'
  FULL = 'full'  # numpy, scipy, sympy


class Isolation(enum.StrEnum):
  """What contains a call."""

  NAMESPACES = 'namespaces'
  LANDLOCK = 'landlock'
  NONE = 'none'


InvalidRequest = schema.InvalidRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecuteRequest:
  """One program to run.

  Attributes:
    code: Python source; at most MAX_SOURCE_BYTES as UTF-8.
    stdin: text the program reads; at most MAX_STDIN_BYTES as UTF-8.
    timeout_s: wall time for the program, from the moment it starts.
    cpu_timeout_s: CPU time of all its processes; None means timeout_s.
    memory_mb: memory of all its processes over the tier's base.
    deadline_s: time for the whole call from arrival, queue wait included;
      None means no limit but the server's own.
    seed: seeds random and numpy.random; None means fresh entropy.
    tier: what to preload; None lets the server choose from the source.
    tenant: fairness key; calls of different tenants take turns.
    request_id: echoed in the result.
  """

  code: str
  stdin: str = ''
  timeout_s: float = 10.0
  cpu_timeout_s: float | None = None
  memory_mb: int = 1024
  deadline_s: float | None = None
  seed: int | None = None
  tier: Tier | None = None
  tenant: str = ''
  request_id: str = ''

  def to_json(self) -> dict[str, Any]:
    """The request as a JSON object; fields at their default are left out."""
    return _sparse_json(self)

  @classmethod
  def from_json(cls, body: Any) -> ExecuteRequest:
    """Reads a decoded JSON object. Raises InvalidRequest naming the field."""
    fields = schema.check_object(body, cls)
    code = schema.string(fields, 'code', MAX_SOURCE_BYTES)
    timeout_s = schema.number(fields, 'timeout_s', 10.0, 1e-3, MAX_TIMEOUT_S)
    return cls(
        code=code,
        stdin=schema.string(fields, 'stdin', MAX_STDIN_BYTES, default=''),
        timeout_s=timeout_s,
        cpu_timeout_s=schema.number(
            fields, 'cpu_timeout_s', None, 1e-3, MAX_TIMEOUT_S
        ),
        memory_mb=schema.integer(
            fields, 'memory_mb', 1024, 16, MAX_MEMORY_MB
        ),
        deadline_s=schema.number(
            fields, 'deadline_s', None, 1e-3, 24 * MAX_TIMEOUT_S
        ),
        seed=schema.integer(fields, 'seed', None, 0, 2**63 - 1),
        tier=schema.choice(fields, 'tier', Tier),
        tenant=schema.string(fields, 'tenant', 256, default=''),
        request_id=schema.string(fields, 'request_id', 256, default=''),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecuteResult:
  """How a call went. Times are in milliseconds.

  Attributes:
    status: see Status.
    stdout: head and tail of what the program wrote, decoded as UTF-8 with
      replacement; also kept when the call timed out.
    stderr: the same for stderr; ends with the traceback, if there is one.
    value: repr of the final expression as IPython would show it, else None.
    exit_code: the program's exit code, None if it was ended by a signal or
      never ran.
    signal: number of the signal that ended it, else None.
    wall_ms: from the program's start to its end.
    cpu_ms: user and system time of all its processes.
    queue_ms: from arrival to start.
    max_rss_kb: greatest resident size of one process of the call.
    stdout_bytes: how much the program really wrote.
    stderr_bytes: the same for stderr.
    stdout_truncated: True if stdout lacks bytes in the middle.
    stderr_truncated: the same for stderr.
    timeout_kind: 'wall' or 'cpu' for a timeout, else ''.
    isolation: what contained the call.
    tier: what was preloaded.
    node: which server ran it.
    message: one line for people; the reason for an infrastructure error.
    request_id: from the request.
    session_lost: for a cell: its session is gone, with all its state; a
      client that wants to go on makes a new one and replays its cells.
  """

  status: Status
  stdout: str = ''
  stderr: str = ''
  value: str | None = None
  exit_code: int | None = None
  signal: int | None = None
  wall_ms: float = 0.0
  cpu_ms: float = 0.0
  queue_ms: float = 0.0
  max_rss_kb: int = 0
  stdout_bytes: int = 0
  stderr_bytes: int = 0
  stdout_truncated: bool = False
  stderr_truncated: bool = False
  timeout_kind: str = ''
  isolation: str = ''
  tier: str = ''
  node: str = ''
  message: str = ''
  request_id: str = ''
  session_lost: bool = False

  def to_json(self) -> dict[str, Any]:
    """The result as a JSON object with every field."""
    return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

  @classmethod
  def from_json(cls, body: Mapping[str, Any]) -> ExecuteResult:
    """Reads a server's answer; fields it does not know are ignored.

    Raises:
      ValueError: the answer has no known status.
    """
    if not isinstance(body, Mapping) or 'status' not in body:
      raise ValueError('answer is not an execute result')
    known = {f.name for f in dataclasses.fields(cls)}
    fields = {k: v for k, v in body.items() if k in known}
    return cls(**fields | {'status': Status(body['status'])})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionRequest:
  """A stateful interpreter to be made; its cells are ExecuteRequests.

  Attributes:
    tier: what to preload.
    memory_mb: memory of all its processes over the tier's base.
    idle_ttl_s: it is deleted after so many seconds without a cell.
    seed: seeds random and numpy.random once, or None.
    tenant: fairness key.
  """

  tier: Tier = Tier.FULL
  memory_mb: int = 1024
  idle_ttl_s: float = 600.0
  seed: int | None = None
  tenant: str = ''

  def to_json(self) -> dict[str, Any]:
    """The request as a JSON object; fields at their default are left out."""
    return _sparse_json(self)

  @classmethod
  def from_json(cls, body: Any) -> SessionRequest:
    """Reads a decoded JSON object. Raises InvalidRequest naming the field."""
    fields = schema.check_object(body, cls)
    return cls(
        tier=schema.choice(fields, 'tier', Tier) or Tier.FULL,
        memory_mb=schema.integer(
            fields, 'memory_mb', 1024, 16, MAX_MEMORY_MB
        ),
        idle_ttl_s=schema.number(fields, 'idle_ttl_s', 600.0, 1e-3, 86400.0),
        seed=schema.integer(fields, 'seed', None, 0, 2**63 - 1),
        tenant=schema.string(fields, 'tenant', 256, default=''),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyRequest:
  """An answer to be compared with the reference.

  Attributes:
    answer: what was answered, e.g. the content of a \\boxed{}.
    reference: the true answer.
    timeout_s: wall time for the comparison.
    deadline_s: time for the whole call, queue wait included, or None.
    integers_only: answer from the integer fast path alone.
    tenant: fairness key.
    request_id: echoed in the result.
  """

  answer: str
  reference: str
  timeout_s: float = 5.0
  deadline_s: float | None = None
  integers_only: bool = False
  tenant: str = ''
  request_id: str = ''

  def to_json(self) -> dict[str, Any]:
    """The request as a JSON object; fields at their default are left out."""
    return _sparse_json(self)

  @classmethod
  def from_json(cls, body: Any) -> VerifyRequest:
    """Reads a decoded JSON object. Raises InvalidRequest naming the field."""
    fields = schema.check_object(body, cls)
    return cls(
        answer=schema.string(fields, 'answer', 1 << 16),
        reference=schema.string(fields, 'reference', 1 << 16),
        timeout_s=schema.number(fields, 'timeout_s', 5.0, 1e-3, MAX_TIMEOUT_S),
        deadline_s=schema.number(
            fields, 'deadline_s', None, 1e-3, 24 * MAX_TIMEOUT_S
        ),
        integers_only=schema.boolean(fields, 'integers_only', False),
        tenant=schema.string(fields, 'tenant', 256, default=''),
        request_id=schema.string(fields, 'request_id', 256, default=''),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyResult:
  """Whether an answer equals the reference.

  Attributes:
    status: success if the comparison was made (whatever it found); timeout,
      memory_limit and the like if the answer is too hard to compare; an
      infrastructure status otherwise.
    equal: the verdict; False unless status is success.
    method: 'integer', 'text' or 'math_verify'.
    message: one line for people.
    request_id: from the request.
  """

  status: Status
  equal: bool = False
  method: str = ''
  message: str = ''
  request_id: str = ''

  def to_json(self) -> dict[str, Any]:
    """The result as a JSON object with every field."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, body: Mapping[str, Any]) -> VerifyResult:
    """Reads a server's answer. Raises ValueError without a known status."""
    if not isinstance(body, Mapping) or 'status' not in body:
      raise ValueError('answer is not a verify result')
    known = {f.name for f in dataclasses.fields(cls)}
    fields = {k: v for k, v in body.items() if k in known}
    return cls(**fields | {'status': Status(body['status'])})


def decode_json(body: bytes) -> Any:
  """Decodes a request body; bytes that are not UTF-8 are replaced.

  Raises:
    InvalidRequest: the body is not JSON.
  """
  try:
    return json.loads(body.decode('utf-8', 'replace'))
  except (ValueError, RecursionError) as e:
    raise InvalidRequest('', f'body is not JSON: {e}') from None


def _sparse_json(message: Any) -> dict[str, Any]:
  return {
      f.name: getattr(message, f.name)
      for f in dataclasses.fields(message)
      if f.default is dataclasses.MISSING
      or getattr(message, f.name) != f.default
  }
