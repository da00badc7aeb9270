"""Runs as one HTML page: warnings, results, curves, settings, environment.

    python -m experiments.report runs/laptop-s0-stage2
    python -m experiments.report runs/laptop-s*-stage2 --output=seeds.html

Every run writes its own page, RUN/report.html, when it ends; this command does
it for a run in progress, or draws several over each other.
"""

from collections.abc import Sequence
import dataclasses
import importlib
import json
import os
from typing import Any

from experiments import config_flags
from experiments import run_pages
from rstar2_jax import config
from rstar2_jax import config_fields
from rstar2_jax import flag_tables
from rstar2_jax import run_folder
from rstar2_jax.reports import run_report

# Not a setting but an identity.
_NOT_COMPARED = ("stage", "workdir", "name")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Where the page goes."""

  output: str = config_fields.field(
      "", "HTML file; empty: report.html in the run's folder, or beside the"
      " first of several.")


def main(options: Options, paths: list[str]) -> None:
  """Writes the page and says where it is."""
  first = os.path.normpath(paths[0])
  folder = first if len(paths) == 1 else os.path.dirname(first)
  output = options.output or os.path.join(folder, "report.html")
  runs = _read(paths)
  run_pages.write(output, run_report.render(runs))
  print(f"report: {output}")


def write(cfg: config.Config) -> None:
  """Writes report.html into the folder of a run, and says so."""
  main(Options(), [run_folder.path_of(cfg)])


def _read(paths: Sequence[str]) -> list[run_report.Run]:
  paths = list(dict.fromkeys(map(os.path.normpath, paths)))
  names = [run_pages.name(path) for path in paths]
  if len(set(names)) < len(names):
    names = paths
  return [_read_run(path, name) for path, name in zip(paths, names)]


def _read_run(path: str, name: str) -> run_report.Run:
  flags = run_folder.read_flags(path)
  history: Sequence[Any] = ()
  if run_folder.is_finished(path):
    history = run_folder.read_summary(path)["history"]
  return run_report.Run(
      name=name,
      flags={k: v for k, v in flags.items() if k not in _NOT_COMPARED},
      preset=_preset(flags), steps=run_folder.read_metrics(path),
      history=history, session=run_folder.read_session(path))


def _preset(flags: dict[str, Any]) -> dict[str, Any]:
  """What the flags would be had none been given; {} for a card unknown here."""
  try:
    card = importlib.import_module(f"experiments.{flags['stage']}")
    cfg = card.CONFIGS[flags["preset"]]
  except (ModuleNotFoundError, AttributeError, KeyError):
    return {}
  # As JSON has them: lists for tuples.
  return json.loads(json.dumps(flag_tables.values(cfg)))


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, operands="a run folder")
