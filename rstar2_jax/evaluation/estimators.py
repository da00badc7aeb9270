"""avg@k, pass@k, maj@k of a benchmark, with intervals clustered by problem.

Samples of one problem are alike, so the problem is the unit of every interval
(Student's t over problems). Samples lost to infrastructure are left out before;
a problem may have fewer than k.
"""

import collections
from collections.abc import Sequence
import math

import numpy as np

from rstar2_jax.evaluation import comparison


def avg_at_k(rewards: Sequence[Sequence[float]]) -> comparison.Interval:
  """Mean pass@1: the mean over problems of the mean over samples.

  Args:
    rewards: [problems][samples], 0 or 1; at least one problem, none empty.
  """
  return comparison.interval([float(np.mean(r)) for r in rewards])


def pass_at_k(
    rewards: Sequence[Sequence[float]], k: int
) -> comparison.Interval:
  """Probability that one of k samples is right, without bias.

  1 - C(n - c, k) / C(n, k) for c right ones of n (Chen et al. 2021,
  arXiv 2107.03374, Eq. 1), averaged over problems.

  Args:
    rewards: [problems][samples], 0 or 1.
    k: at most the samples of the problem with the fewest.

  Raises:
    ValueError: a problem has fewer than k samples.
  """
  if min(map(len, rewards)) < k:
    raise ValueError(f"pass@{k}: a problem has {min(map(len, rewards))}"
                     " samples")
  return comparison.interval([
      1 - math.comb(len(r) - round(sum(r)), k) / math.comb(len(r), k)
      for r in rewards])


def maj_at_k(
    answers: Sequence[Sequence[str | None]],
    rewards: Sequence[Sequence[float]],
) -> comparison.Interval:
  """Share of problems whose most frequent answer is right.

  Args:
    answers: [problems][samples], None where there is none: it has no vote.
    rewards: as many, 0 or 1; equal answers have equal rewards.

  Returns:
    The mean; several answers with as many votes count with their mean, a
    problem without any answer as wrong.
  """
  values = []
  for given, right in zip(answers, rewards, strict=True):
    votes = collections.Counter(a for a in given if a is not None)
    most = max(votes.values(), default=0)
    verdict = dict(zip(given, right, strict=True))
    winners = [verdict[a] for a, n in votes.items() if n == most]
    values.append(float(np.mean(winners)) if winners else 0.0)
  return comparison.interval(values)
