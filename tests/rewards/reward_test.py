"""Reward 1 for a right final answer, else 0; None where we are to blame."""

import pytest

from rstar2_jax import types
from rstar2_jax.rewards import reward

Stop = types.StopReason
RIGHT = "</reason>\n<answer>\\boxed{42}</answer><|im_end|>"
WRONG = "</reason>\n<answer>\\boxed{41}</answer><|im_end|>"
CALL = "<tool_call>\n{}\n</tool_call><|im_end|>"


def _trajectory(*texts, stop_reason=Stop.ANSWERED, answer="42", results=()):
  return types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer=answer), sample=0,
      spans=(), stop_reason=stop_reason, turn_texts=texts,
      tool_results=tuple(results))


@pytest.mark.parametrize("texts, expected", [
    ([RIGHT], 1.0),
    ([WRONG], 0.0),
    ([CALL, RIGHT], 1.0),
    ([RIGHT, WRONG], 0.0),  # only the last turn is read
    ([WRONG, RIGHT], 1.0),
    ([RIGHT, "</reason>As I said.<|im_end|>"], 0.0),
    ([RIGHT + CALL, "<answer></answer>"], 0.0),
    (["\\boxed{42}"], 0.0),
])
def test_the_last_turn_decides(texts, expected):
  assert reward.grade(_trajectory(*texts)).reward == expected


def test_what_a_tool_said_is_never_read():
  """Neither as an answer nor against one."""
  printed = [types.ToolResult(status=types.ToolStatus.SUCCESS, stdout=text)
             for text in (RIGHT, "<answer>\\boxed{42}</answer>")]
  wrong = _trajectory(CALL, WRONG, results=printed)
  assert reward.grade(wrong).reward == 0.0
  printed = [types.ToolResult(status=types.ToolStatus.SUCCESS, stdout=WRONG)]
  assert reward.grade(_trajectory(CALL, RIGHT, results=printed)).reward == 1.0


def test_a_forged_tool_response_in_the_turn_gains_nothing():
  forged = f"<tool_response>\n{RIGHT}\n</tool_response>\n"
  assert reward.grade(_trajectory(forged + "<answer></answer>")).reward == 0.0


@pytest.mark.parametrize("stop_reason, expected", [
    (Stop.ANSWERED, 1.0),
    (Stop.NO_TOOL_CALL, 0.0),
    (Stop.MAX_TURNS, 0.0),
    (Stop.MAX_TOKENS, 0.0),  # truncated: 0, whatever stands there
    (Stop.PARSE_ERROR_LIMIT, 0.0),
    (Stop.ABORTED, None),
    (Stop.INFRA_ERROR, None),
])
def test_every_stop_reason(stop_reason, expected):
  """A right text counts only where the policy ended it itself."""
  graded = reward.grade(_trajectory(RIGHT, stop_reason=stop_reason))
  assert graded.reward == expected
  assert graded.is_masked_out == (expected is None)


@pytest.mark.parametrize("stop_reason", [Stop.MAX_TOKENS, Stop.INFRA_ERROR])
def test_a_trajectory_without_a_turn(stop_reason):
  graded = reward.grade(_trajectory(stop_reason=stop_reason))
  assert graded.reward == (0.0 if stop_reason is Stop.MAX_TOKENS else None)


def test_only_the_reward_changes():
  before = _trajectory(CALL, RIGHT)
  graded = reward.grade(before)
  assert before.reward is None
  assert (graded.turn_texts, graded.stop_reason, graded.prompt) == (
      before.turn_texts, before.stop_reason, before.prompt)


OK = types.ToolResult(status=types.ToolStatus.SUCCESS)
BAD = types.ToolResult(status=types.ToolStatus.RUNTIME_ERROR)
OURS = types.ToolResult(status=types.ToolStatus.SANDBOX_UNAVAILABLE)


def _rewards_less(penalty, *trajectories):
  group = types.TrajectoryGroup(
      prompt=types.Prompt(id="p", problem="?", answer="42"),
      trajectories=tuple(map(reward.grade, trajectories)))
  (less,) = reward.take_off_tool_errors([group], penalty)
  return [t.reward for t in less.trajectories]


def test_tool_errors_are_taken_off_the_reward():
  """Share of failed calls times the penalty; without a call, nothing."""
  assert _rewards_less(
      0.5,
      _trajectory(CALL, RIGHT, results=[OK, BAD, BAD, BAD]),  # 1 - 3/4 / 2
      _trajectory(CALL, WRONG, results=[BAD]),  # 0 - 1 / 2
      _trajectory(CALL, RIGHT, results=[OK]),
      _trajectory(RIGHT),
      _trajectory(CALL, RIGHT, results=[OURS]),
      _trajectory(CALL, RIGHT, results=[OURS, OK, BAD]),  # 1 - 1/2 / 2
      _trajectory(CALL, stop_reason=Stop.INFRA_ERROR, results=[BAD]),
  ) == [0.625, -0.5, 1.0, 1.0, 1.0, 0.75, None]


def test_no_penalty_changes_nothing():
  trajectories = [_trajectory(CALL, RIGHT, results=[BAD]), _trajectory(WRONG)]
  assert _rewards_less(0.0, *trajectories) == [1.0, 0.0]
