"""Selection between the rollout and the update, by configuration."""

import dataclasses

import numpy as np
import pytest

from experiments import config_flags
from experiments import presets
from rstar2_jax import rl_loop
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
  batch = rl_loop.pack(kept, cfg)
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
  assert _packed(rl_loop.select([group], cfg, 0), cfg) == pytest.approx(
      {10: 3 ** 0.5, 11: -(3 ** -0.5), 13: -(3 ** -0.5)})
  cfg = _config(**{"loss.std_epsilon": 0.0})
  assert _packed(rl_loop.select([group], cfg, 0), cfg).keys() == {
      10, 11, 12, 13}


def test_a_group_without_anything_to_train_on_is_left_out():
  """All truncated, with rewards that a penalty has made unequal."""
  bad, ok = types.ToolStatus.RUNTIME_ERROR, types.ToolStatus.SUCCESS
  group = _group(_trajectory(0, 0.0, _Stop.MAX_TOKENS, [bad]),
                 _trajectory(1, 0.0, _Stop.MAX_TOKENS, [ok]))
  cfg = _config(**{"reward.tool_error_penalty": 0.5})
  assert len(rl_loop.select([group], cfg, 0)) == 1
  cfg = dataclasses.replace(
      cfg, loss=dataclasses.replace(cfg.loss, filter_overlong=True))
  assert not rl_loop.select([group], cfg, 0)


def test_the_tool_error_penalty_makes_signal_where_all_are_right():
  bad, ok = types.ToolStatus.RUNTIME_ERROR, types.ToolStatus.SUCCESS
  group = _group(_trajectory(0, 1.0, statuses=[bad]),
                 _trajectory(1, 1.0, statuses=[ok]))
  assert not rl_loop.select([group], _config(), 0)
  cfg = _config(**{"reward.tool_error_penalty": 0.25})
  (kept,) = rl_loop.select([group], cfg, 0)
  assert kept.rewards.tolist() == [0.75, 1.0]
  # What is reported stays the outcome: the group that came in is unchanged.
  assert group.rewards.tolist() == [1.0, 1.0]


def test_roc_mode_and_step_decide_the_draw():
  group = _group(*(_trajectory(i, float(i < 4)) for i in range(8)))
  cfg = _config(**{"roc.enabled": True, "roc.mode": "random", "roc.keep": 4,
                   "rollout.group_size": 8})
  def draw(step):
    return [tuple(t.sample for t in g.trajectories)
            for g in rl_loop.select([group] * 20, cfg, step)]
  assert draw(0) == draw(0)
  assert draw(0) != draw(1)
