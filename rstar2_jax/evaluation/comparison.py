"""Arms against each other: means over seeds, paired differences, verdicts.

Seeds are few, so intervals are Student's t. Two arms with the same seeds start
from the same SFT policy and see the same problems, so their difference is taken
seed by seed, which leaves out what a seed does to both.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, Literal

import numpy as np
from scipy import stats

Expected = Literal["higher", "lower", "no_gain"]
Verdict = Literal["reproduced", "not reproduced", "undecided"]

# Of the last quarter of the steps, so that single steps weigh little.
_TAIL = 0.25
TRAINING_METRICS = {
    "tool_error_ratio_correct": "rollout/tool_error_ratio_correct",
    "tool_error_ratio": "rollout/tool_error_ratio",
    "response_tokens": "rollout/response_tokens",
    "truncated": "rollout/truncated",
    "reward": "rollout/reward",
}
MEASURES: Mapping[str, str] = {
    "pass_at_1": "held-out pass@1",
    "tool_error_ratio_correct": "tool errors in right trajectories",
    "tool_error_ratio": "tool errors",
    "response_tokens": "response [tokens]",
    "truncated": "truncated",
    "reward": "training reward",
}
SHARES = frozenset(MEASURES) - {"response_tokens"}
# A gain under this counts as none.
NO_GAIN_MARGIN = {"pass_at_1": 0.01}


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean with its 95 % interval; low and high are NaN for a single value."""

  mean: float
  low: float
  high: float
  count: int


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
  """Student's t interval of a mean.

  Args:
    values: at least one.
    confidence: share of intervals that would cover the true mean.
  """
  v = np.asarray(values, np.float64)
  mean = float(v.mean())
  if v.size < 2:
    return Interval(mean, math.nan, math.nan, v.size)
  half = float(stats.t.ppf((1 + confidence) / 2, v.size - 1)
               * v.std(ddof=1) / math.sqrt(v.size))
  return Interval(mean, mean - half, mean + half, v.size)


def measures(
    summary: Mapping[str, Any], steps: Sequence[Mapping[str, float | None]]
) -> dict[str, float]:
  """What a finished run is compared by.

  Args:
    summary: its summary.json.
    steps: its metrics.jsonl, in order.

  Returns:
    By names of MEASURES; what the run did not log is left out. Held-out
    pass@1 is the final policy's, the rest means over the last quarter of
    training.
  """
  found: dict[str, float] = {}
  if summary.get("pass_at_1_after") is not None:
    found["pass_at_1"] = float(summary["pass_at_1_after"])
  tail = steps[len(steps) - max(1, round(_TAIL * len(steps))):]
  for name, key in TRAINING_METRICS.items():
    values = [x for s in tail if (x := s.get(key)) is not None]
    if values:
      found[name] = float(np.mean(values))
  return found


def difference(
    arm: Mapping[int, float], baseline: Mapping[int, float]
) -> Interval | None:
  """arm - baseline over the seeds that both have; None if they share none."""
  shared = sorted(arm.keys() & baseline.keys())
  return interval([arm[s] - baseline[s] for s in shared]) if shared else None


def verdict(
    gap: Interval | None, expected: Expected, *, margin: float = 0.0
) -> Verdict:
  """Whether a difference bears a claim out.

  Args:
    gap: arm - baseline.
    expected: `higher` and `lower` want the whole interval on that side of
      zero; `no_gain` wants it under `margin`.
    margin: a gain that counts as none.

  Returns:
    `not reproduced` if the interval lies wholly on the other side (for
    `no_gain`: the gain is certain, over zero and on average over the margin),
    `undecided` otherwise, and always with fewer than two seeds.
  """
  if gap is None or math.isnan(gap.low):
    return "undecided"
  if expected == "lower":
    is_so, is_not = gap.high < 0, gap.low > 0
  elif expected == "higher":
    is_so, is_not = gap.low > 0, gap.high < 0
  else:
    is_so = gap.high < margin
    is_not = gap.low > 0 and gap.mean > margin
  return ("reproduced" if is_so else
          "not reproduced" if is_not else "undecided")


def band(
    runs: Sequence[Mapping[int, float]],
) -> tuple[list[int], list[float], list[float], list[float]]:
  """Mean and 95 % interval at every step that at least one run has.

  Args:
    runs: per seed, values by step.

  Returns:
    (steps, means, lows, highs); NaN bounds where a single run has a value.
  """
  steps = sorted(set().union(*runs)) if runs else []
  intervals = [interval([r[s] for r in runs if s in r]) for s in steps]
  return (steps, [i.mean for i in intervals], [i.low for i in intervals],
          [i.high for i in intervals])


def smooth(values: Mapping[int, float], window: int) -> dict[int, float]:
  """Running mean over the last `window` steps that have a value."""
  steps = sorted(values)
  return {s: float(np.mean([values[t] for t in steps[max(0, i - window + 1):
                                                     i + 1]]))
          for i, s in enumerate(steps)}
