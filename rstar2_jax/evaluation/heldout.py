"""Held-out pass@1 of the current policy, with the live tool.

avg@k: each problem is sampled k times and pass@1 is the mean over all samples
(paper, section 5.1: k = 16, temperature 0.6). The interval treats the problem,
not the sample, as the unit, since samples of one problem are alike.
"""

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from rstar2_jax import types
from rstar2_jax.rollout import collector as collector_lib
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import statistics


def evaluate(
    collector: collector_lib.Collector,
    prompts: Sequence[types.Prompt],
    *,
    num_samples: int,
    temperature: float,
    limits: episode.Limits,
    seed: int,
    timeout_s: float,
    on_done: Callable[[types.Trajectory], None] = lambda _: None,
) -> tuple[dict[str, Any], list[types.TrajectoryGroup]]:
  """Samples every problem and averages.

  Args:
    collector: where rollouts run.
    prompts: held-out problems.
    num_samples: k, samples per problem.
    temperature: of sampling; 0 is greedy.
    limits: as in training; temperature, top_p and top_k are replaced.
    seed: the same seed gives the same draws for every policy.
    timeout_s: deadline of the whole evaluation.
    on_done: called after each trajectory.

  Returns:
    (metrics, groups). metrics: `pass_at_1` in [0, 1], `pass_at_1_stderr`
    clustered by problem, `tool_error_ratio` and the same in correct
    trajectories, `response_tokens`, `turns`, `num_problems`, `num_samples` and
    `by_source` (mean reward per family).

  Raises:
    RuntimeError: every trajectory was lost to infrastructure.
  """
  groups = collector.collect(
      prompts, group_size=num_samples, seed_parts=("heldout", seed),
      limits=untruncated(limits, temperature),
      timeout_s=timeout_s, on_done=on_done)
  return summarize(groups, num_samples), groups


def untruncated(limits: episode.Limits, temperature: float) -> episode.Limits:
  """The same budgets at a temperature, with every token to choose from."""
  return dataclasses.replace(
      limits, temperature=temperature, top_p=1.0, top_k=-1)


def summarize(
    groups: Sequence[types.TrajectoryGroup], num_samples: int
) -> dict[str, Any]:
  """The metrics of `evaluate` from graded groups."""
  trajectories = [t for g in groups for t in g.trajectories]
  means = [_mean_reward(g) for g in groups]
  known = np.array([m for m in means if m is not None])
  if not known.size:
    raise RuntimeError("evaluation: no trajectory survived; see the sandbox's"
                       " and the rollout server's output")
  stats = statistics.summarize(trajectories)
  stderr = known.std(ddof=1) / math.sqrt(known.size) if known.size > 1 else 0.0
  return {
      "pass_at_1": float(known.mean()),
      "pass_at_1_stderr": float(stderr),
      "tool_error_ratio": stats.get("tool_error_ratio"),
      "tool_error_ratio_correct": stats.get("tool_error_ratio_correct"),
      "response_tokens": stats.get("response_tokens"),
      "turns": stats.get("turns"),
      "masked_out": stats["masked_out"],
      "num_problems": int(known.size),
      "num_samples": num_samples,
      "by_source": statistics.by_source(trajectories),
  }


def _mean_reward(group: types.TrajectoryGroup) -> float | None:
  rewards = [t.outcome for t in group.trajectories if not t.is_masked_out]
  return float(np.mean(rewards)) if rewards else None
