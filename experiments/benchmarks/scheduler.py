"""Rollouts of a step under each way to admit them, on simulated servers.

    python -m experiments.benchmarks.scheduler
    python -m experiments.benchmarks.scheduler --servers=64 --per_server=256

The scheduler is the one that training uses; servers and clock are simulated
(experiments/benchmarks/rollout_simulation.py says how). Responses are
heavy-tailed. `barrier` is the paper's first version: as many per server, all
launched at once, a turn starting when all have ended the one before; `static`
is the same without the barrier. Prints a table, and as the last line JSON.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
import platform
from typing import Any

import numpy as np

from experiments import config_flags
from experiments.benchmarks import rollout_simulation as simulation
from rstar2_jax import config_fields
from rstar2_jax import progress

_field = config_fields.field
_MODES: Mapping[str, Mapping[str, Any]] = {
    "barrier": {"mode": "static", "has_barrier": True},
    "static": {"mode": "static"},
    "least_loaded": {"mode": "least_loaded"},
    "worst_case": {"mode": "worst_case"},
    "expected": {"mode": "expected"},
}
_HEAD = ("", "makespan [s]", "over the bound", "barrier / this", "evictions",
         "prefilled", "idle", "wait for room [s]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """The load."""

  servers: int = _field(8, "Rollout servers.")
  per_server: int = _field(512, "Trajectories per server.")
  max_response_tokens: int = _field(12_288, "Longest response.")
  seeds: int = _field(5, "Draws of the load; the table shows medians.")

  def __post_init__(self):
    config_fields.require_positive(self, "")
    most = simulation.Hardware().kv_capacity // 2
    config_fields.require(
        self.max_response_tokens <= most, "max_response_tokens",
        self.max_response_tokens, f"at most {most}, half a server's KV")


def main(options: Options, argv: list[str]) -> None:
  """Simulates and prints."""
  del argv
  hardware = simulation.Hardware()
  results: dict[str, list[simulation.Result]] = {name: [] for name in _MODES}
  bounds_s = []
  for seed in range(options.seeds):
    traces, earlier = (simulation.heavy_tailed(
        options.servers * options.per_server, seed=s,
        max_new=options.max_response_tokens) for s in (seed, seed + 1000))
    bounds_s.append(simulation.lower_bound_s(
        traces, num_servers=options.servers, hardware=hardware))
    for name, admission in _MODES.items():
      results[name].append(simulation.simulate(
          traces, num_servers=options.servers, hardware=hardware,
          max_new=options.max_response_tokens,
          warm_up=[t.num_tokens - t.num_prompt for t in earlier[:4096]],
          **admission))
  found = {name: _summary(runs, results["barrier"], bounds_s)
           for name, runs in results.items()}
  print(progress.table(
      _HEAD, [[name, *_cells(s)] for name, s in found.items()]))
  print(json.dumps({
      "benchmark": "scheduler", "machine": _machine(),
      "results": {"load": dataclasses.asdict(options), "modes": found,
                  "hardware": dataclasses.asdict(hardware)},
      "goals": _goals(found)}))


def _summary(
    runs: list[simulation.Result], barrier: list[simulation.Result],
    bounds_s: list[float],
) -> dict[str, float]:
  """Medians over the draws; ratios are taken draw by draw."""
  def median(values):
    return float(np.median(list(values)))
  return {
      "makespan_s": median(r.makespan_s for r in runs),
      "over_bound": median(
          r.makespan_s / b for r, b in zip(runs, bounds_s, strict=True)),
      "speedup": median(
          b.makespan_s / r.makespan_s
          for r, b in zip(runs, barrier, strict=True)),
      "evictions": median(r.evictions for r in runs),
      "prefilled": median(r.prefilled for r in runs),
      "idle": median(r.idle for r in runs),
      "queue_wait_s": median(r.queue_wait_s for r in runs),
  }


def _cells(summary: Mapping[str, float]) -> list[str]:
  s = summary
  return [f"{s['makespan_s']:.0f}", f"{s['over_bound']:.2f} x",
          f"{s['speedup']:.2f} x", f"{s['evictions']:.0f}",
          f"{s['prefilled']:.2f} x", f"{100 * s['idle']:.1f} %",
          f"{s['queue_wait_s']:.0f}"]


def _goals(found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
  best = min(("worst_case", "expected"),
             key=lambda name: found[name]["makespan_s"])
  evictions = found["worst_case"]["evictions"]
  return {
      "over_bound": {"value": found[best]["over_bound"], "goal": 1.05,
                     "met": found[best]["over_bound"] <= 1.05},
      "speedup": {"value": found[best]["speedup"], "goal": 1.5,
                  "met": found[best]["speedup"] >= 1.5},
      "worst_case_evictions": {
          "value": evictions, "goal": 0, "met": evictions == 0},
  }


def _machine() -> str:
  return f"{platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
  config_flags.run_with_options(main, Options)
