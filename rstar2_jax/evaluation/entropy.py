"""Where a policy is undecided: high-entropy tokens by segment (paper, 5.4).

As in the paper, the top fifth is taken within each trajectory, so that a long
or an uncertain one does not supply them all.
"""

from collections.abc import Iterable, Sequence
import collections
import dataclasses
import enum
import math
import re

import numpy as np

from rstar2_jax import types
from rstar2_jax.data import trajectory_records

_MARKUP = re.compile(
    r"(?P<call><tool_call>.*?(?:</tool_call>|$))"
    r"|(?P<answer><answer>.*?(?:</answer>|$))", re.DOTALL)


class Segment(enum.StrEnum):
  """Which part of a response a sampled token belongs to."""

  REASONING = "reasoning"  # text before a call or an answer
  AFTER_TOOL = "after_tool"  # the first k tokens of text after a tool response
  CALL = "call"  # <tool_call> with all between, tags included
  ANSWER = "answer"  # <answer> likewise


@dataclasses.dataclass(frozen=True, kw_only=True)
class Token:
  """One sampled token.

  Attributes:
    text: of it.
    segment: where it stands.
    entropy: nats, of the distribution it was drawn from.
    is_top: whether it is among the most uncertain of its trajectory.
    step: of training.
    offset: tokens since the tool response; None in the first turn.
    after_error: whether a call before that response failed; None likewise.
  """

  text: str
  segment: Segment
  entropy: float
  is_top: bool
  step: int
  offset: int | None
  after_error: bool | None


@dataclasses.dataclass(frozen=True)
class Share:
  """A segment, or a token text, among all tokens.

  Attributes:
    name: of the segment, or the text.
    count: tokens.
    mean_entropy: nats.
    num_top: of them among the most uncertain.
    of_all: share of all tokens.
    of_top: share of the most uncertain tokens.
  """

  name: str
  count: int
  mean_entropy: float
  num_top: int
  of_all: float
  of_top: float


def tokens(
    records: Iterable[trajectory_records.Record], *, top: float = 0.2,
    after_tool: int = 16,
) -> list[Token]:
  """Every sampled token of trajectories whose entropy was recorded.

  Args:
    records: others are passed over.
    top: share of each trajectory that counts as uncertain, rounded up.
    after_tool: k, tokens after a tool response that form a segment.
  """
  found = []
  for record in records:
    if not record.entropy:
      continue
    is_top = _top(record.entropy, top)
    where = _places(record, after_tool)
    found += [
        Token(text=text, segment=segment, entropy=entropy, is_top=high,
              step=record.step, offset=offset, after_error=after_error)
        for (text, segment, offset, after_error), entropy, high
        in zip(where, record.entropy, is_top, strict=True)]
  return found


def by_segment(all_tokens: Sequence[Token]) -> list[Share]:
  """Of each segment that occurs, in the order of Segment."""
  groups = collections.defaultdict(list)
  for t in all_tokens:
    groups[t.segment].append(t)
  num_top = sum(t.is_top for t in all_tokens)
  return [_share(s, groups[s], len(all_tokens), num_top)
          for s in Segment if s in groups]


def by_text(
    all_tokens: Sequence[Token], segment: Segment, *, num: int
) -> list[Share]:
  """The texts that are most often uncertain in a segment.

  Args:
    all_tokens: of all segments.
    segment: REASONING gives the paper's forking tokens, AFTER_TOOL its
      reflection tokens.
    num: how many at most.

  Returns:
    Descending by `num_top`; texts that never are among the top are left out.
  """
  groups = collections.defaultdict(list)
  for t in all_tokens:
    if t.segment is segment:
      groups[t.text].append(t)
  num_top = sum(t.is_top for t in all_tokens)
  shares = [_share(text, group, len(all_tokens), num_top)
            for text, group in groups.items()]
  shares = [share for share in shares if share.num_top]
  return sorted(shares, key=lambda s: (-s.num_top, -s.mean_entropy, s.name)
                )[:num]


def by_offset(
    all_tokens: Sequence[Token], *, after_error: bool, length: int
) -> list[float]:
  """Mean entropy [nats] of the 1st, 2nd, ... token after a tool response.

  Args:
    all_tokens: of all segments.
    after_error: of responses to failed calls, or to those that ran.
    length: how many offsets; NaN where there is no token.
  """
  groups = collections.defaultdict(list)
  for t in all_tokens:
    if t.after_error is after_error:
      groups[t.offset].append(t.entropy)
  return [_mean(groups[i]) for i in range(length)]


def by_step(
    all_tokens: Sequence[Token], segment: Segment
) -> tuple[list[int], list[float]]:
  """Steps, and the mean entropy [nats] of a segment in each."""
  groups = collections.defaultdict(list)
  for t in all_tokens:
    if t.segment is segment:
      groups[t.step].append(t.entropy)
  steps = sorted(groups)
  return steps, [_mean(groups[step]) for step in steps]


def _top(entropy: Sequence[float], share: float) -> np.ndarray:
  """bool [N], True on the highest; the earlier of equals comes first."""
  order = np.argsort(-np.asarray(entropy), kind="stable")
  chosen = np.zeros(len(entropy), bool)
  chosen[order[:math.ceil(share * len(entropy))]] = True
  return chosen


def _places(record: trajectory_records.Record, after_tool: int):
  """(text, segment, offset, after_error) of every sampled token."""
  trajectory, turn = record.trajectory, 0
  after_error: bool | None = None
  for span, pieces in zip(trajectory.spans, record.pieces, strict=True):
    if span.source is not types.Source.POLICY:
      continue
    for i, (text, segment) in enumerate(zip(pieces, _segments(pieces))):
      is_early = after_error is not None and i < after_tool
      if segment is Segment.REASONING and is_early:
        segment = Segment.AFTER_TOOL
      yield (text, segment, None if after_error is None else i, after_error)
    statuses = [
        result.status for call, result in zip(
            trajectory.tool_calls, trajectory.tool_results, strict=True)
        if call.turn == turn]
    after_error = (any(s.is_policy_error for s in statuses) if statuses
                   else None)
    turn += 1


def _segments(pieces: Sequence[str]) -> list[Segment]:
  """Of each token of a turn, by where its text begins."""
  spans = [(m.start(), m.end(), Segment(m.lastgroup or ""))
           for m in _MARKUP.finditer("".join(pieces))]
  found, begin = [], 0
  for piece in pieces:
    # A tag may be split over tokens, or begin inside one.
    middle = begin + len(piece) / 2
    found.append(next((s for low, high, s in spans if low <= middle < high),
                      Segment.REASONING))
    begin += len(piece)
  return found


def _share(
    name: str, group: Sequence[Token], num_all: int, num_all_top: int
) -> Share:
  num_top = sum(t.is_top for t in group)
  return Share(
      str(name), len(group), _mean([t.entropy for t in group]), num_top,
      len(group) / num_all, num_top / max(1, num_all_top))


def _mean(values: Sequence[float]) -> float:
  return sum(values) / len(values) if values else math.nan
