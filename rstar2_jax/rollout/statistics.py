"""What a batch of trajectories looks like, before any selection.

Means and ratios are over all graded trajectories; those that our own
infrastructure broke are counted apart and enter nothing else but the shares of
stop reasons and the sampled tokens. Tool-error ratios are erroneous calls over
calls, from typed results (P20).
"""

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from rstar2_jax import types


def summarize(trajectories: Sequence[types.Trajectory]) -> dict[str, float]:
  """Metrics of trajectories, by name without a group prefix.

  Args:
    trajectories: any number, graded but for the masked-out ones.

  Returns:
    Means (`reward`, `response_tokens`, `turns`, `tool_calls`; seconds that a
    trajectory spent, `sample_s`, `tool_s`, `grade_s`; per call `tool_wall_ms`
    and `tool_queue_ms`), ratios (`tool_error_ratio` and the same in correct
    and incorrect trajectories, `truncated`, `stop/REASON`,
    `tool_status/STATUS`) and counts (`trajectories`, `masked_out`,
    `sampled_tokens`). A mean over nothing is left out, not zero.
  """
  graded = [t for t in trajectories if not t.is_masked_out]
  metrics = {
      "trajectories": float(len(trajectories)),
      "masked_out": float(len(trajectories) - len(graded)),
      "sampled_tokens": float(sum(t.num_sampled_tokens for t in trajectories)),
  }
  metrics |= _shares("stop", [t.stop_reason for t in trajectories])
  if not graded:
    return metrics
  metrics |= {
      "reward": _mean(t.outcome for t in graded),
      "response_tokens": _mean(t.num_response_tokens for t in graded),
      "turns": _mean(t.num_turns for t in graded),
      "tool_calls": _mean(len(t.tool_calls) for t in graded),
      "truncated": _mean(
          t.stop_reason is types.StopReason.MAX_TOKENS for t in graded),
  }
  for name in ("sample_s", "tool_s", "grade_s"):
    seconds = [t.timings[name] for t in graded if name in t.timings]
    if seconds:
      metrics[name] = _mean(seconds)
  results = [r for t in graded for r in t.tool_results]
  if results:
    metrics["tool_wall_ms"] = _mean(r.wall_ms for r in results)
    metrics["tool_queue_ms"] = _mean(r.queue_ms for r in results)
  metrics |= _ratio("tool_error_ratio", graded)
  metrics |= _ratio("tool_error_ratio_correct",
                    [t for t in graded if t.outcome > 0])
  metrics |= _ratio("tool_error_ratio_incorrect",
                    [t for t in graded if t.outcome <= 0])
  metrics |= _shares("tool_status", [r.status for r in results])
  return metrics


def by_source(trajectories: Iterable[types.Trajectory]) -> dict[str, float]:
  """Mean reward for each `prompt.source`, of graded trajectories."""
  rewards = collections.defaultdict(list)
  for t in trajectories:
    if not t.is_masked_out:
      rewards[t.prompt.source or "all"].append(t.outcome)
  return {name: float(np.mean(r)) for name, r in sorted(rewards.items())}


def _mean(values: Iterable[float]) -> float:
  return float(np.mean([float(v) for v in values]))


def _ratio(
    name: str, trajectories: Sequence[types.Trajectory]
) -> dict[str, float]:
  """Erroneous calls over calls; nothing where no call was made."""
  statuses = [r.status for t in trajectories for r in t.tool_results
              if not r.status.is_infra_error]
  if not statuses:
    return {}
  return {name: float(np.mean([s.is_policy_error for s in statuses]))}


def _shares(prefix: str, values: Sequence[str]) -> dict[str, float]:
  counts = collections.Counter(values)
  return {f"{prefix}/{value}": n / len(values)
          for value, n in sorted(counts.items())}
