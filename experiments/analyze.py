"""Where a policy is undecided: the paper's entropy analysis (section 5.4).

    python -m experiments.analyze runs/laptop-s0-stage2
    python -m experiments.analyze runs/laptop-s0-stage2 --trajectories=64

Reads the records of a run (--log.groups_per_step groups of each step), takes
the top 20 % of each trajectory's tokens by entropy, and tells which segments
and which tokens they are. Prints tables; writes them with plots to
RUN/entropy.html; the last line is a JSON object.
"""

import dataclasses
import json
import math
import os
import random

from experiments import config_flags
from experiments import run_pages
from rstar2_jax import config_fields
from rstar2_jax import progress
from rstar2_jax.evaluation import entropy
from rstar2_jax.reports import entropy_report

_field = config_fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What is read, and where the page goes."""

  first_step: int = _field(0, "Earlier steps are left out.")
  last_step: int = _field(-1, "Later steps are left out; -1: none.")
  trajectories: int = _field(0, "As many at random (paper: 64); 0: all.")
  seed: int = _field(0, "Seed of that choice.")
  top: float = _field(0.2, "Share of each trajectory that is uncertain.")
  after_tool: int = _field(16, "Tokens after a tool response that form a"
                           " segment.")
  output: str = _field("", "HTML file; empty: RUN/entropy.html.")

  def __post_init__(self):
    require = config_fields.require
    require(self.first_step >= 0, "first_step", self.first_step, "at least 0")
    require(self.last_step == -1 or self.last_step >= self.first_step,
            "last_step", self.last_step,
            f"-1 or at least first_step={self.first_step}")
    require(self.trajectories >= 0, "trajectories", self.trajectories,
            "at least 0")
    require(0 < self.top <= 1, "top", self.top, "over 0 and at most 1")
    config_fields.require_positive(self, "", "after_tool")


def main(options: Options, runs: list[str]) -> None:
  """Writes the page and prints the tables."""
  run = run_pages.only(runs)
  tokens, num_trajectories = _tokens(run, options)
  output = options.output or os.path.join(run, "entropy.html")
  note = (f"{num_trajectories} trajectories, {len(tokens)} sampled tokens; the"
          f" top {100 * options.top:g} % of each by entropy are uncertain")
  run_pages.write(output, entropy_report.render(
      tokens, title=run_pages.title(run, "entropy"), note=note))
  print(f"{note}\n\n" + progress.table(
      entropy_report.SEGMENT_HEAD, entropy_report.segment_rows(tokens)))
  for heading, segment in (("forking", entropy.Segment.REASONING),
                           ("reflection", entropy.Segment.AFTER_TOOL)):
    rows = entropy_report.text_rows(tokens, segment, num=8)
    if rows:
      print(f"\n{heading} tokens\n\n"
            + progress.table(entropy_report.TEXT_HEAD, rows))
  after = {
      name: _finite(entropy.by_offset(
          tokens, after_error=failed, length=1)[0])
      for name, failed in (("ran", False), ("failed", True))}
  for name, value in after.items():
    if value is not None:
      print(f"\nfirst token after a call that {name}: {value:.3f} nats", end="")
  print(f"\n\nreport: {output}")
  print(json.dumps({"run": run, "after_a_call_that": after, "segments": {
      s.name: {"tokens": s.count, "of_all": s.of_all, "of_top": s.of_top,
               "mean_entropy": _finite(s.mean_entropy)}
      for s in entropy.by_segment(tokens)}}))


def _tokens(run: str, options: Options) -> tuple[list[entropy.Token], int]:
  records = [r for r in run_pages.records(
      run, options.first_step, options.last_step) if r.entropy]
  if 0 < options.trajectories < len(records):
    records = random.Random(options.seed).sample(
        records, options.trajectories)
  tokens = entropy.tokens(
      records, top=options.top, after_tool=options.after_tool)
  if not tokens:
    raise run_pages.no_records(run)
  return tokens, len(records)


def _finite(value: float) -> float | None:
  return value if math.isfinite(value) else None


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, operands="a run folder")
