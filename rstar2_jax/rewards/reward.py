"""Outcome reward of trajectories (paper, Eq. 3): 1 if right, else 0.

Only the last turn's text is read, never a tool's. A trajectory that was cut
off has no final answer and gets 0 (paper, section 4.3.1). One that our
infrastructure spoiled gets no reward at all: it leaves its group.
"""

from collections.abc import Sequence
import dataclasses

from rstar2_jax import types
from rstar2_jax.rewards import grading
from rstar2_jax.rewards import penalties


def grade(trajectory: types.Trajectory) -> types.Trajectory:
  """The trajectory with its reward.

  Args:
    trajectory: its prompt's answer is an integer in plain digits.

  Returns:
    A copy whose reward is 1.0 or 0.0, or None where it is masked out.
  """
  if trajectory.is_masked_out:
    return dataclasses.replace(trajectory, reward=None)
  is_right = (
      trajectory.stop_reason is types.StopReason.ANSWERED
      and grading.grade(trajectory.turn_texts[-1], trajectory.prompt.answer))
  return dataclasses.replace(trajectory, reward=float(is_right))


def take_off_tool_errors(
    groups: Sequence[types.TrajectoryGroup], penalty: float
) -> list[types.TrajectoryGroup]:
  """Rewards less `penalty` times the share of erroneous calls (Eq. 4).

  The paper rejects such terms on principle (section 4.3.1); this is the arm
  that tests it. Right answers stay above 0, wrong ones at or under 0.

  Args:
    groups: graded groups.
    penalty: from 0 to under 1; 0 changes nothing.

  Returns:
    Groups with new rewards; trajectories without a call keep theirs.
  """
  if not penalty:
    return list(groups)
  return [dataclasses.replace(group, trajectories=tuple(
      _less(t, penalty) for t in group.trajectories)) for group in groups]


def _less(trajectory: types.Trajectory, penalty: float) -> types.Trajectory:
  is_called = any(not r.status.is_infra_error for r in trajectory.tool_results)
  if trajectory.reward is None or not is_called:
    return trajectory
  return dataclasses.replace(trajectory, reward=(
      trajectory.reward - penalty * penalties.error_ratio(trajectory)))
