"""The folder of a run: what is needed to read, compare, replay and go on.

    config.json      the whole configuration
    flags.txt        the same as flags, for --flagfile
    session.json     command, versions and seconds of the last session
    metrics.jsonl    one line per step; also as TensorBoard events
    trajectories/    of each step some trajectories as text and some groups
                     as records (data.trajectory_records)
    report.html      see `experiments.report`; there when the run has ended
    profile/         JAX profiler traces, see --profile_steps
    wandb/           Weights & Biases, see --log.wandb
    checkpoints/     Orbax: state and data position
    policy/          the last policy as a Hugging Face folder
    summary.json     the result; there exactly when the run has finished
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import errno
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
import time
import typing
from typing import Any

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import flag_tables
from rstar2_jax import progress
from rstar2_jax import wandb_log
from rstar2_jax.data import output_files

if typing.TYPE_CHECKING:
  from rstar2_jax import tensorboard

# What may change when a run goes on: it does not change what is learned.
_FREE = ("num_steps", "workdir", "name", "profile_steps", "checkpoint.", "log.",
         "eval.", "tool.urls", "rollout.urls",
         "rollout.admission", "rollout.overcommit", "rollout.request_timeout_s",
         "rollout.trajectory_timeout_s", "rollout.step_timeout_s", "engine.",
         "mesh.", "policy.attention", "policy.remat")
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy",
             "tokenizers", "transformers", "sympy")


def path_of(cfg: config.Config) -> str:
  """Folder of a run: inside the workdir, named or by preset, seed and stage."""
  name = cfg.name or f"{cfg.preset}-s{cfg.seed}-{cfg.stage}"
  return os.path.join(cfg.workdir, name)


def checkpoint_dir(path: str) -> str:
  """Where a run keeps its checkpoints."""
  return os.path.join(path, "checkpoints")


def is_finished(path: str) -> bool:
  """Whether the run in `path` has ended and written its summary."""
  try:
    read_summary(path)
  except errors.UserError:
    return False
  return True


def read_summary(path: str) -> dict[str, Any]:
  """The summary of a finished run.

  Raises:
    errors.UserError: there is none.
  """
  try:
    summary = _read_json(path, "summary.json")
    if not (isinstance(summary.get("history"), list)
            and all(isinstance(x, dict) for x in summary["history"])
            and {"stage", "steps", "wall_s"} <= summary.keys()):
      raise errors.UserError("summary.json is damaged")
    return summary
  except errors.UserError as e:
    raise errors.UserError(f"{path} is no finished run ({e})") from e


def read_metrics(path: str) -> list[dict[str, float | None]]:
  """The lines of metrics.jsonl so far, in order; None stands for no number.

  Raises:
    errors.UserError: there is no run in `path`.
  """
  try:
    with open(os.path.join(path, "metrics.jsonl"), encoding="utf-8",
              errors="replace") as file:
      lines = file.read().splitlines(keepends=True)
  except OSError as e:
    raise errors.UserError(f"{path} is no run folder ({e.strerror})") from e
  # The last line may be torn, by a kill or because it is just being written.
  return [step for line in lines if (step := _parse(line)) is not None]


def read_flags(path: str) -> dict[str, Any]:
  """Every field of a run's configuration, by its flag's name.

  Raises:
    errors.UserError: there is no run in `path`.
  """
  return flag_tables.flat(_read_json(path, "config.json"))


def read_session(path: str) -> dict[str, Any]:
  """Command, versions and seconds of the last session; see `read_flags`."""
  session = _read_json(path, "session.json")
  shapes: dict[str, Any] = {
      "command": list, "versions": dict, "wall_s": (int, float)}
  return {name: session[name] for name, kind in shapes.items()
          if isinstance(session.get(name), kind)}


def _read_json(path: str, name: str) -> dict[str, Any]:
  try:
    with open(os.path.join(path, name), encoding="utf-8") as file:
      value = json.load(file)
    if not isinstance(value, dict):
      raise ValueError("not a JSON object")
    return value
  except (OSError, ValueError) as e:
    raise errors.UserError(
        f"{path} is no run folder (no readable {name})") from e


def differences(
    path: str, cfg: config.Config, is_compared: Callable[[str], bool]
) -> str:
  """How the run in `path` was configured otherwise; empty: not at all.

  Args:
    path: a run folder; one without config.json differs in nothing.
    cfg: the configuration to compare with.
    is_compared: whether a flag, by name, matters.

  Returns:
    At most three differences, for a message.

  Raises:
    errors.UserError: config.json cannot be read.
  """
  if not os.path.exists(os.path.join(path, "config.json")):
    return ""
  old = read_flags(path)
  new = flag_tables.flat(json.loads(_json(dataclasses.asdict(cfg))))
  differing = [name for name in new if is_compared(name) and name in old
               and old[name] != new[name]]
  return ", ".join(f"--{name} was {old[name]}, is {new[name]}"
                   for name in differing[:3])


def check(cfg: config.Config) -> None:
  """Refuses to go on with another configuration.

  Raises:
    errors.UserError: the run's folder is there and was configured otherwise.
  """
  path = path_of(cfg)
  what = differences(path, cfg, lambda name: not name.startswith(_FREE))
  if what:
    raise errors.UserError(
        f"{path} holds a run with other settings ({what}); give this one a"
        " --name or --workdir, or delete that folder")


class RunFolder:
  """The folder of the run in progress; a context manager that locks it.

  Attributes:
    path: the folder.
    checkpoint_dir: for checkpoints.
  """

  def __init__(self, cfg: config.Config):
    self.path = path_of(cfg)
    self.checkpoint_dir = checkpoint_dir(self.path)
    self._cfg = cfg
    self._stack = contextlib.ExitStack()
    self._events: tensorboard.Events | None = None
    self._wandb: wandb_log.WandbLog | None = None

  def __enter__(self) -> "RunFolder":
    """Makes or reopens the folder.

    Raises:
      errors.UserError: another process uses it, it belongs to another
        configuration, or it cannot be written.
    """
    with self._stack as stack, _disk_errors(self.path):
      try:
        os.makedirs(os.path.join(self.path, "trajectories"), exist_ok=True)
        self._lock(stack)
      except (FileExistsError, FileNotFoundError, NotADirectoryError,
              IsADirectoryError, PermissionError) as e:
        raise errors.UserError(
            f"--workdir={self._cfg.workdir}: cannot write {self.path}"
            f" ({e.strerror})") from e
      check(self._cfg)
      self._begin_s = time.monotonic() - self._earlier_s()
      if not self.is_finished:  # a finished run is only read
        self._write("config.json", _json(dataclasses.asdict(self._cfg)))
        self._write("flags.txt", flag_tables.lines(self._cfg))
        self._write_session()
        if self._cfg.log.wandb:
          self._wandb = stack.enter_context(contextlib.closing(
              wandb_log.WandbLog(self._cfg.log.wandb, self.path,
                                 flag_tables.values(self._cfg))))
      self._metrics = stack.enter_context(open(
          self._file("metrics.jsonl"), "a", encoding="utf-8"))
      self._stack = stack.pop_all()
    progress.say(f"{self._cfg.stage}: run folder {self.path}")
    return self

  def __exit__(self, *unused) -> None:
    with _disk_errors(self.path), self._stack:
      if not self.is_finished:
        self._write_session()

  @property
  def profile_dir(self) -> str:
    """For profiler traces."""
    return self._file("profile")

  @property
  def is_finished(self) -> bool:
    """Whether the summary is there."""
    return is_finished(self.path)

  def wall_s(self) -> float:
    """Seconds spent on this run, earlier sessions included."""
    return time.monotonic() - self._begin_s

  def read_summary(self) -> dict[str, Any]:
    """The summary of the finished run."""
    return read_summary(self.path)

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, with versions; the run is finished then."""
    with _disk_errors(self.path):
      self._write("summary.json", _json(
          {**summary, "versions": versions(), "command": sys.argv}))

  def write_metrics(
      self, step: int, groups: Mapping[str, Mapping[str, float]]
  ) -> dict[str, float | None]:
    """Appends one line and returns it, as `read_metrics` would.

    Args:
      step: 0-based.
      groups: numbers by name, by the room they come from.
    """
    flat = {f"{group}/{name}": value for group, metrics in groups.items()
            for name, value in metrics.items()}
    # JSON has no NaN: null says that there is no number.
    line = {"step": step, **{
        k: float(v) if math.isfinite(v) else None for k, v in flat.items()}}
    with _disk_errors(self.path):
      self._metrics.write(json.dumps(line) + "\n")
      self._metrics.flush()
      self._write_session()
      if self._cfg.log.tensorboard:
        self._write_events(step, flat)
    if self._wandb is not None:
      self._wandb.write(step, flat)
    return line

  def truncate_metrics(self, first_step: int) -> None:
    """Drops lines of steps that will be done again, and a torn last line."""
    path = self._file("metrics.jsonl")
    with open(path, encoding="utf-8", errors="replace") as file:
      lines = file.read().splitlines(keepends=True)
    kept = [line for line in lines if _is_before(line, first_step)]
    if kept != lines:
      with _disk_errors(self.path):
        self._metrics.close()
        self._write("metrics.jsonl", "".join(kept))
        self._metrics = self._stack.enter_context(
            open(path, "a", encoding="utf-8"))

  def write_file(self, name: str, content: str | bytes) -> None:
    """Writes a file of the run, as a whole; a power cut may lose it.

    Args:
      name: path below the folder; its own folder must be there.
      content: text, or bytes as they are.

    Raises:
      errors.UserError: the disk is full.
    """
    with _disk_errors(self.path):
      self._write(name, content, is_durable=False)

  def resume_hint(self, next_step: int) -> str:
    """How to go on with an interrupted run."""
    module = f"experiments.{self._cfg.stage}"
    flagfile = shlex.quote(self._file("flags.txt"))
    # SFT's length follows from its data.
    total = "" if self._cfg.stage == "sft" else f" of {self._cfg.num_steps}"
    return (f"{self._cfg.stage} stopped after {next_step}{total} steps, saved"
            f" in {self.path}; to go on, run the same command again, or:"
            f" python -m {module} --flagfile={flagfile}")

  def _file(self, name: str) -> str:
    return os.path.join(self.path, name)

  def _write(
      self, name: str, content: str | bytes, *, is_durable: bool = True
  ) -> None:
    """Replaces a file as a whole; after a power cut too if durable."""
    output_files.write(self._file(name), content, is_durable=is_durable)

  def _lock(self, stack: contextlib.ExitStack) -> None:
    file = stack.enter_context(
        open(self._file(".lock"), "a+", encoding="utf-8"))
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
      file.seek(0)
      raise errors.UserError(
          f"{self.path} is in use by process {file.read().strip() or '?'}; wait"
          " for it or give this run a --name") from e
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()

  def _write_session(self) -> None:
    self._write("session.json", _json({
        "command": sys.argv, "versions": versions(),
        "wall_s": round(self.wall_s(), 1)}), is_durable=False)

  def _earlier_s(self) -> float:
    try:
      with open(self._file("session.json"), encoding="utf-8") as file:
        return float(json.load(file)["wall_s"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
      return 0.0

  def _write_events(self, step: int, metrics: Mapping[str, float]) -> None:
    if self._events is None:
      # pylint: disable=g-import-not-at-top; slow
      from rstar2_jax import tensorboard
      self._events = self._stack.enter_context(contextlib.closing(
          tensorboard.Events(self.path, first_step=step)))
    self._events.write(step, metrics)


@functools.cache
def versions() -> dict[str, str]:
  """Versions of Python and of the packages that matter."""
  found = {"python": platform.python_version()}
  for name in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


@contextlib.contextmanager
def _disk_errors(path: str) -> Iterator[None]:
  try:
    yield
  except OSError as e:
    if e.errno not in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise errors.UserError(
        f"disk full while writing {path}; the last good checkpoint stays: free"
        " some space and run the same command again") from e


def _is_before(line: str, step: int) -> bool:
  value = _parse(line)
  return value is not None and value["step"] < step


def _parse(line: str) -> dict[str, Any] | None:
  """A line of metrics.jsonl; None if it is torn, or not all numbers."""
  try:
    value = json.loads(line)
    is_whole = line.endswith("\n") and value["step"] >= 0 and all(
        x is None or isinstance(x, int | float) for x in value.values())
    return value if is_whole else None
  except (ValueError, KeyError, TypeError):
    return None


def _json(value: Any) -> str:
  return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
