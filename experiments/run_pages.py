"""What the commands that make a page of a run have in common."""

from collections.abc import Iterator, Sequence
import os

from rstar2_jax import errors
from rstar2_jax.data import output_files
from rstar2_jax.data import trajectory_records


def only(runs: Sequence[str]) -> str:
  """The one run folder of a command line.

  Raises:
    errors.UserError: there are more.
  """
  if len(runs) > 1:
    raise errors.UserError(f"one run at a time, not {' '.join(runs)}")
  return runs[0]


def title(run: str, subject: str) -> str:
  """Of a page about a run."""
  return f"{name(run)}: {subject}"


def name(run: str) -> str:
  """The folder's name, as text that can be printed."""
  last = os.path.basename(os.path.abspath(run))
  return os.fsencode(last).decode("utf-8", "replace")


def records(
    run: str, first_step: int, last_step: int
) -> Iterator[trajectory_records.Record]:
  """Records of a run folder; `last_step` -1 stands for no end."""
  return trajectory_records.read(
      _folder(run), first_step=first_step,
      last_step=None if last_step < 0 else last_step)


def no_records(run: str) -> errors.UserError:
  """What to raise where `records` gave nothing of use."""
  return errors.UserError(
      f"{_folder(run)}: no records of these steps; runs write them where"
      " --log.groups_per_step is over 0, and SFT makes no trajectories")


def write(output: str, page: str | bytes) -> None:
  """Writes a page, or another file that a flag names.

  Raises:
    errors.UserError: it cannot be written.
  """
  try:
    output_files.write(output, page)
  except OSError as e:
    raise errors.UserError(
        f"{output}: cannot be written ({e.strerror})") from e


def _folder(run: str) -> str:
  return os.path.join(run, "trajectories")
