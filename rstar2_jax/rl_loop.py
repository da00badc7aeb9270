"""One RL stage: prompts -> rollout -> reward -> RoC -> advantage -> pack ->
update -> weight sync, again and again.

Everything that passes between the rooms is a plain value; the run folder holds
what is needed to print, compare, replay and continue it.
"""

from collections.abc import Sequence
import contextlib
from typing import Any

import numpy as np

from rstar2_jax import assembly
from rstar2_jax import clock as clock_lib
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import interruption
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import stage_report
from rstar2_jax import types
from rstar2_jax.grpo import advantages
from rstar2_jax.grpo import batching
from rstar2_jax.grpo import roc
from rstar2_jax.rewards import reward
from rstar2_jax.rollout import seeds
from rstar2_jax.rollout import statistics


def train(cfg: config.Config, *, start: str) -> dict[str, Any]:
  """Runs or continues one stage.

  Args:
    cfg: the stage's configuration.
    start: run folder of the finished stage before it.

  Returns:
    The summary that is also in summary.json.

  Raises:
    errors.UserError: something the user can mend; one line says what.
    interruption.Interrupted: stopped and saved.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(run_folder.RunFolder(cfg))
    if folder.is_finished:
      return stage_report.announce_finished(folder)
    stage, workers, source = stack.enter_context(
        assembly.open_rl(cfg, folder, start))
    stop = stack.enter_context(interruption.Interruption())
    state, first_step = stage.restore(
        predecessor=None if cfg.optimizer.reset else start)
    folder.truncate_metrics(first_step)
    workers.push(state.params, policy_version=first_step)

    num_prompts = cfg.rollout.prompts_per_step
    for step in progress.bar(range(first_step, cfg.num_steps), cfg.stage):
      clock = clock_lib.Clock()
      prompts = [source[step * num_prompts + i] for i in range(num_prompts)]
      try:
        groups = workers.collect(prompts, step)
      except errors.UserError:
        stage.save(state, step)  # a server died; what was learned stays
        raise
      clock.lap("rollout")
      kept = select(groups, cfg, step)
      metrics = {}
      if kept:
        batch = pack(kept, cfg)
        clock.lap("select")
        state, metrics = stage.learner.update(state, batch)
        clock.lap("update")
        workers.push(state.params, policy_version=step + 1)
        clock.lap("sync")
      else:
        progress.say(f"step {step}: every group had equal rewards; no update")

      folder.write_metrics(step, {
          "rollout": statistics.summarize(
              [t for g in groups for t in g.trajectories]),
          "roc": roc_metrics(groups, kept),
          "learner": metrics, "time": clock.laps_s()})
      folder.write_trajectories(step, groups, kept)
      if stop.requested or stage.is_checkpoint_step(step):
        stage.save(state, step + 1)
      if stop.requested:
        raise interruption.Interrupted(folder.resume_hint(step + 1))

    stage.save(state, cfg.num_steps)
    stop.end()
    return stage_report.finish(
        folder, stage, workers, state, num_steps=cfg.num_steps)


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
  values = advantages.of_groups(
      kept, normalize_by_std=cfg.loss.normalize_by_std,
      std_ddof=cfg.loss.std_ddof, std_epsilon=cfg.loss.std_epsilon)
  is_in = [_is_in_loss(t, cfg) for t in trajectories]
  return batching.pack(
      [t for t, wanted in zip(trajectories, is_in, strict=True) if wanted],
      values[is_in], row_tokens=cfg.batch.row_tokens)


def roc_metrics(
    groups: Sequence[types.TrajectoryGroup],
    kept: Sequence[types.TrajectoryGroup],
) -> dict[str, float]:
  """How much was left out, and what the selection did to error ratios."""
  trajectories = [t for group in kept for t in group.trajectories]
  after = statistics.summarize(trajectories) if trajectories else {}
  solved = [float(np.mean([t.reward > 0 for t in group.trajectories
                           if not t.is_masked_out] or [0]))
            for group in groups]
  return {
      "groups_kept": len(kept) / len(groups),
      "groups_all_right": float(np.mean([s == 1 for s in solved])),
      "groups_all_wrong": float(np.mean([s == 0 for s in solved])),
      **{f"kept_{name}": after[name] for name in (
          "reward", "tool_error_ratio", "tool_error_ratio_correct")
         if name in after},
  }
