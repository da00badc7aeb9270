"""The records that flow through a training step. numpy and stdlib only.

    Prompt -> Trajectory (spans, tool calls, tool results) -> TrajectoryGroup
           -> PackedBatch (rows of fixed shape for the learner)

Masks, the ids of the next prompt and training rows are all derived from the
spans of a trajectory. Text is derived for people and for graders; it is never
tokenized back, so the ids that were sampled are the ids that are trained on.

Letters in array names: P prompts, G group before RoC, K group after RoC,
R packed rows, T tokens in a row.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import enum
from typing import Any, NamedTuple

import numpy as np


class Source(enum.StrEnum):
  """Who wrote the tokens of a span."""

  PROMPT = "prompt"  # the first prompt, rendered by the chat template
  POLICY = "policy"  # sampled: the only tokens that are trained on
  TOOL = "tool"  # what the tool answered
  TEMPLATE = "template"  # role headers and separators between turns


class StopReason(enum.StrEnum):
  """Why a trajectory ended; exactly one each."""

  ANSWERED = "answered"  # last turn holds a complete answer tag, no tool call
  NO_TOOL_CALL = "no_tool_call"  # last turn has neither a call nor an answer
  MAX_TURNS = "max_turns"  # a call was made in the last allowed turn
  MAX_TOKENS = "max_tokens"  # response budget used up (truncated)
  PARSE_ERROR_LIMIT = "parse_error_limit"  # too many malformed calls in a row
  ABORTED = "aborted"  # cancelled by the run or by the server
  INFRA_ERROR = "infra_error"  # our fault: masked out, never a reward


class ToolStatus(enum.StrEnum):
  """Outcome of one tool call, decided from wait status and timers.

  The first eight mirror the sandbox; the next three come from reading the
  call; the last three are nobody's but ours.
  """

  SUCCESS = "success"
  SYNTAX_ERROR = "syntax_error"
  RUNTIME_ERROR = "runtime_error"
  TIMEOUT = "timeout"
  MEMORY_LIMIT = "memory_limit"
  OUTPUT_LIMIT = "output_limit"
  KILLED = "killed"
  INVALID_REQUEST = "invalid_request"  # e.g. a source over the size limit
  MALFORMED_CALL = "malformed_call"  # the call's JSON could not be read
  UNKNOWN_TOOL = "unknown_tool"
  BAD_ARGUMENTS = "bad_arguments"  # missing or mistyped arguments
  CANCELLED = "cancelled"
  QUEUE_TIMEOUT = "queue_timeout"
  SANDBOX_UNAVAILABLE = "sandbox_unavailable"

  @property
  def is_infra_error(self) -> bool:
    """Whether the fault is ours: retried, then masked; never scored."""
    return self in _INFRA_ERRORS

  @property
  def is_policy_error(self) -> bool:
    """Whether the model is to blame; these count in RoC's error ratio."""
    return self is not ToolStatus.SUCCESS and not self.is_infra_error


