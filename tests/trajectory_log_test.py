"""What a step leaves for people to read, chosen and rendered."""

import pytest

from rstar2_jax import trajectory_log
from rstar2_jax import types


def _trajectory(sample, reward, stop_reason=types.StopReason.ANSWERED):
  prompt = types.Prompt(id="p", problem="What is 6 * 7?", answer="42",
                        source="chain", level=2)
  return types.Trajectory(
      prompt=prompt, sample=sample, reward=reward, stop_reason=stop_reason,
      spans=(
          types.Span(token_ids=(1, 2, 3), source=types.Source.PROMPT),
          types.Span(token_ids=(4, 5), source=types.Source.POLICY,
                     logprobs=(-0.1, -0.2)),
          types.Span(token_ids=(6,), source=types.Source.TOOL)),
      turn_texts=("calling", f"answer of {sample}"),
      tool_calls=(types.ToolCall(turn=0, name="python"),),
      tool_results=(types.ToolResult(
          status=types.ToolStatus.RUNTIME_ERROR, stdout="41\n",
          stderr="ZeroDivisionError"),))


def _group(trajectories):
  return types.TrajectoryGroup(
      prompt=trajectories[0].prompt, trajectories=tuple(trajectories))


def test_best_and_worst_trajectory_are_readable():
  lost = _trajectory(4, None, types.StopReason.INFRA_ERROR)
  trajectories = [
      _trajectory(i, reward) for i, reward in enumerate([0.5, 1.0, 0.0, 0.5])]
  text = "\n".join(trajectory_log.transcripts(
      [_group([*trajectories, lost])], [_group([trajectories[1]])], num=2))
  assert text.index("answer of 1") < text.index("answer of 2")
  for absent in ("answer of 0", "answer of 3", "answer of 4"):
    assert absent not in text
  for part in ("What is 6 * 7?", "gold answer 42", "stop answered",
               "reward 1.0", "reward 0.0", "response tokens 3 (2 sampled)",
               "calling", "[tool: runtime_error", "41", "ZeroDivisionError",
               "trained on yes", "trained on no"):
    assert part in text


@pytest.mark.parametrize("num, expected", [(0, 0), (1, 1), (50, 3)])
def test_as_many_trajectories_as_wanted(num, expected):
  group = _group([_trajectory(i, float(i % 2)) for i in range(3)])
  texts = trajectory_log.transcripts([group], [], num=num)
  assert len(texts) == expected
  for i in range(3 if expected == 3 else 0):
    assert sum(f"answer of {i}" in text for text in texts) == 1
