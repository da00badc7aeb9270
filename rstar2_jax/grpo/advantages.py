"""Group-relative advantages (paper, Eq. 2 and 7)."""

from collections.abc import Sequence

import numpy as np

from rstar2_jax import types


def group_relative(
    rewards_PG: np.ndarray,  # pylint: disable=invalid-name
    *,
    normalize_by_std: bool = True,
    std_ddof: int = 0,
    std_epsilon: float = 1e-6,
) -> np.ndarray:
  """Each reward against the mean of its own group.

  Args:
    rewards_PG: float [..., G]; outcome rewards, the group last.
    normalize_by_std: divide by the group's standard deviation (GRPO) or not
      (Dr.GRPO).
    std_ddof: degrees of freedom of that deviation, 0 or 1.
    std_epsilon: added to that deviation.

  Returns:
    float64 [..., G]; exactly zero for a group whose rewards are all equal,
    where rounding would otherwise leave a residue for the division to blow up
    (P11).
  """
  rewards = np.asarray(rewards_PG, np.float64)
  if rewards.shape[-1] == 0:
    return np.zeros_like(rewards)
  is_constant = np.ptp(rewards, axis=-1, keepdims=True) == 0
  centered = rewards - rewards.mean(axis=-1, keepdims=True)
  if normalize_by_std:
    # A group of one is constant; its deviation is not defined for ddof 1.
    num = max(rewards.shape[-1] - std_ddof, 1)
    std = np.sqrt((centered**2).sum(axis=-1, keepdims=True) / num)
    centered = centered / np.where(is_constant, 1.0, std + std_epsilon)
  return np.where(is_constant, 0.0, centered)


def of_groups(
    groups: Sequence[types.TrajectoryGroup],
    *,
    normalize_by_std: bool = True,
    std_ddof: int = 0,
    std_epsilon: float = 1e-6,
) -> np.ndarray:
  """Advantages of groups that may differ in size.

  Args:
    groups: whole groups, after RoC (P25).
    normalize_by_std: see group_relative.
    std_ddof: see group_relative.
    std_epsilon: see group_relative.

  Returns:
    float64 [N]; in order of the groups and of their trajectories.
  """
  return np.concatenate([np.zeros(0), *(
      group_relative(group.rewards, normalize_by_std=normalize_by_std,
                     std_ddof=std_ddof, std_epsilon=std_epsilon)
      for group in groups)])
