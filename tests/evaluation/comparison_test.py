"""Intervals and verdicts against values worked out by hand."""

import math

import pytest

from rstar2_jax.evaluation import comparison


def test_interval_is_students_t():
  # Mean 2, deviation 1, n = 3: t(0.975, 2) = 4.302653, over sqrt(3).
  found = comparison.interval([1.0, 2.0, 3.0])
  assert found.mean == 2 and found.count == 3
  assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
  assert 2 - found.low == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)


def test_a_single_value_has_no_interval():
  found = comparison.interval([0.5])
  assert found.mean == 0.5 and math.isnan(found.low) and math.isnan(found.high)


def test_difference_is_paired_by_seed():
  # Seeds differ by much more than arms do; seed 9 is in one arm only.
  gap = comparison.difference({0: 0.2, 1: 0.6, 2: 0.9, 9: 0.0},
                              {0: 0.1, 1: 0.5, 2: 0.8})
  assert gap.count == 3
  assert gap.mean == pytest.approx(0.1)
  assert gap.low == pytest.approx(0.1) and gap.high == pytest.approx(0.1)


def test_no_seed_in_common_is_no_difference():
  assert comparison.difference({0: 1.0}, {1: 1.0}) is None


def _gap(low, high):
  return comparison.Interval((low + high) / 2, low, high, 5)


@pytest.mark.parametrize("expected,low,high,verdict", [
    ("higher", 0.01, 0.05, "reproduced"),
    ("higher", -0.05, -0.01, "not reproduced"),
    ("higher", -0.01, 0.05, "undecided"),
    ("lower", -0.05, -0.01, "reproduced"),
    ("lower", 0.01, 0.05, "not reproduced"),
    ("lower", -0.05, 0.01, "undecided"),
    ("no_gain", -0.05, 0.005, "reproduced"),  # a gain under the margin
    ("no_gain", 0.02, 0.05, "not reproduced"),
    ("no_gain", 0.001, 0.013, "undecided"),  # certain, but hardly a gain
    ("no_gain", -0.05, 0.05, "undecided"),
])
def test_verdict(expected, low, high, verdict):
  assert comparison.verdict(
      _gap(low, high), expected, margin=0.01) == verdict


def test_one_seed_decides_nothing():
  gap = comparison.interval([0.5])
  assert comparison.verdict(gap, "higher") == "undecided"
  assert comparison.verdict(None, "lower") == "undecided"


def test_measures_are_of_the_last_quarter():
  steps = [{"step": i, "rollout/response_tokens": float(i)} for i in range(8)]
  del steps[7]["rollout/response_tokens"]
  steps[6]["rollout/tool_error_ratio_correct"] = None
  found = comparison.measures({"pass_at_1_after": 0.25}, steps)
  assert found == {"pass_at_1": 0.25, "response_tokens": 6.0}


def test_a_run_without_steps_or_evaluation_has_no_measures():
  assert comparison.measures({"pass_at_1_after": None}, []) == {}


def test_band_spans_the_steps_of_all_runs():
  steps, means, lows, highs = comparison.band([{0: 1.0, 1: 2.0}, {0: 3.0}])
  assert steps == [0, 1] and means == [2.0, 2.0]
  # t(0.975, 1) = 12.7062; deviation sqrt(2) over sqrt(2).
  assert highs[0] - 2 == pytest.approx(12.7062, rel=1e-5)
  assert math.isnan(lows[1]) and math.isnan(highs[1])


def test_smooth_is_a_running_mean_over_steps_that_have_a_value():
  assert comparison.smooth({0: 2.0, 3: 4.0, 4: 9.0}, 2) == {
      0: 2.0, 3: 3.0, 4: 6.5}
