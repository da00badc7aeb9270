"""Results of a benchmark from its samples, and one table across models."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

import numpy as np

from rstar2_jax import types
from rstar2_jax.data import problem_filters
from rstar2_jax.evaluation import comparison
from rstar2_jax.evaluation import estimators
from rstar2_jax.evaluation import samples as samples_lib
from rstar2_jax.rewards import grading

HEADER = ("model", "benchmark", "problems", "k", "avg@k", "pass@k", "maj@k",
           "tokens", "calls", "call errors", "cut off", "lost")


def summarize(
    prompts: Sequence[types.Prompt],
    pairs: Sequence[tuple[types.Prompt, samples_lib.Sample]],
    verdicts: Sequence[tuple[bool | None, bool | None]],
    *,
    num_samples: int,
    contaminated: int | None,
) -> dict[str, Any]:
  """Metrics of one benchmark.

  Args:
    prompts: of the benchmark, all.
    pairs: samples that are not lost, with their problems.
    verdicts: of `samples.grade`, aligned with `pairs`.
    num_samples: k that was asked for.
    contaminated: problems that overlap with the training data; None: not
      looked for.

  Returns:
    JSON values: `avg`, `pass`, `maj` as {mean, low, high} (shares; 95 %,
    clustered by problem), `k` (of pass@k: the fewest samples of a problem),
    means of tokens, turns and calls, `tool_error_ratio`, `truncated`,
    `disagreements` between the graders, and counts.
  """
  values = samples_lib.rewards(verdicts)
  graded = [(pair, v) for pair, v in zip(pairs, values, strict=True)
            if v is not None]
  given = [pair for pair, _ in graded]
  grouped = samples_lib.by_problem(given, [v for _, v in graded])
  answers = samples_lib.by_problem(
      given, [_vote(sample) for _, sample in given])
  found = [s for _, s in given]
  result = {
      "problems": len(prompts), "graded_problems": len(grouped),
      "num_samples": num_samples, "samples": len(found),
      "lost": len(prompts) * num_samples - len(found),
      "contaminated": contaminated,
      "disagreements": sum(
          strict is not None and lenient is not None and strict != lenient
          for strict, lenient in verdicts),
  }
  if not grouped:
    return result
  right, ids = list(grouped.values()), list(grouped)
  k = min(map(len, right))
  calls = sum(s.calls for s in found)
  return result | {
      "k": k,
      "avg": _interval(estimators.avg_at_k(right)),
      "pass": _interval(estimators.pass_at_k(right, k)),
      "maj": _interval(estimators.maj_at_k([answers[i] for i in ids], right)),
      "response_tokens": float(np.mean([s.response_tokens for s in found])),
      "turns": float(np.mean([s.turns for s in found])),
      "calls": float(np.mean([s.calls for s in found])),
      "tool_error_ratio": (
          sum(s.erroneous_calls for s in found) / calls if calls else None),
      "truncated": float(np.mean([
          s.stop_reason == types.StopReason.MAX_TOKENS for s in found])),
  }


def count_contaminated(
    prompts: Sequence[types.Prompt], training: Sequence[str]
) -> int:
  """Problems that share a word 8-gram with a training text (section 5.1)."""
  known = problem_filters.Contamination(training)
  return sum(known.share(p.problem) > 0 for p in prompts)


def read_all(folder: str) -> dict[str, Mapping[str, Any]]:
  """Results by label of every `results.json` below a folder."""
  found = {}
  for label in sorted(os.listdir(folder)):
    path = os.path.join(folder, label, "results.json")
    if os.path.isfile(path):
      with open(path, encoding="utf-8") as file:
        found[label] = json.load(file)
  return found


def rows(
    results: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> list[list[str]]:
  """Cells under HEADER of one table across models.

  Args:
    results: by label, then by benchmark, as `summarize` gives them.
  """
  return [[label, name, *_cells(result)]
          for name in _names(results) for label, of in results.items()
          if (result := of.get(name)) is not None]


def _names(results) -> list[str]:
  return list(dict.fromkeys(name for of in results.values() for name in of))


def _cells(result: Mapping[str, Any]) -> list[str]:
  if "avg" not in result:
    return [str(result["problems"])] + ["-"] * 8 + [str(result["lost"])]
  errors = result["tool_error_ratio"]
  return [
      str(result["graded_problems"]), str(result["k"]),
      *(_shown(result[name]) for name in ("avg", "pass", "maj")),
      f"{result['response_tokens']:.0f}", f"{result['calls']:.2f}",
      "-" if errors is None else f"{100 * errors:.1f} %",
      f"{100 * result['truncated']:.1f} %", str(result["lost"])]


def _shown(value: Mapping[str, Any]) -> str:
  if value["low"] is None:
    return f"{100 * value['mean']:.1f}"
  half = 100 * (value["high"] - value["mean"])
  return f"{100 * value['mean']:.1f} ± {half:.1f}"


def _interval(value: comparison.Interval) -> dict[str, float | None]:
  """NaN is no JSON: None where a single problem has no interval."""
  return {name: None if x != x else x
          for name, x in dataclasses.asdict(value).items()}


def _vote(sample: samples_lib.Sample) -> str | None:
  """What a sample votes for: integers by value, the rest by text."""
  if sample.answer is None:
    return None
  return grading.read_integer(sample.answer) or "".join(sample.answer.split())
