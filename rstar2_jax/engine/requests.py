"""A request inside the engine, from its arrival to its last token."""

from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any, Protocol

import numpy as np

from rstar2_jax import types

MAX_STOP_IDS = 8  # checked on device; further ones are refused
MAX_TOP_LOGPROBS = 20
MAX_CHOSEN_IDS = 32  # ids whose log-probabilities a request may ask for


class StopFinder(Protocol):
  """Looks for stop strings in sampled ids."""

  def find(self, output_ids: Sequence[int], start: int) -> (
      tuple[int, str] | None):
    """(ids to keep, matched string) if one is complete after id `start`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extras:
  """What a request may ask for beyond types.SampleRequest."""

  min_p: float = 0.0
  stop_finder: StopFinder | None = None
  logprob_start: int | None = None  # prompt logprobs from here; None: none
  num_top_logprobs: int = 0
  chosen_ids: tuple[int, ...] = ()  # logprobs of these at every position
  report_progress: bool = False  # call `on_event` after each dispatch


@dataclasses.dataclass(eq=False)
class Request:
  """Mutable; touched by the engine's thread only, once submitted."""

  sample: types.SampleRequest
  extras: Extras
  on_event: Callable[["Request"], None]  # finished, or progressed
  prompt_ids: np.ndarray = dataclasses.field(init=False)  # int32
  output_ids: list[int] = dataclasses.field(default_factory=list)
  logprobs: list[float] = dataclasses.field(default_factory=list)
  top_logprobs: list[list[tuple[float, int]]] = dataclasses.field(
      default_factory=list)
  chosen_logprobs: list[list[float]] = dataclasses.field(default_factory=list)
  prompt_logprobs: Any = None  # engine.scoring.PromptLogprobs
  versions: list[tuple[str, int]] = dataclasses.field(default_factory=list)
  finish_reason: dict[str, Any] | None = None  # SGLang's shapes
  error: Exception | None = None
  cached_tokens: int | None = None  # None until it first runs
  num_retractions: int = 0
  sequence: int = 0  # order of arrival
  arrived_s: float = dataclasses.field(default_factory=time.time)
  started_s: float = 0.0
  first_token_s: float = 0.0
  finished_s: float = 0.0

  def __post_init__(self):
    self.prompt_ids = np.asarray(self.sample.input_ids, np.int32)

  @property
  def is_done(self) -> bool:
    """Whether no further token will come."""
    return self.finish_reason is not None or self.error is not None

  @property
  def num_left(self) -> int:
    """Tokens it may still sample."""
    return self.sample.max_new_tokens - len(self.output_ids)

  def all_ids(self) -> np.ndarray:
    """Prompt and sampled ids, int32 [n]."""
    return np.concatenate(
        [self.prompt_ids, np.asarray(self.output_ids, np.int32)])

  def mark_version(self, version: str) -> None:
    """Notes the weights of the tokens to come (P28)."""
    if not self.versions or self.versions[-1][0] != version:
      if self.versions and self.versions[-1][1] == len(self.output_ids):
        self.versions.pop()  # not one token came from those
      self.versions.append((version, len(self.output_ids)))

  def version_spans(self) -> list[dict[str, Any]]:
    """SGLang's weight_versions: spans of the sampled tokens."""
    starts = [start for _, start in self.versions]
    ends = starts[1:] + [len(self.output_ids)]
    return [{"version": v, "start": s, "end": e}
            for (v, s), e in zip(self.versions, ends, strict=True)]


def check(
    request: types.SampleRequest, extras: Extras, *, max_seq_len: int,
    num_ids: int,
) -> None:
  """Raises ValueError, in one line, for what the engine can never serve."""
  n = len(request.input_ids)
  if n == 0:
    raise ValueError("input_ids is empty; a request needs at least one id")
  ids = np.asarray(request.input_ids)
  if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
    raise ValueError("input_ids must be a flat list of integers")
  for name, values in (("input_ids", ids),
                       ("stop_token_ids", np.asarray(request.stop_token_ids)),
                       ("token_ids_logprob", np.asarray(extras.chosen_ids))):
    outside = values[(values < 0) | (values >= num_ids)]
    if outside.size:
      raise ValueError(
          f"{name} holds id {outside[0]}, outside the vocabulary of {num_ids}")
  if request.max_new_tokens < 0:
    raise ValueError(f"max_new_tokens must be at least 0, got"
                     f" {request.max_new_tokens}")
  if n + request.max_new_tokens > max_seq_len:
    raise ValueError(
        f"Requested token count exceeds the engine's maximum sequence length"
        f" of {max_seq_len} tokens: {n} from the input and"
        f" {request.max_new_tokens} for the completion. Shorten the input,"
        " lower max_new_tokens or raise engine.max_seq_len.")
  _check_sampling(request, extras)


def _check_sampling(request: types.SampleRequest, extras: Extras) -> None:
  if not (request.temperature >= 0 and np.isfinite(request.temperature)):
    raise ValueError("temperature must be a non-negative finite number, got"
                     f" {request.temperature}.")
  if not 0 < request.top_p <= 1:
    raise ValueError(f"top_p must be in (0, 1], got {request.top_p}.")
  if not 0 <= extras.min_p <= 1:
    raise ValueError(f"min_p must be in [0, 1], got {extras.min_p}.")
  if request.top_k < 1 and request.top_k != -1:
    raise ValueError(f"top_k must be -1 (disable) or at least 1, got"
                     f" {request.top_k}.")
  limits = (("stop_token_ids", len(request.stop_token_ids), MAX_STOP_IDS),
            ("top_logprobs_num", extras.num_top_logprobs, MAX_TOP_LOGPROBS),
            ("token_ids_logprob", len(extras.chosen_ids), MAX_CHOSEN_IDS))
  for name, value, limit in limits:
    if not 0 <= value <= limit:
      raise ValueError(f"{name}: at most {limit}, got {value}")
