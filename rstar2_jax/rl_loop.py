"""One RL stage: prompts -> rollout -> reward -> RoC -> advantage -> pack ->
update -> weight sync, again and again.

Everything that passes between the rooms is a plain value; the run folder holds
what is needed to print, compare, replay and continue it.
"""

import contextlib
from typing import Any

from rstar2_jax import assembly
from rstar2_jax import clock as clock_lib
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import interruption
from rstar2_jax import profiling
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import selection
from rstar2_jax import stage_report
from rstar2_jax import trajectory_log
from rstar2_jax.reports import alarms
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
    watch = alarms.Watch()
    for line in run_folder.read_metrics(folder.path):
      watch.add(line)
    log = trajectory_log.TrajectoryLog(cfg, folder, stage)

    num_prompts = cfg.rollout.prompts_per_step
    is_new = True  # whether the servers have yet to get the policy
    steps = stack.enter_context(contextlib.closing(profiling.traced(
        progress.bar(range(first_step, cfg.num_steps), cfg.stage),
        cfg.profile_steps, folder.profile_dir)))
    for step in steps:
      clock = clock_lib.Clock()
      prompts = [source[step * num_prompts + i] for i in range(num_prompts)]
      try:
        if is_new:
          workers.push(state.params, policy_version=step)
          clock.lap("sync")
        groups = workers.collect(prompts, step)
      except errors.UserError:
        stage.save(state, step)  # a server died; what was learned stays
        raise
      clock.lap("rollout")
      kept = selection.select(groups, cfg, step)
      is_new = bool(kept)
      clock.lap("select")
      log.write(step, groups, kept, state.params)
      clock.lap("log")
      metrics: dict[str, float] = {}
      if kept:
        batch = selection.pack(kept, cfg)
        clock.lap("select")
        state, metrics = stage.learner.update(state, batch)
        clock.lap("update")
      else:
        progress.say(f"step {step}: every group had equal rewards; no update")

      line = folder.write_metrics(step, {
          "rollout": statistics.summarize(
              [t for g in groups for t in g.trajectories])
                     | workers.take_statistics(),
          "roc": selection.roc_metrics(groups, kept),
          "learner": metrics, "time": clock.laps_s()})
      for alarm in watch.add(line):
        progress.say(f"step {alarm.step}: {alarm.text}")
      if stop.requested or stage.is_checkpoint_step(step):
        stage.save(state, step + 1)
      if stop.requested:
        raise interruption.Interrupted(folder.resume_hint(step + 1))

    stage.save(state, cfg.num_steps)
    stop.end()
    return stage_report.finish(
        folder, stage, workers, state, num_steps=cfg.num_steps)
