"""Penalties come from typed results and tags, never from printed text."""

import functools

import pytest

from rstar2_jax import types
from rstar2_jax.rewards import penalties

ANSWER = "<answer>\\boxed{1}</answer>"
Status = types.ToolStatus


def _trajectory(results=(), texts=(ANSWER,), spans=()):
  return types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer="1"), sample=0,
      spans=tuple(spans),
      stop_reason=types.StopReason.ANSWERED, tool_results=tuple(results),
      turn_texts=tuple(texts), reward=1.0)


@pytest.mark.parametrize("results, expected", [
    # P20: the released code says 1.0 here, for the word in the output ...
    ([types.ToolResult(status=Status.SUCCESS, stdout="standard error = 0.13")],
     0.0),
    # ... 0.0 here, for the missing word ...
    ([types.ToolResult(status=Status.TIMEOUT)], 1.0),
    # ... and no call is 0.5.
    ([], 0.5),
])
def test_p20(results, expected):
  assert penalties.error_ratio(_trajectory(results)) == expected


@pytest.mark.parametrize("status", [s for s in Status if s.is_policy_error])
def test_every_policy_error_counts(status):
  results = [types.ToolResult(status=s) for s in
             (Status.SUCCESS, status, Status.SUCCESS, Status.SUCCESS)]
  assert penalties.error_ratio(_trajectory(results)) == 0.25


@pytest.mark.parametrize("status", [s for s in Status if s.is_infra_error])
def test_our_own_failures_count_neither_way(status):
  ours = types.ToolResult(status=status)
  error = types.ToolResult(status=Status.RUNTIME_ERROR)
  success = types.ToolResult(status=Status.SUCCESS)
  assert penalties.error_ratio(_trajectory([ours, error, success])) == 0.5
  assert penalties.error_ratio(_trajectory([ours, success])) == 0.0
  assert penalties.error_ratio(_trajectory([ours])) == 0.5


@pytest.mark.parametrize("texts, expected", [
    (["a", "b", ANSWER], 0.0),  # (1 - 1) / 3
    (["a", ANSWER, ANSWER, "b"], 0.25),  # (2 - 1) / 4
    (["a", ANSWER * 2], 0.5),  # (2 - 1) / 2
    ([ANSWER * 5], 1.0),  # min(1, 4 / 1)
    (["a", "\\boxed{1}"], 1.0),  # no tag
    (["a", "<answer>\\boxed{1}"], 1.0),  # never closed
    (["a", ANSWER + "<answer>"], 1.0),  # one of two closed
    ([], 1.0),
])
def test_answer_format(texts, expected):
  assert penalties.answer_format(_trajectory(texts=texts)) == expected


def test_total_adds_what_is_in_use():
  results = [types.ToolResult(status=Status.TIMEOUT)]
  trajectory = _trajectory(results, ["a", ANSWER * 2])  # 1.0 and 0.5
  totals = {
      (a, b): penalties.total(trajectory, use_error_ratio=a,
                              use_answer_format=b)
      for a in (True, False) for b in (True, False)}
  assert totals == {(True, True): 1.5, (True, False): 1.0,
                    (False, True): 0.5, (False, False): 0.0}


def _said(*ids, source=types.Source.POLICY):
  is_policy = source is types.Source.POLICY
  return types.Span(
      token_ids=ids, source=source,
      logprobs=(-1.0,) * len(ids) if is_policy else None)


@pytest.mark.parametrize("spans, expected", [
    ([], 0.0),
    ([_said(7)], 0.0),  # shorter than a pair
    # Pairs 12 21 12 21 12: 12 three times of five, 21 twice.
    ([_said(1, 2, 1, 2, 1, 2)], 0.6),
    # Across turns pairs add up, but none spans two: 12 12 12 and no 21.
    ([_said(1, 2), _said(1, 2), _said(1, 2)], 1.0),
    # What a tool said counts neither way.
    ([_said(1, 2), _said(*(1, 2) * 9, source=types.Source.TOOL), _said(3, 4)],
     0.0),
    ([_said(1, 2, 3, 4, 5, 6)], 0.0),
])
def test_repetition_of_pairs_more_than_twice(spans, expected):
  trajectory = _trajectory(spans=spans)
  assert penalties.repetition(trajectory, ngram=2, count=2) == expected


def test_total_adds_repetition_where_it_is_in_use():
  results = [types.ToolResult(status=Status.TIMEOUT)]
  trajectory = _trajectory(results, ["a", ANSWER * 2],  # 1.0 and 0.5
                           [_said(1, 2, 1, 2, 1, 2)])  # 0.6
  total = functools.partial(
      penalties.total, trajectory, use_error_ratio=True,
      use_answer_format=True, repetition_ngram=2, repetition_count=2)
  assert total(use_repetition=True) == pytest.approx(2.1)
  assert total() == 1.5
