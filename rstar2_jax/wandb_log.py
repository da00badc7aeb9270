"""Scalars to Weights & Biases; only where --log.wandb asks for it."""

from collections.abc import Mapping
import os
from typing import Any
import uuid

from rstar2_jax import errors

_ID_FILE = "wandb_id.txt"


class WandbLog:
  """A Weights & Biases run that goes with a run folder, over all sessions."""

  def __init__(self, project: str, folder: str, flags: Mapping[str, Any]):
    """Starts it, or goes on with it.

    Args:
      project: its name there.
      folder: the run's; wandb keeps its files in FOLDER/wandb, which is all
        that is written with WANDB_MODE=offline.
      flags: configuration by flag name.

    Raises:
      errors.UserError: wandb is not installed, or does not start.
    """
    try:
      import wandb  # pylint: disable=g-import-not-at-top; optional, slow
    except ImportError:
      raise errors.UserError(
          f"--log.wandb={project}: wandb is not installed; run: pip install"
          " wandb") from None
    try:
      self._run = wandb.init(
          project=project, name=os.path.basename(folder), id=_id(folder),
          dir=folder, config=dict(flags), resume="allow",
          settings=wandb.Settings(console="off"))
    except wandb.errors.Error as e:
      raise errors.UserError(
          f"--log.wandb={project}: {e}; run `wandb login`, or set"
          " WANDB_MODE=offline to write files alone") from e

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Adds the scalars of one step, by name; NaN shows as a gap."""
    self._run.log(dict(scalars), step=step)

  def close(self) -> None:
    """Ends the session there and waits until all is sent."""
    self._run.finish()


def _id(folder: str) -> str:
  """The id of the folder's run: one for all its sessions, new for another."""
  path = os.path.join(folder, _ID_FILE)
  try:
    with open(path, encoding="utf-8") as file:
      return file.read().strip()
  except FileNotFoundError:
    name = uuid.uuid4().hex
    with open(path, "w", encoding="utf-8") as file:
      file.write(f"{name}\n")
    return name
