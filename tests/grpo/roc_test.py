"""Resample-on-Correct: quotas, frequencies, and what leaves a group."""

import collections
import dataclasses

import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.grpo import roc

ANSWER = "<answer>\\boxed{1}</answer>"


def _trajectory(sample, reward, statuses=(), text=ANSWER,
                stop_reason=types.StopReason.ANSWERED):
  return types.Trajectory(
      prompt=types.Prompt(id="p", problem="?", answer="1"), sample=sample,
      spans=(), stop_reason=stop_reason, turn_texts=("",) * 9 + (text,),
      tool_results=tuple(types.ToolResult(status=s) for s in statuses),
      reward=reward)


def _group(*trajectories):
  return types.TrajectoryGroup(
      prompt=trajectories[0].prompt, trajectories=trajectories)


def _simple(num_positives, num_negatives):
  rewards = [1.0] * num_positives + [0.0] * num_negatives
  return _group(*(_trajectory(i, r) for i, r in enumerate(rewards)))


# (most positives of the row, positives kept): 32 -> 16 with least numbers 2/2,
# as measured on the released code.
RELEASE_ROWS = [(1, 1), (5, 2), (6, 3), (9, 4), (10, 5), (13, 6), (14, 7),
                (17, 8), (18, 9), (21, 10), (22, 11), (25, 12), (26, 13),
                (30, 14), (31, 15)]


@pytest.mark.parametrize("num_positives", range(1, 32))
def test_release_quota_table(num_positives):
  kept = next(k for most, k in RELEASE_ROWS if num_positives <= most)
  assert roc.release_quota(
      num_positives, 32 - num_positives, 16, min_negatives=2, min_positives=2
  ) == (kept, 16 - kept)


@pytest.mark.parametrize("size", range(17, 65))
def test_release_quota_always_adds_up_to_16(size):
  for num_positives in range(size + 1):
    quota = roc.release_quota(num_positives, size - num_positives, 16,
                              min_negatives=2, min_positives=2)
    assert sum(quota) == 16
    assert quota[0] <= num_positives and quota[1] <= size - num_positives


def test_release_keeps_the_whole_group_when_both_are_under_their_least():
  # 3 of 2 + 2: shares round(1.5) = 2 each, both under 3.
  assert roc.release_quota(2, 2, 3, min_negatives=3, min_positives=3) == (2, 2)


@pytest.mark.parametrize("num_positives, num_negatives, expected", [
    (16, 16, (8, 8)),
    (11, 21, (6, 10)),  # floor(21 / 2) = 10
    (1, 31, (1, 15)),
    (31, 1, (15, 1)),  # floor(1 / 2) = 0 would leave no signal
    (32, 0, (16, 0)),
    (0, 32, (0, 16)),
])
def test_paper_quota(num_positives, num_negatives, expected):
  assert roc.paper_quota(num_positives, num_negatives, 16) == expected


@pytest.mark.parametrize("size, keep", [(32, 16), (16, 8), (9, 4), (30, 16),
                                        (3, 2), (2, 1)])
def test_paper_quota_adds_up_and_never_exceeds_a_class(size, keep):
  for num_positives in range(size + 1):
    positives, negatives = roc.paper_quota(
        num_positives, size - num_positives, keep)
    assert positives + negatives == keep
    assert 0 <= positives <= num_positives
    assert 0 <= negatives <= size - num_positives
    if keep > 1 and 0 < num_positives < size:
      assert positives and negatives


def test_paper_mode_draws_positives_by_inverse_penalty():
  """One of three positives is kept, with probability 1 / (penalty + 0.1).

  Penalties: no error 0, all errors 1, no call 0.5 -> weights 10, 1/1.1 and
  1/0.6, sum 12.576: probabilities 0.795, 0.072, 0.133. 6000 draws: standard
  errors at most 0.0052.
  """
  ok, bad = types.ToolStatus.SUCCESS, types.ToolStatus.TIMEOUT
  group = _group(_trajectory(0, 1.0, [ok]), _trajectory(1, 1.0, [bad]),
                 _trajectory(2, 1.0), *(_trajectory(i, 0.0)
                                        for i in range(3, 6)))
  rng = np.random.default_rng(0)
  counts = collections.Counter()
  for _ in range(6000):
    (kept,) = roc.resample([group], keep=2, mode="paper", epsilon=0.1, rng=rng)
    counts.update(t.sample for t in kept.trajectories)
  for sample, expected in [(0, 0.795), (1, 0.072), (2, 0.133), (3, 1 / 3),
                           (4, 1 / 3), (5, 1 / 3)]:
    assert abs(counts[sample] / 6000 - expected) < 0.025, sample


@pytest.mark.parametrize("use_error_ratio, share", [
    (True, 11 / 12),  # penalties 1 and 0: weights 1 / 1.1 and 1 / 0.1
    (False, 1 / 2),
])
def test_penalties_can_be_left_out(use_error_ratio, share):
  """3000 draws of one of two positives: standard errors at most 0.0091."""
  ok, bad = types.ToolStatus.SUCCESS, types.ToolStatus.SYNTAX_ERROR
  group = _group(_trajectory(0, 1.0, [bad]),
                 _trajectory(1, 1.0, [ok], text="no answer tag"),
                 _trajectory(2, 0.0), _trajectory(3, 0.0))
  rng = np.random.default_rng(1)
  num_clean = 0
  for _ in range(3000):
    (kept,) = roc.resample([group], keep=2, rng=rng, use_answer_format=False,
                           use_error_ratio=use_error_ratio)
    num_clean += kept.trajectories[0].sample == 1
  assert abs(num_clean / 3000 - share) < 0.04


