"""Segments, the uncertain fifth and its tables, computed by hand."""

import math

import pytest

from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.evaluation import entropy

Segment = entropy.Segment
Status = types.ToolStatus


def _record(turns, entropies, statuses=(), step=0):
  """Turns of token texts; every turn but the last has one call."""
  spans, pieces = [], []
  for i, turn in enumerate(turns):
    if i:
      spans.append(types.Span(token_ids=(9,), source=types.Source.TOOL))
      pieces.append(("response",))
    spans.append(types.Span(
        token_ids=tuple(range(len(turn))), source=types.Source.POLICY,
        logprobs=(-1.0,) * len(turn)))
    pieces.append(tuple(turn))
  trajectory = types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer="1"), sample=0,
      spans=tuple(spans), stop_reason=types.StopReason.ANSWERED, reward=1.0,
      turn_texts=tuple("".join(turn) for turn in turns),
      tool_calls=tuple(types.ToolCall(turn=i) for i in range(len(statuses))),
      tool_results=tuple(types.ToolResult(status=s) for s in statuses))
  return trajectory_records.Record(
      step=step, trajectory=trajectory, pieces=tuple(pieces),
      fate=trajectory_records.Fate.TRAINED, advantage=0.0, error_ratio=0.0,
      answer_format=0.0, entropy=tuple(entropies))


_TURNS = [
    ["think", " <", "tool_call>", "{}", "</tool_call>", "\n"],
    ["Wait", ", ", "<answer>", "4", "</answer>"],
]
_ENTROPIES = [0.9, 0.0, 0.1, 0.5, 0.0, 0.0, 0.8, 0.2, 0.0, 0.3, 0.0]


def _tokens(**kwargs):
  return entropy.tokens(
      [_record(_TURNS, _ENTROPIES, [Status.RUNTIME_ERROR])], **kwargs)


def test_segments():
  assert [t.segment for t in _tokens()] == [
      Segment.REASONING, Segment.CALL, Segment.CALL, Segment.CALL,
      Segment.CALL, Segment.REASONING, Segment.AFTER_TOOL, Segment.AFTER_TOOL,
      Segment.ANSWER, Segment.ANSWER, Segment.ANSWER]


def test_only_the_first_tokens_after_a_response_are_its_segment():
  segments = [t.segment for t in _tokens(after_tool=1)][6:8]
  assert segments == [Segment.AFTER_TOOL, Segment.REASONING]


def test_an_unclosed_call_lasts_to_the_end_of_its_turn():
  record = _record([["a", "<tool_call>", "{", "x"]], [0.0] * 4)
  tokens = entropy.tokens([record])
  assert [t.segment for t in tokens] == [Segment.REASONING] + [Segment.CALL] * 3


def test_a_turn_after_no_call_is_not_after_a_tool():
  tokens = entropy.tokens([_record([["a"], ["b"]], [1.0, 1.0])])
  assert [(t.segment, t.offset) for t in tokens] == [
      (Segment.REASONING, None)] * 2


def test_the_top_fifth_is_of_each_trajectory():
  # 11 tokens: the top 3 (2.2, rounded up). 5 tokens: 1, though all are lower.
  low = _record([["a", "b", "c", "d", "e"]], [0.0, 0.01, 0.02, 0.01, 0.0])
  tokens = entropy.tokens(
      [_record(_TURNS, _ENTROPIES, [Status.SUCCESS]), low])
  assert [t.text for t in tokens if t.is_top] == ["think", "{}", "Wait", "c"]


def test_equal_entropies_give_the_right_number():
  tokens = entropy.tokens([_record([list("abcdefghij")], [0.5] * 10)])
  assert [t.text for t in tokens if t.is_top] == ["a", "b"]


def test_shares():
  shares = {s.name: s for s in entropy.by_segment(_tokens())}
  assert list(shares) == ["reasoning", "after_tool", "call", "answer"]
  call = shares["call"]
  assert (call.count, call.num_top) == (4, 1)
  assert call.mean_entropy == pytest.approx(0.15)  # (0 + 0.1 + 0.5 + 0) / 4
  assert call.of_all == pytest.approx(4 / 11)
  assert call.of_top == pytest.approx(1 / 3)
  assert sum(s.of_top for s in shares.values()) == pytest.approx(1)


def test_texts_that_are_often_uncertain_come_first():
  records = [
      _record([["so", "but", "x", "y", "z"]], e)
      for e in ([0.0, 0.9, 0, 0, 0], [0.0, 0.7, 0, 0, 0], [0.8, 0.1, 0, 0, 0])]
  found = entropy.by_text(entropy.tokens(records), Segment.REASONING, num=5)
  assert [(s.name, s.num_top, s.count) for s in found] == [
      ("but", 2, 3), ("so", 1, 3)]
  assert found[0].mean_entropy == pytest.approx(1.7 / 3)
  assert len(entropy.by_text(
      entropy.tokens(records), Segment.REASONING, num=1)) == 1


def test_entropy_after_a_response_is_told_apart_by_its_outcome():
  tokens = _tokens()
  assert entropy.by_offset(tokens, after_error=True, length=2) == [0.8, 0.2]
  assert all(map(math.isnan, entropy.by_offset(
      tokens, after_error=False, length=2)))


def test_steps():
  tokens = entropy.tokens([
      _record([["a", "b"]], [1.0, 0.0], step=4),
      _record([["a"]], [0.25], step=2)])
  assert entropy.by_step(tokens, Segment.REASONING) == ([2, 4], [0.25, 0.5])


def test_records_without_entropy_are_passed_over():
  assert not entropy.tokens([_record([["a"]], [])])
