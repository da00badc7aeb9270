"""Group-relative advantages against values computed by hand."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.grpo import advantages


def test_values_by_hand():
  # mean 0.25; deviations 0.75, -0.25 x 3; variance (0.5625 + 3 * 0.0625) / 4
  # = 0.1875, std 0.4330: 0.75 / 0.4330 = 1.7321, -0.25 / 0.4330 = -0.5774.
  actual = advantages.group_relative([[1, 0, 0, 0]], std_epsilon=0.0)
  np.testing.assert_allclose(actual, [[1.73205, -0.57735, -0.57735, -0.57735]],
                             atol=1e-5)


def test_ddof_1_divides_by_one_less():
  # Variance 0.75 / 3 = 0.25, std 0.5.
  actual = advantages.group_relative([1, 0, 0, 0], std_ddof=1, std_epsilon=0.0)
  np.testing.assert_allclose(actual, [1.5, -0.5, -0.5, -0.5])


def test_epsilon_is_added_to_the_deviation():
  # Std of (1, 0) is 0.5: 0.5 / (0.5 + 0.5).
  actual = advantages.group_relative([1.0, 0.0], std_epsilon=0.5)
  np.testing.assert_allclose(actual, [0.5, -0.5])


def test_without_std_only_the_mean_is_taken_off():
  actual = advantages.group_relative([1.0, 0, 0, 0], normalize_by_std=False)
  np.testing.assert_allclose(actual, [0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3, 1e9, -0.7])
@pytest.mark.parametrize("size", [1, 3, 7, 16])
@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_equal_rewards_give_exactly_zero(value, size, ddof, epsilon):
  """P11: also where the mean of equal floats is not that float."""
  with np.errstate(all="raise"):
    actual = advantages.group_relative(
        np.full((2, size), value), std_ddof=ddof, std_epsilon=epsilon)
  assert np.array_equal(actual, np.zeros((2, size)))


@given(st.lists(st.sampled_from([0.0, 1.0, 0.5]), min_size=1, max_size=32))
def test_sums_to_zero_and_follows_permutations(rewards):
  actual = advantages.group_relative(rewards)
  assert abs(actual.sum()) < 1e-6
  np.testing.assert_allclose(advantages.group_relative(rewards[::-1]),
                             actual[::-1], atol=1e-9)


def test_of_groups_of_different_sizes():
  def group(*rewards):
    prompt = types.Prompt(id="p", problem="?", answer="1")
    return types.TrajectoryGroup(prompt=prompt, trajectories=tuple(
        types.Trajectory(prompt=prompt, sample=i, spans=(), reward=r,
                         stop_reason=types.StopReason.ANSWERED)
        for i, r in enumerate(rewards)))
  actual = advantages.of_groups(
      [group(1.0, 0.0), group(1.0, 0.0, 0.0, 0.0), group(1.0, 1.0)],
      normalize_by_std=False)
  np.testing.assert_allclose(
      actual, [0.5, -0.5, 0.75, -0.25, -0.25, -0.25, 0, 0])
  assert advantages.of_groups([]).shape == (0,)
