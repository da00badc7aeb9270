"""Estimators against values worked out by hand."""

import itertools
import math

import pytest

from rstar2_jax.evaluation import estimators


def test_avg_at_k_is_clustered_by_problem():
  # Problem means 1, 1/2, 0: mean 1/2, deviation 1/2; t(0.975, 2) = 4.302653.
  found = estimators.avg_at_k([[1, 1, 1, 1], [1, 0], [0, 0, 0]])
  assert found.mean == 0.5
  assert found.high - 0.5 == pytest.approx(4.302653 * 0.5 / math.sqrt(3),
                                           rel=1e-6)


def test_pass_at_k_by_hand():
  # 2 of 4 right: 1 - C(2,2)/C(4,2) = 5/6; none: 0; all: 1.
  found = estimators.pass_at_k([[1, 0, 1, 0], [0] * 4, [1] * 4], 2)
  assert found.mean == pytest.approx((5 / 6 + 0 + 1) / 3)


@pytest.mark.parametrize("right", range(6))
@pytest.mark.parametrize("k", range(1, 6))
def test_pass_at_k_is_the_share_of_all_subsets(right, k):
  rewards = [1] * right + [0] * (5 - right)
  subsets = list(itertools.combinations(rewards, k))
  expected = sum(any(s) for s in subsets) / len(subsets)
  assert estimators.pass_at_k([rewards], k).mean == pytest.approx(expected)


def test_pass_at_k_needs_k_samples():
  with pytest.raises(ValueError, match="pass@3"):
    estimators.pass_at_k([[1, 0, 1], [1, 0]], 3)


def test_maj_at_k():
  found = estimators.maj_at_k(
      [["7", "7", "3", None], ["1", "2", "2"], ["4", "5"], [None, None]],
      [[1, 1, 0, 0], [1, 0, 0], [1, 0], [0, 0]])
  # Right; outvoted; a tie of a right and a wrong one; no answer.
  assert found.mean == pytest.approx((1 + 0 + 0.5 + 0) / 4)
