"""Metrics of a batch, each computed by hand."""

import dataclasses

import pytest

from rstar2_jax import types
from rstar2_jax.rollout import statistics

Status = types.ToolStatus
Stop = types.StopReason


def _trajectory(reward, stop_reason=Stop.ANSWERED, results=(), turns=1,
                sampled=4, inserted=0, source=""):
  """2 prompt ids, then `sampled` and `inserted` ids."""
  return types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer="1", source=source),
      sample=0, stop_reason=stop_reason, turn_texts=("t",) * turns,
      spans=(types.Span(token_ids=(1, 2), source=types.Source.PROMPT),
             types.Span(token_ids=(3,) * sampled, source=types.Source.POLICY,
                        logprobs=(-1.0,) * sampled),
             types.Span(token_ids=(4,) * inserted, source=types.Source.TOOL)),
      tool_calls=tuple(types.ToolCall(turn=0) for _ in results),
      tool_results=tuple(types.ToolResult(status=status, wall_ms=ms)
                         for status, ms in results), reward=reward)


# Four graded and one that our infrastructure broke.
BATCH = [
    _trajectory(1.0, results=[(Status.SUCCESS, 10.0), (Status.TIMEOUT, 40.0)],
                turns=3, sampled=10, inserted=6, source="a"),
    _trajectory(1.0, sampled=4, source="b"),
    _trajectory(0.0, Stop.MAX_TOKENS, turns=2, sampled=20, source="a"),
    _trajectory(0.0, Stop.NO_TOOL_CALL, turns=2, sampled=6, inserted=2,
                results=[(Status.SUCCESS, 10.0)] * 2
                + [(Status.MALFORMED_CALL, 0.0)], source="b"),
    _trajectory(None, Stop.INFRA_ERROR, turns=1, sampled=5,
                results=[(Status.SANDBOX_UNAVAILABLE, 900.0)], source="a"),
]


def test_summary():
  assert statistics.summarize(BATCH) == {
      "trajectories": 5.0,
      "masked_out": 1.0,
      "sampled_tokens": 45.0,  # 10 + 4 + 20 + 6 + 5: all were paid for
      "reward": 0.5,
      "response_tokens": 12.0,  # (16 + 4 + 20 + 8) / 4
      "turns": 2.0,  # (3 + 1 + 2 + 2) / 4
      "tool_calls": 1.25,  # 5 / 4
      "truncated": 0.25,
      "tool_wall_ms": 14.0,  # (10 + 40 + 10 + 10 + 0) / 5
      "tool_queue_ms": 0.0,
      "tool_error_ratio": 0.4,  # timeout and malformed call of 5
      "tool_error_ratio_correct": 0.5,  # 1 of 2
      "tool_error_ratio_incorrect": pytest.approx(1 / 3),
      "stop/answered": 0.4,  # of 5: here the broken one is seen
      "stop/infra_error": 0.2,
      "stop/max_tokens": 0.2,
      "stop/no_tool_call": 0.2,
      "tool_status/malformed_call": 0.2,
      "tool_status/success": 0.6,
      "tool_status/timeout": 0.2,
  }


def test_a_mean_over_nothing_is_left_out():
  """No call was made, so there is no ratio of them, and no time."""
  metrics = statistics.summarize([_trajectory(1.0), _trajectory(0.0)])
  assert metrics == {
      "trajectories": 2.0, "masked_out": 0.0, "sampled_tokens": 8.0,
      "reward": 0.5, "response_tokens": 4.0, "turns": 1.0, "tool_calls": 0.0,
      "truncated": 0.0, "stop/answered": 1.0}


@pytest.mark.parametrize("trajectories, expected", [
    ([], {"trajectories": 0.0, "masked_out": 0.0, "sampled_tokens": 0.0}),
    ([_trajectory(None, Stop.INFRA_ERROR, sampled=3),
      _trajectory(None, Stop.ABORTED, sampled=3)],
     {"trajectories": 2.0, "masked_out": 2.0, "sampled_tokens": 6.0,
      "stop/aborted": 0.5, "stop/infra_error": 0.5}),
])
def test_a_batch_without_a_graded_trajectory(trajectories, expected):
  assert statistics.summarize(trajectories) == expected


@pytest.mark.parametrize("stdout, status, expected", [
    ("standard error = 0.13", Status.SUCCESS, 0.0),
    ("", Status.TIMEOUT, 1.0),
    ("Error: 0", Status.SUCCESS, 0.0),
])
def test_p20_errors_are_typed_not_matched(stdout, status, expected):
  trajectory = _trajectory(1.0, results=[(status, 1.0)])
  assert statistics.summarize([trajectory])["tool_error_ratio"] == expected


def test_our_own_failures_are_no_tool_errors():
  """P19: neither errors nor calls in the ratio."""
  trajectory = _trajectory(1.0, results=[
      (Status.QUEUE_TIMEOUT, 1.0), (Status.RUNTIME_ERROR, 1.0)])
  assert statistics.summarize([trajectory])["tool_error_ratio"] == 1.0
  trajectory = _trajectory(1.0, results=[(Status.CANCELLED, 1.0)])
  assert "tool_error_ratio" not in statistics.summarize([trajectory])


def test_reward_by_source():
  # a: 1 and 0, the broken one left out; b: 1 and 0; without a name: 1.
  assert statistics.by_source(BATCH + [_trajectory(1.0)]) == {
      "a": 0.5, "all": 1.0, "b": 0.5}
  assert statistics.by_source([]) == {}
  assert statistics.by_source(BATCH[4:]) == {}


def test_seconds_are_means_over_the_trajectories_that_have_them():
  timed = [dataclasses.replace(t, timings={"tool_s": s, "wall_s": 9.0})
           for t, s in zip(BATCH[:2], (1.0, 2.0), strict=True)]
  # The broken one counts in no mean.
  broken = dataclasses.replace(BATCH[4], timings={"tool_s": 100.0})
  metrics = statistics.summarize([*timed, BATCH[2], broken])
  assert metrics["tool_s"] == 1.5
  assert "sample_s" not in metrics and "wall_s" not in metrics
