"""The paper's ablations: every arm over several seeds, a report, verdicts.

    python -m experiments.ablations --suite=roc --seeds=0-4
    python -m experiments.ablations --suite=loss --arms=roc_paper,kl --dry_run

Suites: roc, failed_attempts, loss. All arms of a seed start from one SFT
policy. Flags of experiments.stage1 are passed on to every arm. Finished runs
are not repeated; the report is made of what is there. Writes results.csv,
report.md and report.html to WORKDIR/ablation-SUITE.
"""

import dataclasses
import json
import os
from typing import Literal

from experiments import arms
from experiments import config_flags
from experiments import run_queue
from experiments import stage1
from rstar2_jax import config_fields
from rstar2_jax import progress

_field = config_fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Which arms, which seeds."""

  suite: Literal["roc", "failed_attempts", "loss"] = _field(
      "roc", "Suite of arms.")
  arms: tuple[str, ...] = _field((), "Arms of the suite to run; empty: all.")
  seeds: str = _field("0-4", "Seeds, such as 0,1,2 or 0-4.")
  parallel: int = _field(1, "Seeds that run side by side.")
  dry_run: bool = _field(False, "Print the commands and run nothing.")

  def __post_init__(self):
    run_queue.parse_seeds(self.seeds)
    config_fields.require_positive(self, "", "parallel")


def main(options: Options, argv: list[str]) -> None:
  """Runs what is missing, writes and prints the report."""
  wanted = arms.select(options.suite, options.arms)
  base = config_flags.build(argv, stage1.CONFIGS)
  # The first arm of a seed also makes the SFT policy that all start from.
  jobs = [run_queue.make(arm.name, seed, "stage1", stage1.CONFIGS, argv,
                         arm.changes(base))
          for seed in run_queue.parse_seeds(options.seeds) for arm in wanted]
  if options.dry_run:
    for job in jobs:
      print(job.command())
    return
  out = os.path.join(base.workdir, f"ablation-{options.suite}")
  logs = os.path.join(out, "logs")
  failed = run_queue.run(jobs, parallel=options.parallel, logs=logs,
                         say=progress.say)
  runs, findings = run_queue.report(
      out, f"Ablation: suite {options.suite}",
      config_flags.command_line("ablations", options, argv), jobs,
      arms.CLAIMS[options.suite])
  print(json.dumps({"suite": options.suite, "runs": len(runs), "verdicts": {
      f.text: f.verdict for f in findings}}))
  run_queue.check_all_done(failed, jobs, logs)


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, stage1.CONFIGS)
