"""Selection between the rollout and the update, by configuration."""

import dataclasses

import numpy as np
import pytest

from experiments import config_flags
from experiments import presets
from rstar2_jax import selection
from rstar2_jax import types

_PROMPT = types.Prompt(id="p", problem="?", answer="1")
_Stop = types.StopReason


def _trajectory(sample, reward, stop_reason=_Stop.ANSWERED, statuses=()):
  return types.Trajectory(
      prompt=_PROMPT, sample=sample, stop_reason=stop_reason, spans=(
          types.Span(token_ids=(1, 2), source=types.Source.PROMPT),
          types.Span(token_ids=(10 + sample, 3), source=types.Source.POLICY,
                     logprobs=(-1.0, -1.0))),
      turn_texts=("<answer>\\boxed{1}</answer>",), reward=reward,
      tool_results=tuple(types.ToolResult(status=s) for s in statuses))


def _group(*trajectories):
  return types.TrajectoryGroup(prompt=_PROMPT, trajectories=trajectories)


def _config(**values):
  return config_flags.replace(
      presets.LAPTOP, {"roc.enabled": False, **values})


def _packed(kept, cfg):
  """Advantage by first sampled id of each trajectory on the packed rows."""
  batch = selection.pack(kept, cfg)
  ids, values = np.array(batch.tokens), np.array(batch.advantages)
  return {int(i): float(values[ids == i][0])
          for i in np.unique(ids) if i >= 10}


def test_overlong_filtering_leaves_the_mean_as_it_is():
  """Rewards 1, 0, 0, 0 with one 0 truncated: mean 1/4, std sqrt(3)/4.

  The truncated one is not trained on; the others keep (1 - 1/4) / std =
  sqrt(3) and -1 / sqrt(3).
  """
  group = _group(_trajectory(0, 1.0), _trajectory(1, 0.0),
                 _trajectory(2, 0.0, _Stop.MAX_TOKENS), _trajectory(3, 0.0))
  cfg = _config(**{"loss.filter_overlong": True, "loss.std_epsilon": 0.0})
  assert _packed(selection.select([group], cfg, 0), cfg) == pytest.approx(
      {10: 3 ** 0.5, 11: -(3 ** -0.5), 13: -(3 ** -0.5)})
  cfg = _config(**{"loss.std_epsilon": 0.0})
  assert _packed(selection.select([group], cfg, 0), cfg).keys() == {
      10, 11, 12, 13}


def test_a_group_without_anything_to_train_on_is_left_out():
  """All truncated, with rewards that a penalty has made unequal."""
  bad, ok = types.ToolStatus.RUNTIME_ERROR, types.ToolStatus.SUCCESS
  group = _group(_trajectory(0, 0.0, _Stop.MAX_TOKENS, [bad]),
                 _trajectory(1, 0.0, _Stop.MAX_TOKENS, [ok]))
  cfg = _config(**{"reward.tool_error_penalty": 0.5})
  assert len(selection.select([group], cfg, 0)) == 1
  cfg = dataclasses.replace(
      cfg, loss=dataclasses.replace(cfg.loss, filter_overlong=True))
  assert not selection.select([group], cfg, 0)


def test_the_tool_error_penalty_makes_signal_where_all_are_right():
  bad, ok = types.ToolStatus.RUNTIME_ERROR, types.ToolStatus.SUCCESS
  group = _group(_trajectory(0, 1.0, statuses=[bad]),
                 _trajectory(1, 1.0, statuses=[ok]))
  assert not selection.select([group], _config(), 0)
  cfg = _config(**{"reward.tool_error_penalty": 0.25})
  (kept,) = selection.select([group], cfg, 0)
  assert kept.rewards.tolist() == [0.75, 1.0]
  # What is reported stays the outcome: the group that came in is unchanged.
  assert group.rewards.tolist() == [1.0, 1.0]


def test_roc_mode_and_step_decide_the_draw():
  group = _group(*(_trajectory(i, float(i < 4)) for i in range(8)))
  cfg = _config(**{"roc.enabled": True, "roc.mode": "random", "roc.keep": 4,
                   "rollout.group_size": 8})
  def draw(step):
    return [tuple(t.sample for t in g.trajectories)
            for g in selection.select([group] * 20, cfg, step)]
  assert draw(0) == draw(0)
  assert draw(0) != draw(1)


def _fates(groups, cfg):
  kept = selection.select(groups, cfg, 0)
  return [[str(fate) for fate, _ in group]
          for group in selection.fates(groups, kept, cfg)]


def test_fates_without_roc():
  """One group with signal, one lost and one truncated in it; one without."""
  mixed = _group(_trajectory(0, 1.0), _trajectory(1, 0.0),
                 _trajectory(2, None, _Stop.INFRA_ERROR),
                 _trajectory(3, 0.0, _Stop.MAX_TOKENS))
  equal = _group(_trajectory(4, 1.0), _trajectory(5, 1.0))
  groups = [mixed, equal]
  assert _fates(groups, _config()) == [
      ["trained", "trained", "lost", "trained"], ["no_signal", "no_signal"]]
  cfg = _config(**{"loss.filter_overlong": True})
  assert _fates(groups, cfg)[0] == ["trained", "trained", "lost", "overlong"]


def test_fates_with_roc():
  """K = 2 of a right and three wrong: one wrong is drawn, two are not."""
  cfg = _config(**{"roc.enabled": True, "roc.keep": 2,
                   "roc.min_negatives": 1, "roc.min_positives": 1,
                   "loss.std_epsilon": 0.0})
  group = _group(*(_trajectory(i, float(i == 0)) for i in range(4)))
  (fates,) = _fates([group], cfg)
  assert fates[0] == "trained"
  assert sorted(fates) == ["not_drawn", "not_drawn", "trained", "trained"]
  kept = selection.select([group], cfg, 0)
  values = [a for _, a in selection.fates([group], kept, cfg)[0]]
  # Rewards 1 and 0: mean 1/2, and a deviation of 1/2 too.
  assert values[0] == pytest.approx(1.0)
  assert sorted(v is None for v in values) == [False, False, True, True]
  few = _group(_trajectory(0, 1.0), _trajectory(1, 0.0),
               _trajectory(2, None, _Stop.INFRA_ERROR))
  cfg = _config(**{"roc.enabled": True, "roc.keep": 4})
  assert _fates([few], cfg) == [["too_few", "too_few", "lost"]]


def test_fates_follow_the_penalty_and_the_length():
  bad, ok = types.ToolStatus.RUNTIME_ERROR, types.ToolStatus.SUCCESS
  group = _group(_trajectory(0, 1.0, statuses=[bad]),
                 _trajectory(1, 1.0, statuses=[ok]))
  cfg = _config(**{"reward.tool_error_penalty": 0.25})
  assert _fates([group], cfg) == [["trained", "trained"]]
  long = _group(_trajectory(0, 0.0, _Stop.MAX_TOKENS, [bad]),
                _trajectory(1, 0.0, _Stop.MAX_TOKENS, [ok]))
  cfg = _config(**{"reward.tool_error_penalty": 0.25,
                   "loss.filter_overlong": True})
  assert _fates([long], cfg) == [["overlong", "overlong"]]
