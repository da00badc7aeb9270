"""Trajectories of a run in a browser: one HTML file that opens offline.

    python -m experiments.view runs/laptop-s0-stage2
    python -m experiments.view runs/laptop-s0-stage2 --first_step=10

Lists what the run recorded (--log.groups_per_step groups of each step), with
filters, groups side by side, tool results and tokens colored by mask, logprob
gap, entropy, advantage or policy version. Keys: `?` in the page.
"""

import dataclasses
import itertools
import os
import sys

from experiments import config_flags
from experiments import run_pages
from rstar2_jax import config_fields
from rstar2_jax.reports import trajectory_viewer

_field = config_fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What is shown, and where the page goes."""

  first_step: int = _field(0, "Earlier steps are left out.")
  last_step: int = _field(-1, "Later steps are left out; -1: none.")
  max_trajectories: int = _field(5000, "More are left out, with a note.")
  output: str = _field("", "HTML file; empty: RUN/trajectories.html.")

  def __post_init__(self):
    config_fields.require(
        self.first_step >= 0, "first_step", self.first_step, "at least 0")
    config_fields.require(
        self.last_step == -1 or self.last_step >= self.first_step,
        "last_step", self.last_step,
        f"-1 or at least first_step={self.first_step}")
    config_fields.require_positive(self, "", "max_trajectories")


def main(options: Options, runs: list[str]) -> None:
  """Writes the page and says where it is."""
  run = run_pages.only(runs)
  records = run_pages.records(run, options.first_step, options.last_step)
  shown = list(itertools.islice(
      records, min(options.max_trajectories, sys.maxsize)))
  if not shown:
    raise run_pages.no_records(run)
  if next(records, None) is not None:
    print(f"only the first {len(shown)} trajectories, up to step"
          f" {shown[-1].step}; see --first_step and --max_trajectories")
  output = options.output or os.path.join(run, "trajectories.html")
  run_pages.write(output, trajectory_viewer.render(
      shown, title=run_pages.title(run, "trajectories")))
  print(f"{len(shown)} trajectories: {output}")


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, operands="a run folder")