def test_release_mode_takes_lowest_penalties_and_first_negatives():
  ok, bad = types.ToolStatus.SUCCESS, types.ToolStatus.RUNTIME_ERROR
  group = _group(
      _trajectory(0, 1.0, [bad]), _trajectory(1, 0.0, [bad]),
      _trajectory(2, 1.0, [ok]), _trajectory(3, 0.0, [ok]),
      _trajectory(4, 1.0, [ok]), _trajectory(5, 0.0, [ok]),
      _trajectory(6, 1.0, [ok, bad]), _trajectory(7, 0.0))
  (kept,) = roc.resample([group], keep=4, mode="release",
                         rng=np.random.default_rng(0))
  assert [t.sample for t in kept.trajectories] == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["paper", "release"])
def test_groups_have_k_or_leave(mode):
  rng = np.random.default_rng(0)
  sizes = [(3, 13), (8, 8), (4, 4), (3, 4), (1, 15), (15, 1)]
  kept = roc.resample([_simple(*s) for s in sizes], keep=8, mode=mode, rng=rng)
  assert [len(g.trajectories) for g in kept] == [8] * 5
  assert kept[2] == _simple(4, 4)  # exactly K: untouched
  for group in kept:
    samples = [t.sample for t in group.trajectories]
    assert samples == sorted(set(samples))
    assert 0 < group.rewards.sum() < 8  # both signs are kept


def test_random_mode_draws_any_k_of_the_group():
  """Each of 8 with probability 3/8, whatever it did: standard error 0.0099.

  The paper's mode would keep a clean success ten times as often as one with
  errors, and the released code's always.
  """
  ok, bad = types.ToolStatus.SUCCESS, types.ToolStatus.RUNTIME_ERROR
  group = _group(*(_trajectory(i, float(i < 2), [ok if i else bad])
                   for i in range(8)))
  rng = np.random.default_rng(3)
  counts = collections.Counter()
  for _ in range(2400):
    (kept,) = roc.resample([group], keep=3, mode="random", rng=rng)
    samples = [t.sample for t in kept.trajectories]
    assert samples == sorted(set(samples)) and len(samples) == 3
    counts.update(samples)
  for sample in range(8):
    assert abs(counts[sample] / 2400 - 3 / 8) < 0.04, sample


def test_repetition_counts_where_it_is_in_use():
  """A success that repeats itself loses to one that does not."""
  def success(sample, ids):
    return dataclasses.replace(
        _trajectory(sample, 1.0), spans=(types.Span(
            token_ids=ids, source=types.Source.POLICY,
            logprobs=(-1.0,) * len(ids)),))
  group = _group(success(0, (1, 2) * 3), success(1, (1, 2, 3, 4, 5, 6)),
                 _trajectory(2, 0.0), _trajectory(3, 0.0))
  def kept(use_repetition):
    (resampled,) = roc.resample(
        [group], keep=2, mode="release", min_positives=1, min_negatives=1,
        use_repetition=use_repetition, repetition_ngram=2, repetition_count=2,
        rng=np.random.default_rng(0))
    return [t.sample for t in resampled.trajectories]
  assert kept(False) == [0, 2]
  assert kept(True) == [1, 2]


@pytest.mark.parametrize("mode", ["paper", "release", "random"])
def test_same_seed_same_draw(mode):
  def draw():
    return roc.resample([_simple(10, 22)] * 3, keep=16, mode=mode,
                        rng=np.random.default_rng(5))
  assert draw() == draw()


@pytest.mark.parametrize("stop_reason", [types.StopReason.INFRA_ERROR,
                                         types.StopReason.ABORTED])
def test_spoiled_trajectories_leave_first(stop_reason):
  """They count neither in the quota nor in "all rewards equal" (P19, P25)."""
  spoiled = [_trajectory(i, None, stop_reason=stop_reason) for i in (4, 5)]
  mixed = _group(*_simple(2, 2).trajectories, *spoiled)
  constant = _group(*_simple(4, 0).trajectories, *spoiled)
  (kept,) = roc.drop_constant([mixed, constant])
  assert kept.trajectories == _simple(2, 2).trajectories
  (kept,) = roc.resample([mixed], keep=4, rng=np.random.default_rng(0))
  assert kept.trajectories == _simple(2, 2).trajectories
  assert not roc.resample([mixed], keep=5, rng=np.random.default_rng(0))


def test_drop_constant_keeps_order_and_only_signal():
  groups = [_simple(4, 0), _simple(1, 3), _simple(0, 4), _simple(3, 1)]
  assert roc.drop_constant(groups) == [groups[1], groups[3]]
  assert not roc.drop_constant([])


def test_an_ungraded_trajectory_is_an_error():
  group = _group(_trajectory(0, 1.0), _trajectory(1, None))
  with pytest.raises(ValueError, match="trajectory p/1 has no reward"):
    roc.drop_constant([group])


def test_unknown_mode():
  with pytest.raises(ValueError, match="roc mode 'best'"):
    roc.resample([], keep=2, mode="best", rng=np.random.default_rng(0))
