"""Problems that a policy does not always solve (stage 3), or labels it doubts.

    python -m experiments.filter_hard --problems=problems/problems.jsonl \\
        --policy.path=runs/laptop-s0-stage2/policy --out=hard
    python -m experiments.filter_hard --rule=label --num_samples=16 \\
        --problems=problems/problems.jsonl --policy.path=DIR --out=checked

--rule=hard: paper, section 4.3: 8 rollouts per problem, drop those that are
right 8 times. --rule=label: paper, section 4.2: 16 samples of a strong model,
keep where at least 2 agree with the label. Writes OUT/problems.jsonl,
OUT/counts.jsonl (right and sampled per problem), OUT/rejects.jsonl and
OUT/report.json; the same command goes on where it was stopped.
"""

import collections
from collections.abc import Iterable
import dataclasses
import json
import os
from typing import Any, Literal

from experiments import config_flags
from experiments import evaluate
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax.data import output_files
from rstar2_jax.data import row_files

_field = config_fields.field
CONFIGS = evaluate.CONFIGS
_SAMPLES = {"hard": 8, "label": 16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Problems, rule and limits."""

  problems: str = _field("", "A .jsonl file of {id, problem, answer}, as"
                         " prepare_rl writes it.")
  out: str = _field("hard", "Folder written to.")
  rule: Literal["hard", "label"] = _field(
      "hard", "hard: drop what is always right; label: drop where too few"
      " samples agree with the label.")
  num_samples: int = _field(0, "Samples per problem; 0: 8 for hard, 16 for"
                            " label (paper).")
  min_right: int = _field(2, "Right samples that confirm a label (paper: 2).")
  served: bool = _field(
      False, "The servers of --rollout.urls have the weights already.")

  def __post_init__(self):
    config_fields.require(self.num_samples >= 0, "num_samples",
                          self.num_samples, "at least 0")
    config_fields.require(
        0 < self.min_right <= self.k, "min_right", self.min_right,
        f"from 1 to the {self.k} samples per problem")

  @property
  def k(self) -> int:
    """Samples per problem."""
    return self.num_samples or _SAMPLES[self.rule]


def main(options: Options, argv: list[str]) -> None:
  """Samples what is missing, counts, writes what the rule keeps."""
  cfg = config_flags.build(argv, CONFIGS)
  if not options.problems:
    raise errors.UserError("--problems: name a .jsonl file of problems")
  if not cfg.policy.path:
    raise errors.UserError("--policy.path: name the policy that samples")
  # Here, so that --help and wrong flags are answered without loading JAX.
  # pylint: disable=g-import-not-at-top
  from experiments import benchmark_run
  from rstar2_jax import assembly
  from rstar2_jax.data import records
  from rstar2_jax.evaluation import samples as samples_lib
  try:
    prompts = records.read_jsonl(options.problems)
  except ValueError as e:
    raise errors.UserError(f"--problems: {e}") from None
  if not prompts:
    raise errors.UserError(f"--problems={options.problems}: holds no problem")
  k = options.k
  # The rule is none of them: one set of samples serves both.
  settings = benchmark_run.settings(cfg, cfg.policy.path) | {
      "problems": os.path.abspath(options.problems)}
  with samples_lib.SampleFile(options.out, settings) as file:
    if file.missing(prompts, k):
      with assembly.open_sampling(
          cfg, cfg.policy.path, served=options.served) as workers:
        benchmark_run.sample_missing(workers, file, prompts, k, options.rule)
    verdicts = [[samples_lib.is_right(p, s) for s in file.of(p, k)]
                for p in prompts]
  _write(options, [(p, sum(right), len(right))
                   for p, right in zip(prompts, verdicts, strict=True)])


def reason(rule: str, right: int, sampled: int, *, k: int,
           min_right: int) -> str:
  """Why a problem is left out; "" if it is kept.

  Args:
    rule: "hard" or "label".
    right: samples that agree with the label.
    sampled: samples that were not lost.
    k: samples that were asked for.
    min_right: for "label".
  """
  if sampled < k:
    return "samples were lost to infrastructure"
  if rule == "hard":
    return "always right" if right == sampled else ""
  return "" if right >= min_right else "too few samples agree with the label"


def _write(options: Options, counted: Iterable[tuple[Any, int, int]]) -> None:
  kept, rejects, rows = [], [], []
  for prompt, right, sampled in counted:
    why = reason(options.rule, right, sampled, k=options.k,
                 min_right=options.min_right)
    rows.append({"id": prompt.id, "right": right, "sampled": sampled})
    if why:
      rejects.append(row_files.Reject(f"{options.problems} {prompt.id}", why,
                                      f"{right} of {sampled} right"))
    else:
      kept.append({"id": prompt.id, "problem": prompt.problem,
                   "answer": prompt.answer, "source": prompt.source})
  for name, values in (("problems", kept), ("counts", rows),
                       ("rejects", map(dataclasses.asdict, rejects))):
    output_files.write_jsonl(
        os.path.join(options.out, f"{name}.jsonl"), values)
  reasons = collections.Counter(r.reason for r in rejects)
  report = {"problems": len(rows), "kept": len(kept), "rejects": reasons,
            "options": dataclasses.asdict(options)}
  output_files.write_json(os.path.join(options.out, "report.json"), report)
  print(progress.table(["", "problems"], [
      ["sampled", str(len(rows))], ["kept", str(len(kept))],
      *([name, str(n)] for name, n in sorted(reasons.items()))]))
  print(json.dumps(report))


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, CONFIGS)
