"""From graded groups to the rows of an update: RoC, advantages, packing."""

from collections.abc import Sequence

import numpy as np

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.grpo import advantages
from rstar2_jax.grpo import batching
from rstar2_jax.grpo import roc
from rstar2_jax.rewards import reward
from rstar2_jax.rollout import seeds
from rstar2_jax.rollout import statistics

_Fate = trajectory_records.Fate


def select(
    groups: Sequence[types.TrajectoryGroup], cfg: config.Config, step: int
) -> list[types.TrajectoryGroup]:
  """Groups with signal, cut to K by Resample-on-Correct if that is on."""
  kept = roc.drop_constant(reward.take_off_tool_errors(
      groups, cfg.reward.tool_error_penalty))
  if not cfg.roc.enabled:
    return _with_loss(kept, cfg)
  kept = roc.resample(
      kept, keep=cfg.roc.keep, mode=cfg.roc.mode,
      use_error_ratio=cfg.roc.use_error_ratio,
      use_answer_format=cfg.roc.use_answer_format,
      use_repetition=cfg.roc.use_repetition,
      repetition_ngram=cfg.roc.repetition_ngram,
      repetition_count=cfg.roc.repetition_count, epsilon=cfg.roc.epsilon,
      min_negatives=cfg.roc.min_negatives,
      min_positives=cfg.roc.min_positives,
      rng=np.random.default_rng(seeds.derive(cfg.seed, cfg.stage, "roc", step)))
  return _with_loss(roc.drop_constant(kept), cfg)


def _with_loss(
    groups: Sequence[types.TrajectoryGroup], cfg: config.Config
) -> list[types.TrajectoryGroup]:
  """Groups in which a trajectory enters the loss."""
  return [g for g in groups if any(_is_in_loss(t, cfg) for t in g.trajectories)]


def _is_in_loss(trajectory: types.Trajectory, cfg: config.Config) -> bool:
  """Whether over-long filtering, if it is on, leaves it in (DAPO)."""
  return not (cfg.loss.filter_overlong and
              trajectory.stop_reason is types.StopReason.MAX_TOKENS)


def pack(
    kept: Sequence[types.TrajectoryGroup], cfg: config.Config
) -> types.PackedBatch:
  """Advantages of the kept groups, written on packed rows."""
  trajectories = [t for group in kept for t in group.trajectories]
  values = _advantages(kept, cfg)
  is_in = [_is_in_loss(t, cfg) for t in trajectories]
  return batching.pack(
      [t for t, wanted in zip(trajectories, is_in, strict=True) if wanted],
      values[is_in], row_tokens=cfg.batch.row_tokens)


def fates(
    groups: Sequence[types.TrajectoryGroup],
    kept: Sequence[types.TrajectoryGroup],
    cfg: config.Config,
) -> list[list[tuple[_Fate, float | None]]]:
  """What became of every trajectory, and the advantage of those trained on.

  Args:
    groups: all of a step.
    kept: what `select` made of them.
    cfg: the same as for `select`.

  Returns:
    Like `groups`, group by group and trajectory by trajectory.
  """
  values = _advantages(kept, cfg).tolist() if kept else []
  trajectories = [t for group in kept for t in group.trajectories]
  advantage_of = {_identity(t): value for t, value
                  in zip(trajectories, values, strict=True)}
  return [_group_fates(group, advantage_of, cfg) for group in groups]


def _group_fates(
    group: types.TrajectoryGroup, advantage_of, cfg: config.Config
) -> list[tuple[_Fate, float | None]]:
  values = [advantage_of.get(_identity(t)) for t in group.trajectories]
  left_out = (None if any(v is not None for v in values)
              else _reason(group, cfg))
  fates_of_group = []
  for t, value in zip(group.trajectories, values, strict=True):
    if t.is_masked_out:
      fate = _Fate.LOST
    elif value is not None:
      fate = _Fate.TRAINED if _is_in_loss(t, cfg) else _Fate.OVERLONG
    else:
      fate = left_out or _Fate.NOT_DRAWN
      # What is left may have signal and still be all over-long.
      if fate is _Fate.NO_SIGNAL_LEFT and not _is_in_loss(t, cfg):
        fate = _Fate.OVERLONG
    fates_of_group.append((fate, value if fate is _Fate.TRAINED else None))
  return fates_of_group


def _reason(group: types.TrajectoryGroup, cfg: config.Config) -> _Fate:
  """Why nothing of a group was kept."""
  if not roc.drop_constant(reward.take_off_tool_errors(
      [group], cfg.reward.tool_error_penalty)):
    return _Fate.NO_SIGNAL
  alive = sum(not t.is_masked_out for t in group.trajectories)
  if cfg.roc.enabled and alive < cfg.roc.keep:
    return _Fate.TOO_FEW
  return _Fate.NO_SIGNAL_LEFT


def _identity(t: types.Trajectory) -> tuple:
  """Equal for a trajectory and its copy with another reward.

  Ids alone are not: a small data set repeats a prompt within a step. A copy
  shares its spans, and their place in memory is told without reading them.
  """
  return t.prompt.id, t.sample, id(t.spans)


def _advantages(
    kept: Sequence[types.TrajectoryGroup], cfg: config.Config
) -> np.ndarray:
  return advantages.of_groups(
      kept, normalize_by_std=cfg.loss.normalize_by_std,
      std_ddof=cfg.loss.std_ddof, std_epsilon=cfg.loss.std_epsilon)


def roc_metrics(
    groups: Sequence[types.TrajectoryGroup],
    kept: Sequence[types.TrajectoryGroup],
) -> dict[str, float]:
  """How much was left out, and what the selection did to error ratios."""
  trajectories = [t for group in kept for t in group.trajectories]
  after = statistics.summarize(trajectories) if trajectories else {}
  solved = [float(np.mean([t.outcome > 0 for t in group.trajectories
                           if not t.is_masked_out] or [False]))
            for group in groups]
  return {
      "groups_kept": len(kept) / len(groups),
      "groups_all_right": float(np.mean([s == 1 for s in solved])),
      "groups_all_wrong": float(np.mean([s == 0 for s in solved])),
      **{f"kept_{name}": after[name] for name in (
          "reward", "tool_error_ratio", "tool_error_ratio_correct")
         if name in after},
  }
