"""Resample-on-Correct (paper, section 2.2.3).

A group of G trajectories is cut to the K that are trained on. Failures are
kept diverse; successes are preferred when their tool calls ran without errors
and their answer has the right form. In every mode trajectories that our
infrastructure spoiled leave the group first.

1. `drop_constant`: groups whose rewards are all equal carry no signal.
2. `resample`: K of the others.
"""

from collections.abc import Sequence
import dataclasses
from typing import Literal

import numpy as np

from rstar2_jax import types
from rstar2_jax.rewards import penalties

Mode = Literal["paper", "release", "random"]


def drop_constant(
    groups: Sequence[types.TrajectoryGroup],
) -> list[types.TrajectoryGroup]:
  """Leaves out spoiled trajectories, then groups with equal rewards.

  Args:
    groups: graded groups.

  Returns:
    The groups with at least two different rewards, in order, without
    masked-out trajectories.

  Raises:
    ValueError: a trajectory has not been graded.
  """
  return [group for group in map(_without_masked, groups)
          if len(set(group.rewards.tolist())) > 1]


def resample(
    groups: Sequence[types.TrajectoryGroup],
    *,
    keep: int,
    mode: Mode = "paper",
    use_error_ratio: bool = True,
    use_answer_format: bool = True,
    use_repetition: bool = False,
    repetition_ngram: int = 5,
    repetition_count: int = 5,
    epsilon: float = 0.1,
    min_negatives: int = 2,
    min_positives: int = 2,
    rng: np.random.Generator,
) -> list[types.TrajectoryGroup]:
  """Cuts every group to `keep` trajectories.

  Args:
    groups: graded groups; a reward above 0 is a success.
    keep: K.
    mode: "paper": half of each class, successes weighted by 1 / (penalty +
      epsilon); "release": the released code's quotas and lowest penalties;
      "random": any K, a baseline of equal compute.
    use_error_ratio: count erroneous tool calls in the penalty (Eq. 4).
    use_answer_format: count answer tags in the penalty (Eq. 5).
    use_repetition: count repeated n-grams (`penalties.repetition`).
    repetition_ngram: their length [tokens].
    repetition_count: occurrences that are not yet repetition.
    epsilon: see mode "paper".
    min_negatives: least failures kept, mode "release".
    min_positives: least successes kept, mode "release".
    rng: draws of modes "paper" and "random".

  Returns:
    Groups of K in order of `sample`. A group that has fewer is left out, one
    that has exactly K is kept whole.

  Raises:
    ValueError: unknown mode, or a trajectory has not been graded.
  """
  if mode not in ("paper", "release", "random"):
    raise ValueError(
        f"roc mode {mode!r}: must be 'paper', 'release' or 'random'")
  resampled = []
  for group in map(_without_masked, groups):
    size = len(group.trajectories)
    if size < keep:
      continue
    if size > keep:
      penalty_G = np.array([  # pylint: disable=invalid-name
          penalties.total(t, use_error_ratio=use_error_ratio,
                          use_answer_format=use_answer_format,
                          use_repetition=use_repetition,
                          repetition_ngram=repetition_ngram,
                          repetition_count=repetition_count)
          for t in group.trajectories])
      positives = np.flatnonzero(group.rewards > 0)
      negatives = np.flatnonzero(group.rewards <= 0)
      if mode == "paper":
        kept = _draw(positives, negatives, penalty_G, keep, epsilon, rng)
      elif mode == "random":
        kept = rng.choice(size, keep, replace=False).tolist()
      else:
        kept = _lowest(positives, negatives, penalty_G, keep, min_negatives,
                       min_positives)
      group = dataclasses.replace(group, trajectories=tuple(
          group.trajectories[i] for i in sorted(kept)))
    resampled.append(group)
  return resampled


def paper_quota(
    num_positives: int, num_negatives: int, keep: int
) -> tuple[int, int]:
  """How many successes and failures the paper keeps.

  The paper keeps floor(|neg| / 2) of 2K, which is the share keep / G for any
  G here. With one failure in a group that would be none, and a group without
  signal: both classes keep one at least.

  Args:
    num_positives: successes.
    num_negatives: failures; with the successes more than keep.
    keep: K.

  Returns:
    (successes, failures), together K.
  """
  size = num_positives + num_negatives
  failures = max(num_negatives * keep // size, min(1, num_negatives))
  if num_positives and failures == keep and keep > 1:
    failures -= 1
  return keep - failures, failures


def release_quota(
    num_positives: int,
    num_negatives: int,
    keep: int,
    *,
    min_negatives: int,
    min_positives: int,
) -> tuple[int, int]:
  """How many successes and failures the released code keeps.

  Rounds half to even, as Python does. If both shares are under their least
  numbers the whole group is kept.

  Args:
    num_positives: successes.
    num_negatives: failures; with the successes more than keep.
    keep: K.
    min_negatives: least failures kept, as far as there are any.
    min_positives: least successes kept, likewise.

  Returns:
    (successes, failures).
  """
  size = num_positives + num_negatives
  successes = round(num_positives * keep / size)
  failures = round(num_negatives * keep / size)
  if successes < min_positives and failures < min_negatives:
    return num_positives, num_negatives
  least = min(min_negatives, num_negatives)
  if failures <= least:
    successes, failures = keep - least, least
  least = min(min_positives, num_positives)
  if successes <= least:
    successes, failures = least, keep - least
  return successes, failures


def _draw(
    positives: np.ndarray,
    negatives: np.ndarray,
    penalty_G: np.ndarray,  # pylint: disable=invalid-name
    keep: int,
    epsilon: float,
    rng: np.random.Generator,
) -> list[int]:
  """Mode "paper": failures uniformly, successes by inverse penalty."""
  num_positives, num_negatives = paper_quota(
      len(positives), len(negatives), keep)
  kept = rng.choice(negatives, num_negatives, replace=False).tolist()
  if num_positives:
    weights = 1.0 / (penalty_G[positives] + epsilon)
    kept += rng.choice(positives, num_positives, replace=False,
                       p=weights / weights.sum()).tolist()
  return kept


def _lowest(
    positives: np.ndarray,
    negatives: np.ndarray,
    penalty_G: np.ndarray,  # pylint: disable=invalid-name
    keep: int,
    min_negatives: int,
    min_positives: int,
) -> list[int]:
  """Mode "release": first failures, successes of lowest penalty (stable)."""
  num_positives, num_negatives = release_quota(
      len(positives), len(negatives), keep, min_negatives=min_negatives,
      min_positives=min_positives)
  order = np.argsort(penalty_G[positives], kind="stable")
  return [*positives[order[:num_positives]].tolist(),
          *negatives[:num_negatives].tolist()]


def _without_masked(group: types.TrajectoryGroup) -> types.TrajectoryGroup:
  kept = tuple(t for t in group.trajectories if not t.is_masked_out)
  for trajectory in kept:
    if trajectory.reward is None:
      raise ValueError(f"trajectory {group.prompt.id}/{trajectory.sample} has"
                       " no reward; grade groups before resampling them")
  return dataclasses.replace(group, trajectories=kept)
