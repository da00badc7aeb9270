"""Supervised fine-tuning: conversations -> packed rows -> cross entropy.

Loss on assistant tokens only; prompts, tool responses and headers are masked.
The order of rows is a function of the seed, so a checkpoint needs no more than
the number of updates done.
"""

import contextlib
from typing import Any

from rstar2_jax import assembly
from rstar2_jax import clock as clock_lib
from rstar2_jax import config
from rstar2_jax import interruption
from rstar2_jax import profiling
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import sft_data
from rstar2_jax import stage_report
from rstar2_jax import types
from rstar2_jax import workers


def train(cfg: config.Config) -> dict[str, Any]:
  """Runs or continues SFT.

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
    stage, rows = stack.enter_context(assembly.open_sft(cfg, folder))
    stop = stack.enter_context(interruption.Interruption())
    order = sft_data.row_order(cfg, len(rows.tokens))
    state, first_update = stage.restore()
    folder.truncate_metrics(first_update)

    updates = stack.enter_context(contextlib.closing(profiling.traced(
        progress.bar(range(first_update, len(order)), cfg.stage),
        cfg.profile_steps, folder.profile_dir)))
    for i in updates:
      clock = clock_lib.Clock()
      batch = types.PackedBatch(*(field[order[i]] for field in rows))
      state, metrics = stage.learner.sft_update(state, batch)
      clock.lap("update")
      folder.write_metrics(i, {"learner": metrics, "time": clock.laps_s()})
      if stop.requested or (i + 1) % cfg.checkpoint.every_updates == 0:
        stage.save(state, i + 1)
      if stop.requested:
        raise interruption.Interrupted(folder.resume_hint(i + 1))

    stage.save(state, len(order))
    stop.end()
    with workers.open_workers(
        cfg, stage.policy.tokenizer, stage.policy.config, state.params,
        scratch=folder.path) as opened:
      return stage_report.finish(
          folder, stage, opened, state, num_steps=len(order))
