"""A grid of flags over several seeds: the commands, or their results.

    python -m experiments.sweep --experiment=stage2 --seeds=0-2 \\
        --grid="loss.clip_high=0.2,0.28;roc.mode=paper,release" --dry_run
    python -m experiments.sweep --experiment=stage1 --grid="roc.keep=4,8"

Each flag of the grid takes each of its values. Other flags are passed on to
every run. Finished runs are not repeated; the table is made of what is there.
Writes results.csv, report.md and report.html to WORKDIR/sweep-EXPERIMENT.
"""

import dataclasses
import itertools
import json
import os
import re
from typing import Literal

from experiments import config_flags
from experiments import run_queue
from experiments import stage1
from experiments import stage2
from experiments import stage3
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import progress

_field = config_fields.field
_EXPERIMENTS = {"stage1": stage1, "stage2": stage2, "stage3": stage3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Which flags, which seeds."""

  experiment: Literal["stage1", "stage2", "stage3"] = _field(
      "stage1", "What is run.")
  grid: str = _field("", "FLAG=VALUE,VALUE;FLAG=VALUE,...")
  seeds: str = _field("0", "Seeds, such as 0,1,2 or 0-4.")
  parallel: int = _field(1, "Seeds that run side by side.")
  dry_run: bool = _field(False, "Print the commands and run nothing.")

  def __post_init__(self):
    run_queue.parse_seeds(self.seeds)
    parse_grid(self.grid)
    config_fields.require_positive(self, "", "parallel")


def main(options: Options, argv: list[str]) -> None:
  """Prints the commands, or runs what is missing and joins the results."""
  configs = _EXPERIMENTS[options.experiment].CONFIGS
  config_flags.build(argv, configs)  # a misspelt flag is named before all else
  if not options.grid.strip(" ;"):
    raise errors.UserError("--grid: must name at least one flag and its values")
  jobs = [run_queue.make(name_of(values), seed, options.experiment, configs,
                         argv, values)
          for seed in run_queue.parse_seeds(options.seeds)
          for values in points(parse_grid(options.grid))]
  if options.dry_run:
    for job in jobs:
      print(job.command())
    return
  out = os.path.join(jobs[0].cfg.workdir, f"sweep-{options.experiment}")
  logs = os.path.join(out, "logs")
  failed = run_queue.run(jobs, parallel=options.parallel, logs=logs,
                         say=progress.say)
  runs, _ = run_queue.report(
      out, f"Sweep of {options.experiment}",
      config_flags.command_line("sweep", options, argv), jobs, [])
  print(json.dumps({"experiment": options.experiment, "runs": len(runs),
                    "failed": [job.path for job in failed]}))
  run_queue.check_all_done(failed, jobs, logs)


def parse_grid(text: str) -> dict[str, list[str]]:
  """Values by flag name, in the order given.

  Raises:
    ValueError: it is not FLAG=VALUE,VALUE;...
  """
  grid: dict[str, list[str]] = {}
  for part in filter(None, (p.strip() for p in text.split(";"))):
    name, equals, values = part.partition("=")
    chosen = [v.strip() for v in values.split(",") if v.strip()]
    if not equals or not chosen or not re.fullmatch(r"[\w.]+", name.strip()):
      raise ValueError(
          f"--grid={part}: must be like loss.clip_high=0.2,0.28;roc.keep=4,8")
    if name.strip() in ("seed", "name"):
      raise ValueError(f"--grid={part}: give seeds by --seeds; names follow")
    grid[name.strip()] = chosen
  return grid


def points(grid: dict[str, list[str]]) -> list[dict[str, str]]:
  """Every combination, the last flag varying fastest."""
  return [dict(zip(grid, values))
          for values in itertools.product(*grid.values())]


def name_of(values: dict[str, str]) -> str:
  """"clip_high=0.2,mode=paper": whole flag names where the short ones meet."""
  short = [name.rpartition(".")[2] for name in values]
  names = short if len(set(short)) == len(short) else list(values)
  return ",".join(f"{n}={v}" for n, v in zip(names, values.values())).replace(
      "/", "_")


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, stage1.CONFIGS)