_INFRA_ERRORS = frozenset({
    ToolStatus.CANCELLED,
    ToolStatus.QUEUE_TIMEOUT,
    ToolStatus.SANDBOX_UNAVAILABLE,
})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt:
  """One problem with its gold answer."""

  id: str
  problem: str
  answer: str
  source: str = ""  # family of a procedural problem, or data set
  level: int = 0  # difficulty; 0 where unknown
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
  """A run of tokens with one author.

  `logprobs` are the server's log-probabilities of the sampled ids under the
  sampling temperature; present exactly when `source` is POLICY.
  """

  token_ids: tuple[int, ...]
  source: Source
  logprobs: tuple[float, ...] | None = None
  policy_version: int | None = None
  seed: int | None = None

  def __post_init__(self):
    if (self.logprobs is not None) != (self.source is Source.POLICY):
      raise ValueError(f"span of source {self.source}: logprobs go with policy"
                       " spans and with no other")
    if self.logprobs is not None and len(self.logprobs) != len(self.token_ids):
      raise ValueError(f"span has {len(self.token_ids)} ids but"
                       f" {len(self.logprobs)} logprobs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
  """One parsed call; `status` says why it cannot be run (None: it can)."""

  turn: int  # 0-based assistant turn
  name: str = ""
  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  status: ToolStatus | None = None
  message: str = ""  # what the model is told when `status` is set
  raw: str = ""  # text between the tags


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult:
  """Typed outcome of one call. Times in milliseconds, sizes in bytes."""

  status: ToolStatus
  stdout: str = ""
  stderr: str = ""
  value: str = ""  # repr of a final expression, as IPython would show it
  message: str = ""  # for calls that never ran: what is wrong with them
  exit_code: int | None = None
  signal: int | None = None
  wall_ms: float = 0.0
  cpu_ms: float = 0.0
  queue_ms: float = 0.0
  truncated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
  """One sampled conversation: prompt span first, then turns."""

  prompt: Prompt
  sample: int  # index within the group, fixed before sampling
  spans: tuple[Span, ...]
  tool_calls: tuple[ToolCall, ...] = ()
  tool_results: tuple[ToolResult, ...] = ()  # aligned with tool_calls
  stop_reason: StopReason
  turn_texts: tuple[str, ...] = ()  # decoded assistant turns, for graders
  reward: float | None = None  # None until graded, and for infra errors
  timings: Mapping[str, float] = dataclasses.field(default_factory=dict)  # s

  @property
  def outcome(self) -> float:
    """The reward of a graded trajectory.

    Raises:
      ValueError: it has not been graded.
    """
    if self.reward is None:
      raise ValueError(f"trajectory {self.sample} of {self.prompt.id} has not"
                       " been graded")
    return self.reward

  @property
  def num_turns(self) -> int:
    """Assistant turns sampled."""
    return len(self.turn_texts)

  @property
  def token_ids(self) -> list[int]:
    """All ids in order: prompt, sampled and inserted."""
    return [i for span in self.spans for i in span.token_ids]

  @property
  def loss_mask(self) -> list[bool]:
    """True exactly on the ids that the policy sampled; like token_ids."""
    return [span.source is Source.POLICY
            for span in self.spans for _ in span.token_ids]

  @property
  def logprobs(self) -> list[float]:
    """Rollout logprobs on sampled ids, 0 elsewhere; like token_ids."""
    return [x for span in self.spans
            for x in (span.logprobs or (0.0,) * len(span.token_ids))]

  @property
  def num_response_tokens(self) -> int:
    """Ids after the prompt, tool output included."""
    return sum(len(s.token_ids) for s in self.spans
               if s.source is not Source.PROMPT)

  @property
  def num_sampled_tokens(self) -> int:
    """Ids that the policy sampled."""
    return sum(len(s.token_ids) for s in self.spans
               if s.source is Source.POLICY)

  @property
  def is_masked_out(self) -> bool:
    """Whether it leaves its group: our infrastructure failed, not the model."""
    return self.stop_reason in (StopReason.INFRA_ERROR, StopReason.ABORTED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrajectoryGroup:
  """All trajectories of one prompt, in order of `sample`."""

  prompt: Prompt
  trajectories: tuple[Trajectory, ...]

  @property
  def rewards(self) -> np.ndarray:
    """float64 [G]; every trajectory must have been graded."""
    return np.array([t.reward for t in self.trajectories], np.float64)


class PackedBatch(NamedTuple):
  """Rows of fixed shape; a trajectory never spans two rows.

  Every array is aligned to `tokens`: entry t speaks about the token at t,
  predicted from those before it in its segment.
  """

  tokens: np.ndarray  # int32 [R, T]
  positions: np.ndarray  # int32 [R, T], from 0 within each segment
  segment_ids: np.ndarray  # int32 [R, T], from 1 in each row; 0 is padding
  loss_mask: np.ndarray  # bool [R, T], True on trained tokens
  advantages: np.ndarray  # float32 [R, T], 0 off the mask
  rollout_logprobs: np.ndarray  # float32 [R, T], 0 off the mask


# --- requests to a rollout server --------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleRequest:
  """One turn to sample, in SGLang's terms."""

  rid: str  # fixed width: servers match aborts by prefix
  input_ids: Sequence[int]
  max_new_tokens: int
  temperature: float = 1.0
  top_p: float = 1.0
  top_k: int = -1  # -1: whole vocabulary
  stop_token_ids: tuple[int, ...] = ()
  seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleResult:
  """What a server sampled; a stop id is the last of `output_ids`."""

  output_ids: tuple[int, ...]
  logprobs: tuple[float, ...]  # at the sampling temperature, natural log
  finish_reason: str  # "stop", "length" or "abort"
  policy_version: int
  cached_tokens: int = 0
