"""RL problems from other people's data: integer answers, once each, clean.

    python -m experiments.prepare_rl --out=problems --inputs=a.jsonl,b.json \\
        --evals=aime24.jsonl,math500.jsonl

Reads DAPO-Math, OpenMathReasoning, MATH, DeepScaleR, GSM8K, Project Euler
lists and our own form, each recognized by its fields. Writes OUT/problems.jsonl
(for --data.train), OUT/rejects.jsonl (place, reason, detail of every row left
out) and OUT/report.json.
"""

import collections
from collections.abc import Iterable
import dataclasses
import os

from experiments import config_flags
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax.data import math_schemas
from rstar2_jax.data import output_files
from rstar2_jax.data import problem_filters
from rstar2_jax.data import row_files

_field = config_fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Inputs and limits."""

  inputs: tuple[str, ...] = _field(
      (), "Files (.jsonl, .json, .parquet) and hf:NAME, any schema.")
  evals: tuple[str, ...] = _field(
      (), "Evaluation sets to keep out, same forms.")
  out: str = _field("problems", "Folder written to.")
  split: str = _field("train", "Split of hub data sets.")
  max_digits: int = _field(18, "Longest answer kept [digits].")
  max_chars: int = _field(8000, "Longest problem kept [characters].")
  max_overlap: float = _field(
      0.0, "Share of a problem's 8-grams that an evaluation set may hold; 0:"
      " none (paper).")

  def __post_init__(self):
    config_fields.require_positive(self, "", "max_digits", "max_chars")
    config_fields.require(0 <= self.max_overlap <= 1, "max_overlap",
                          self.max_overlap, "from 0 to 1")


def main(options: Options, argv: list[str]) -> None:
  """Reads, filters, writes, prints what every filter left."""
  del argv
  if not options.inputs:
    raise errors.UserError("--inputs: name at least one file or hf:NAME")
  try:
    problems, rejects = _read(options.inputs, options.split)
    evals, broken = _read(options.evals, "test")
  except ValueError as e:
    raise errors.UserError(str(e)) from None
  if broken:
    raise errors.UserError(
        f"{broken[0].where}: {broken[0].reason} ({broken[0].detail}); an"
        " evaluation set must be read whole to be kept out")
  rows = len(problems) + len(rejects)
  counts = [("rows read", rows), ("with problem and answer", len(problems))]
  for name, step in _steps(options, [p.text for p in evals]):
    problems, left_out = step(problems)
    rejects += left_out
    counts.append((name, len(problems)))
  _write(options.out, problems, rejects, counts, options)
  if not options.evals:
    progress.say("no --evals given: overlap with evaluations was not looked"
                 " for")
  if not problems:
    raise errors.UserError(f"no problem is left of {rows}; {options.out}"
                           "/rejects.jsonl says why")


def _read(
    inputs: Iterable[str], split: str
) -> tuple[list[math_schemas.Problem], list[row_files.Reject]]:
  problems, rejects = [], []
  for name in inputs:
    for found in math_schemas.read(name, split=split):
      if isinstance(found, row_files.Reject):
        rejects.append(found)
      else:
        problems.append(dataclasses.replace(
            found, source=found.source or os.path.basename(name)))
  return problems, rejects


def _steps(options: Options, evals: list[str]):
  contamination = problem_filters.Contamination(evals)
  return (
      ("integer answer", lambda ps: problem_filters.keep_integers(
          ps, max_digits=options.max_digits)),
      ("not too long", lambda ps: problem_filters.drop_long(
          ps, max_chars=options.max_chars)),
      ("once", problem_filters.drop_duplicates),
      ("not in an evaluation set", lambda ps: contamination.drop(
          ps, max_share=options.max_overlap)),
  )


def _write(out, problems, rejects, counts, options) -> None:
  os.makedirs(out, exist_ok=True)
  output_files.write_jsonl(
      os.path.join(out, "problems.jsonl"), _with_ids(problems))
  output_files.write_jsonl(
      os.path.join(out, "rejects.jsonl"), map(dataclasses.asdict, rejects))
  reasons = collections.Counter(r.reason for r in rejects)
  report = {"left": dict(counts), "rejects": reasons,
            "options": dataclasses.asdict(options)}
  output_files.write_json(os.path.join(out, "report.json"), report)
  print(progress.table(["left after", "problems"],
                       [[name, str(n)] for name, n in counts]))
  print()
  print(progress.table(["rejected because", "rows"],
                       [[name, str(n)] for name, n in sorted(reasons.items())]))
  print(f"\nwritten to {out}")


def _with_ids(problems):
  """Rows of problems.jsonl; an id that is missing or taken gets a number."""
  taken: set[str] = set()
  for i, p in enumerate(problems):
    name = p.id if p.id and p.id not in taken else f"problem-{i:06d}"
    taken.add(name)
    yield {"id": name, "problem": p.text, "answer": p.answer,
           "source": p.source}


if __name__ == "__main__":
  config_flags.run_with_options(main, Options)
