"""Supervised fine-tuning: conversations -> packed rows -> cross entropy.

Loss on assistant tokens only; prompts, tool responses and headers are masked.
The order of rows is a function of the seed and the epoch, so a checkpoint
needs no more than the number of updates done.
"""

import contextlib
import time
from typing import Any

import numpy as np

from rstar2_jax import assembly
from rstar2_jax import clock as clock_lib
from rstar2_jax import config
from rstar2_jax import interruption
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import stage_report
from rstar2_jax import types


def train(cfg: config.Config) -> dict[str, Any]:
  """Runs or continues SFT.

  Returns:
    The summary that is also in summary.json.

  Raises:
    errors.UserError: something the user can mend; one line says what.
  """
  with contextlib.ExitStack() as stack:
    folder = stack.enter_context(run_folder.RunFolder(cfg))
    if folder.is_finished:
      return assembly.announce_finished(folder)
    parts = stack.enter_context(assembly.open_sft(cfg, folder))
    stop = stack.enter_context(interruption.Interruption())
    rows = parts.rows
    order = _row_order(len(rows.tokens), cfg.sft.num_epochs, cfg.seed)
    num_updates = len(order) // cfg.sft.batch_size
    state, first_update = parts.restore(num_updates)
    for update in progress.bar(range(first_update, num_updates), cfg.stage):
      clock = clock_lib.Clock()
      start = update * cfg.sft.batch_size
      batch = _take(rows, order[start:start + cfg.sft.batch_size])
      state, metrics = parts.learner.sft_update(state, batch)
      clock.lap("update")
      folder.write_metrics(update, {"learner": metrics, "time": clock.laps_s()})
      if stop.requested:
        parts.save(state, update + 1)
        raise interruption.Interrupted(folder.resume_hint(update + 1))
    parts.save(state, num_updates)
    return assembly.finish(cfg, folder, parts, state, num_updates)


def _row_order(num_rows: int, num_epochs: int, seed: int) -> np.ndarray:
  """int [num_rows * num_epochs]: a fresh permutation of the rows per epoch."""
  return np.concatenate([
      np.random.default_rng([seed, epoch]).permutation(num_rows)
      for epoch in range(num_epochs)])


def _take(rows: types.PackedBatch, index: np.ndarray) -> types.PackedBatch:
  return types.PackedBatch(*(field[index] for field in rows))
