"""Many runs of one experiment: as commands, one after another, resumable.

A job is one run folder. Jobs of a seed run in order, since they share what the
stages before them make; seeds run side by side. A run that is finished is not
run again, one that was cut goes on from its checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from typing import Any

from experiments import config_flags
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax.reports import arms_report


@dataclasses.dataclass(frozen=True)
class Job:
  """One run.

  Attributes:
    name: of the variant; the run folder is NAME-sSEED.
    seed: of the run.
    experiment: module below `experiments`.
    flags: all flags of the command.
    cfg: what they amount to.
  """

  name: str
  seed: int
  experiment: str
  flags: tuple[str, ...]
  cfg: config.Config

  @property
  def path(self) -> str:
    """The run folder."""
    return run_folder.path_of(self.cfg)

  def command(self) -> str:
    """A line for a shell or a cluster's queue."""
    return shlex.join(["python", "-m", f"experiments.{self.experiment}",
                       *self.flags])

  def is_done(self) -> bool:
    """Whether its run has ended.

    Raises:
      errors.UserError: a run of this name was made with other settings.
    """
    if not run_folder.is_finished(self.path):
      return False
    what = run_folder.differences(
        self.path, self.cfg,
        lambda name: not name.startswith(_FREE) and name not in _PLACES)
    if what:
      raise errors.UserError(
          f"{self.path} was run with other settings ({what}); give those, or"
          " another --workdir")
    return True


# What may differ between a finished run and the one asked for.
_FREE = ("checkpoint.", "log.", "mesh.")
_PLACES = ("workdir", "rollout.urls", "tool.urls")


def make(
    name: str, seed: int, experiment: str, configs: config_flags.Configs,
    argv: Sequence[str], changes: Mapping[str, Any],
) -> Job:
  """A job: the user's flags, and over them what the variant changes.

  Args:
    name: of the variant.
    seed: of the run.
    experiment: module below `experiments`.
    configs: its configuration for each preset.
    argv: program and flags of the user.
    changes: values by flag name.

  Raises:
    errors.UserError: a flag is unknown or out of range.
  """
  for arg in argv[1:]:
    if re.match(r"--?(seed|name)(=|$)", arg):
      raise errors.UserError(f"{arg}: give seeds by --seeds; names follow")
  given = [*argv[1:], f"--seed={seed}", f"--name={name}-s{seed}"]
  flags = tuple(given + [_flag(k, v) for k, v in changes.items()])
  return Job(name, seed, experiment, flags,
             config_flags.build([argv[0], *flags], configs))


def run(
    jobs: Sequence[Job], *, parallel: int, logs: str,
    say: Callable[[str], None] = print,
) -> list[Job]:
  """Runs what is not finished.

  Args:
    jobs: any number; those of one seed keep their order.
    parallel: seeds at a time.
    logs: folder for the output of the runs.
    say: where progress goes.

  Returns:
    The jobs that failed.

  Raises:
    errors.UserError: a folder holds a run with other settings.
  """
  waiting = [job for job in jobs if not job.is_done()]
  say(f"{len(jobs)} runs, {len(jobs) - len(waiting)} of them finished before")
  os.makedirs(logs, exist_ok=True)
  by_seed: dict[int, list[Job]] = {}
  for job in waiting:
    by_seed.setdefault(job.seed, []).append(job)
  runs = _Processes()
  failed: list[Job] = []

  def run_seed(seed: int) -> None:
    for job in by_seed[seed]:
      log = os.path.join(logs, f"{job.name}-s{seed}.log")
      code = runs.call(job, log)
      if runs.is_stopped:
        return
      say(f"{job.name} seed {seed}: "
          + ("done" if code == 0 else f"exit code {code}, see {log}"))
      if code:
        failed.append(job)

  with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
    futures = [pool.submit(run_seed, seed) for seed in by_seed]
    try:
      for future in concurrent.futures.as_completed(futures):
        future.result()
    except BaseException:
      runs.stop()
      raise
  return failed


class _Processes:
  """The processes of the runs in progress; stopped together."""

  def __init__(self):
    self.is_stopped = False
    self._lock = threading.Lock()
    self._running: set[subprocess.Popen] = set()

  def call(self, job: Job, log: str) -> int:
    """Runs a job to its end; the code is -1 once stopped."""
    with open(log, "ab") as out:
      with self._lock:
        if self.is_stopped:
          return -1
        process = subprocess.Popen(
            [sys.executable, "-m", f"experiments.{job.experiment}",
             *job.flags], stdout=out, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True)
        self._running.add(process)
      code = process.wait()
      with self._lock:
        self._running.discard(process)
    return code

  def stop(self) -> None:
    """Asks all to save and end, as Ctrl-C would; starts no more."""
    with self._lock:
      self.is_stopped = True
      for process in self._running:
        process.send_signal(signal.SIGTERM)


def _read_runs(jobs: Sequence[Job]) -> list[arms_report.Run]:
  """The jobs whose runs have ended, by seed and in the order of the jobs."""
  return [arms_report.Run(job.name, job.seed,
                          run_folder.read_summary(job.path),
                          run_folder.read_metrics(job.path))
          for job in sorted(jobs, key=lambda job: job.seed)
          if run_folder.is_finished(job.path)]


def report(
    folder: str, title: str, command: str, jobs: Sequence[Job],
    claims: Sequence[Any],
) -> tuple[list[arms_report.Run], list[arms_report.Finding]]:
  """Writes and prints what the finished runs of the jobs show.

  Args:
    folder: of the report.
    title: of the report.
    command: that made the runs.
    jobs: those that have not ended are left out.
    claims: see `arms_report.find`.
  """
  runs = _read_runs(jobs)
  findings = arms_report.find(claims, runs)
  arms_report.write(folder, title, command, runs, findings)
  print(progress.table(arms_report.arm_head(), arms_report.arm_rows(runs)))
  if findings:
    print("\n" + progress.table(arms_report.FINDING_HEAD,
                                arms_report.finding_rows(findings)))
  print(f"\nreport: {folder}/report.html")
  return runs, findings


def check_all_done(failed: Sequence[Job], jobs: Sequence[Job], logs: str):
  """Raises errors.UserError if a job failed."""
  if failed:
    raise errors.UserError(
        f"{len(failed)} of {len(jobs)} runs failed; their output is in {logs};"
        " the same command tries them again")


def parse_seeds(text: str) -> tuple[int, ...]:
  """"0,1,5-7" as numbers, each once.

  Raises:
    ValueError: it is no such list.
  """
  seeds: list[int] = []
  for part in filter(None, (p.strip() for p in text.split(","))):
    if not re.fullmatch(r"\d+(-\d+)?", part):
      raise ValueError(f"--seeds={text}: must be numbers such as 0,1,2 or 0-4")
    first, _, last = part.partition("-")
    seeds += range(int(first), int(last or first) + 1)
  if not seeds:
    raise ValueError(f"--seeds={text}: must name at least one seed")
  return tuple(dict.fromkeys(seeds))


def _flag(name: str, value: Any) -> str:
  if isinstance(value, bool):
    return f"--{'' if value else 'no'}{name}"
  if isinstance(value, (tuple, list)):
    return f"--{name}={','.join(map(str, value))}"
  return f"--{name}={'none' if value is None else value}"
