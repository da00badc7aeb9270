"""Alarms ring when five steps on average say so, once, with the number."""

import pytest

from rstar2_jax.reports import alarms


def _steps(metric, values):
  return [{"step": i, metric: v} for i, v in enumerate(values)]


@pytest.mark.parametrize("metric, before, after", [
    ("rollout/reward", 0.6, 0.29), ("learner/entropy", 1.0, 0.09),
    ("learner/clipped", 0.01, 0.21), ("learner/rollout_kl", 0.001, 0.011),
    ("rollout/response_tokens", 100.0, 24.0), ("rollout/truncated", 0.4, 0.51),
    ("rollout/tool_calls", 1.0, 0.2), ("rollout/tool_error_ratio", 0.7, 0.81),
    ("roc/groups_kept", 0.3, 0.19)])
def test_rings_once_all_five_are_bad(metric, before, after):
  rung = alarms.all_of(_steps(metric, [before] * 6 + [after] * 8))
  assert [a.metric for a in rung] == [metric]
  assert rung[0].text.startswith(f"{metric} = ")
  # The mean of five passes the limit with the last of them at the latest.
  assert 6 < rung[0].step <= 10
  assert not alarms.all_of(_steps(metric, [before] * 20))


def test_one_bad_step_does_not_ring():
  values = [0.6] * 6 + [0.0] + [0.6] * 6
  assert not alarms.all_of(_steps("rollout/reward", values))


def test_value_is_the_mean_of_five():
  rung = alarms.all_of(_steps("learner/clipped", [0.1, 0.1, 0.1, 0.3, 0.5]))
  assert [(a.step, a.value) for a in rung] == [(4, pytest.approx(0.22))]


def test_rings_again_only_after_it_was_off():
  bad, good = [1.0] * 5, [0.0] * 5
  rung = alarms.all_of(_steps("rollout/truncated", bad + good + bad))
  assert [a.step for a in rung] == [4, 12]  # 3 of 5 are over one half


def test_starting_tells_only_what_begins_with_the_last_step():
  watch = alarms.Watch()
  rung = [watch.add(s) for s in _steps("rollout/truncated", [1.0] * 6)]
  assert rung[:4] == [[]] * 4
  assert [a.step for a in rung[4]] == [4]
  assert rung[5] == []
  assert alarms.all_of([]) == []


def test_lost_trajectories_are_a_share_of_all():
  steps = [{"step": i, "rollout/masked_out": 6.0, "rollout/trajectories": 100.0}
           for i in range(5)]
  assert [a.value for a in alarms.all_of(steps)] == [pytest.approx(0.06)]


def test_steps_without_a_number_are_passed_over():
  values = [0.9, None, 0.9, 0.9, None, 0.9, 0.9]
  rung = alarms.all_of([{"step": 0}, *(
      {"step": i + 1, "rollout/truncated": v} for i, v in enumerate(values))])
  assert [a.step for a in rung] == [7]
