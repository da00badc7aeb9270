"""Entropy from a few logprobs, worked out by hand."""

import math

import pytest

from rstar2_jax.rollout import served_scores

LN2 = math.log(2)


@pytest.mark.parametrize("probabilities, num_ids, entropy", [
    ((0.5, 0.5), 2, LN2),  # all is known
    ((0.5, 0.25, 0.25), 3, 1.5 * LN2),
    # Half of it is spread over two others: 1/2 ln 2 + 2 * 1/4 ln 4.
    ((0.5,), 3, 1.5 * LN2),
    # An eighth over two: 1/2 ln 2 + 2 * 3/16 ln 16/3 + 2 * 1/16 ln 16.
    ((0.5, 0.1875, 0.1875), 5,
     0.5 * LN2 + 0.375 * math.log(16 / 3) + 0.125 * 4 * LN2),
    ((1.0,), 100, 0.0),
    ((), 8, 3 * LN2),  # nothing is known
])
def test_what_is_left_is_spread_evenly(probabilities, num_ids, entropy):
  found = served_scores.entropy(
      [math.log(p) for p in probabilities], num_ids)
  assert found == pytest.approx(entropy, abs=1e-9)


def test_rounding_above_one_is_no_negative_rest():
  top = [math.log(0.5) + 1e-7] * 2
  assert served_scores.entropy(top, 10) == pytest.approx(LN2, abs=1e-6)
