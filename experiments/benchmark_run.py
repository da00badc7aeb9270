"""Samples benchmarks with a policy, grades them, and joins the table.

Not a command: `experiments.evaluate --benchmark=...` calls it.
"""

from collections.abc import Sequence
import json
import os

from rstar2_jax import assembly
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import types
from rstar2_jax.data import benchmarks
from rstar2_jax.data import math_schemas
from rstar2_jax.data import output_files
from rstar2_jax.data import row_files
from rstar2_jax.evaluation import benchmark_report
from rstar2_jax.evaluation import samples as samples_lib


def run(
    cfg: config.Config, path: str, names: Sequence[str], *, label: str,
    served: bool, first: int,
) -> None:
  """Samples what is missing, writes results.json, prints the table.

  Args:
    cfg: limits, sampling and servers.
    path: Hugging Face folder of the policy.
    names: of benchmarks, see `benchmarks.parse`.
    label: folder and row of the table.
    served: the servers have the weights already.
    first: problems of each benchmark; 0: all.

  Raises:
    errors.UserError: a benchmark cannot be read, or the folder holds samples
      made with other settings.
  """
  sets = load(names, first)
  training = _training_texts(cfg)
  folder = os.path.join(cfg.workdir, "evaluations", label)
  k = cfg.eval.num_samples
  with samples_lib.SampleFile(folder, settings(cfg, path)) as file:
    prompts = [p for of in sets.values() for p in of]
    with assembly.open_sampling(cfg, path, served=served) as workers:
      sample_missing(workers, file, prompts, k, "evaluate")
      pairs = {name: [(p, s) for p in of for s in file.of(p, k)]
               for name, of in sets.items()}
      verdicts = {name: workers.grade_samples(of) for name, of in pairs.items()}
  results = {
      name: benchmark_report.summarize(
          sets[name], pairs[name], verdicts[name], num_samples=k,
          contaminated=None if training is None else (
              benchmark_report.count_contaminated(sets[name], training)))
      for name in sets}
  _write(folder, results)
  _print(os.path.dirname(folder), label, results)


def load(names: Sequence[str], first: int) -> dict[str, list[types.Prompt]]:
  """Problems by benchmark.

  Raises:
    errors.UserError: one cannot be read, or two have the same name.
  """
  sets: dict[str, list[types.Prompt]] = {}
  try:
    for text in names:
      name, place = benchmarks.parse(text)
      if name in sets:
        raise ValueError(f"two benchmarks are named {name!r}")
      sets[name] = benchmarks.load(name, place)[:first or None]
  except ValueError as e:
    raise errors.UserError(f"--benchmark: {e}") from None
  return sets


def settings(cfg: config.Config, path: str) -> dict[str, object]:
  """What decides a sample besides its problem and index."""
  return {
      "policy": os.path.abspath(path), "seed": cfg.seed,
      "eval.temperature": cfg.eval.temperature,
      "rollout.max_turns": cfg.rollout.max_turns,
      "rollout.max_response_tokens": cfg.rollout.max_response_tokens,
      "rollout.max_tool_calls_per_turn": cfg.rollout.max_tool_calls_per_turn,
      "tool.timeout_s": cfg.tool.timeout_s,
      "tool.max_response_chars": cfg.tool.max_response_chars,
  }


def sample_missing(
    workers, file: samples_lib.SampleFile, prompts: Sequence[types.Prompt],
    num_samples: int, name: str,
) -> None:
  """Samples every problem that lacks samples and keeps each at its end.

  Args:
    workers: an open `workers.Workers`.
    file: where samples are kept.
    prompts: all problems; those that are complete are left alone.
    num_samples: k.
    name: shown with the progress.
  """
  missing = file.missing(prompts, num_samples)
  total = len(prompts) * num_samples
  done = total - len(missing) * num_samples
  if not missing:
    return
  with progress.counter(total, name, start=done) as counter:
    def keep(trajectory: types.Trajectory) -> None:
      file.add(samples_lib.of_trajectory(trajectory))
      counter.advance()
    workers.sample(missing, num_samples=num_samples, on_done=keep)


def _training_texts(cfg: config.Config) -> list[str] | None:
  """Problems of --data.train, to look for overlap; None: not a file."""
  if not cfg.data.train.endswith(row_files.SUFFIXES):
    return None
  try:
    return [row.text for row in math_schemas.read(cfg.data.train)
            if isinstance(row, math_schemas.Problem)]
  except ValueError as e:
    raise errors.UserError(f"--data.train: {e}") from None


def _write(folder: str, results) -> None:
  """Joins earlier results of the same folder: its settings are the same."""
  path = os.path.join(folder, "results.json")
  earlier = {}
  if os.path.exists(path):
    with open(path, encoding="utf-8") as file:
      earlier = json.load(file)
  output_files.write_json(path, earlier | results)


def _print(folder: str, label: str, results) -> None:
  print(progress.table(benchmark_report.HEADER, benchmark_report.rows(
      benchmark_report.read_all(folder))))
  for name, result in results.items():
    if result["lost"]:
      print(f"{name}: {result['lost']} samples were lost to infrastructure and"
            " count nowhere; the same command samples them again")
    if result["contaminated"]:
      print(f"{name}: {result['contaminated']} of {result['problems']} problems"
            " share an 8-gram with --data.train")
    elif result["contaminated"] is None:
      print(f"{name}: overlap with the training data was not looked for; give"
            " --data.train=FILE")
    if result["disagreements"]:
      print(f"{name}: strict and lenient grader disagree on"
            f" {result['disagreements']} of {result['samples']} samples")
  print(json.dumps({"label": label, "results": results}))
