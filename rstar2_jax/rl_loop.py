"""One RL stage: prompts -> rollout -> reward -> RoC -> advantage -> pack ->
update -> weight sync, again and again.

Everything that passes between the rooms is a plain value; the run folder holds
what is needed to print, compare, replay and continue it.
"""

import contextlib
from typing import Any

from rstar2_jax import assembly
from rstar2_jax import config
from rstar2_jax import interruption
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import stage_report
from rstar2_jax.grpo import advantages
from rstar2_jax.grpo import batching
from rstar2_jax.grpo import roc
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
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(run_folder.RunFolder(cfg))
    if folder.is_finished:
      return stage_report.announce_finished(folder)
    parts = stack.enter_context(assembly.open_rl(cfg, folder, start))
    stop = stack.enter_context(interruption.Interruption())
    state, first_step = parts.restore()
    folder.truncate_metrics(first_step)
    parts.push_weights(state, policy_version=first_step)

    for step in progress.bar(range(first_step, cfg.num_steps), cfg.stage):
      clock = progress.Clock()
      prompts = parts.prompts.batch(step, cfg.rollout.prompts_per_step)
      groups = parts.collect(prompts, step)
      clock.lap("rollout")

      kept, roc_metrics = roc.select(
          groups, cfg.roc, seed=seeds.derive(cfg.seed, "roc", step))
      clock.lap("select")
      metrics = {}
      if kept:
        batch = batching.pack_groups(
            kept, advantages.of_groups(kept, cfg.loss),
            row_tokens=cfg.batch.row_tokens)
        clock.lap("pack")
        state, metrics = parts.learner.update(state, batch)
        clock.lap("update")
        parts.push_weights(state, policy_version=step + 1)
        clock.lap("sync")
      else:
        progress.say(f"step {step}: every group had equal rewards; no update")

      folder.write(step, {
          "rollout": statistics.summarize_groups(groups), "roc": roc_metrics,
          "learner": metrics, "time": clock.laps_s()})
      folder.write_trajectories(step, groups, kept)
      if stop.requested or parts.is_checkpoint_step(step):
        parts.save(state, step + 1)
      if stop.requested:
        raise interruption.Interrupted(folder.resume_hint(step + 1))

    return stage_report.finish(cfg, folder, parts, state)
