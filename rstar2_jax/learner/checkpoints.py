"""Checkpoints with Orbax: state, and where the run's data stood.

A checkpoint is complete or absent (Orbax renames it into place). What a run
has *consumed* is saved, never what it has fetched ahead.
"""

import errno
import logging
import os
import shutil
from typing import Any

import jax
from orbax import checkpoint as orbax

from rstar2_jax import errors
from rstar2_jax.learner import train_state


# Left free beside a checkpoint, for metrics and summaries.
_SPARE_BYTES = 1 << 20


class Checkpoints:
  """The checkpoints of one run folder."""

  def __init__(self, folder: str, *, keep: int):
    """Opens or makes the folder; the newest `keep` are kept."""
    self._folder = os.path.abspath(folder)
    self._manager = orbax.CheckpointManager(
        self._folder, options=orbax.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=False),
        # Named now, or metadata of what was saved before cannot be read.
        item_handlers={"state": orbax.StandardCheckpointHandler(),
                       "data": orbax.JsonCheckpointHandler()})

  def latest_step(self) -> int | None:
    """Number of the newest checkpoint; None if there is none."""
    return self._manager.latest_step()

  def save(
      self, step: int, state: train_state.TrainState, data: dict[str, Any]
  ) -> None:
    """Saves unless the step is there already.

    Args:
      step: steps of the run that are done.
      state: the learner's.
      data: small JSON values: data position and the like.

    Raises:
      errors.UserError: the disk is full; earlier checkpoints stay.
    """
    if step == self._manager.latest_step():
      return
    # Before Orbax begins: it says a full disk in hundreds of lines.
    num_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    if shutil.disk_usage(self._folder).free < num_bytes + _SPARE_BYTES:
      raise self._disk_full(step)
    try:
      self._manager.save(step, args=orbax.args.Composite(
          state=orbax.args.StandardSave(state),
          data=orbax.args.JsonSave(data)))
      self._manager.wait_until_finished()
    except Exception as e:  # tensorstore reports a full disk as ValueError
      if not _is_disk_full(e):
        raise
      # Of the writes it gave up; our line is to be the last.
      logging.getLogger("asyncio").setLevel(logging.CRITICAL)
      raise self._disk_full(step) from e

  def restore(
      self, step: int, like: train_state.TrainState,
      where: train_state.TrainState,
  ) -> tuple[train_state.TrainState, dict[str, Any]]:
    """Reads a checkpoint.

    Args:
      step: one that exists.
      like: shapes and dtypes.
      where: shardings.

    Returns:
      The state and the data saved with it.

    Raises:
      errors.UserError: it cannot be read, or is of another policy.
    """
    abstract = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        like, where)
    try:
      found = self._manager.item_metadata(step)["state"]
      mismatch = found is not None and _mismatch(found.tree, abstract)
      if mismatch:  # Orbax would start reading, and say it in pages
        raise ValueError(mismatch)
      restored = self._manager.restore(step, args=orbax.args.Composite(
          state=orbax.args.StandardRestore(abstract),
          data=orbax.args.JsonRestore()))
    except (ValueError, KeyError, OSError, TypeError) as e:
      raise errors.UserError(
          f"checkpoint {step} in {self._folder} cannot be read"
          f" ({_first_line(e)}); it was made with another policy or is"
          " damaged: delete it to go on from the one before") from e
    return restored.state, restored.data

  def _disk_full(self, step: int) -> errors.UserError:
    last = self._manager.latest_step()
    stays = ("there is no checkpoint yet" if last is None
             else f"the last good checkpoint is step {last}")
    return errors.UserError(
        f"disk full while saving step {step} to {self._folder}; {stays}: free"
        " some space and run the same command again")

  def close(self) -> None:
    """Ends Orbax's threads."""
    self._manager.close()


def _mismatch(found: Any, expected: Any) -> str:
  """Names the first leaf of another shape; empty if there is none."""
  found, expected = _shapes(found), _shapes(expected)
  for name in sorted(found.keys() | expected.keys()):
    if found.get(name) != expected.get(name):
      return (f"{name} is {found.get(name, 'absent')} there and"
              f" {expected.get(name, 'absent')} in this policy")
  return ""


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
          for path, leaf in leaves}


def _is_disk_full(error: BaseException | None) -> bool:
  while error is not None:
    if isinstance(error, OSError) and error.errno in (
        errno.ENOSPC, errno.EDQUOT):
      return True
    if any(text in str(error) for text in (
        "No space left on device", "Disk quota exceeded", "ENOSPC")):
      return True
    error = error.__cause__ or error.__context__
  return False


def _first_line(error: Exception) -> str:
  return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
