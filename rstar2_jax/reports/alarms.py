"""Signs that training goes wrong, read from the metrics of its steps.

Each rule is one row below: a metric, when it is alarming, and what to do. Means
are over the last five values, so that no single step rings.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses

Steps = Sequence[Mapping[str, float | None]]

_WINDOW = 5
_INFINITY = float("inf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
  """When a metric is alarming.

  Attributes:
    metric: key of a line of metrics.jsonl.
    text: what it means and what to do.
    above: the mean is over this,
    below: or under this,
    collapsed: or under this share of the highest mean before.
  """

  metric: str
  text: str
  above: float = _INFINITY
  below: float = -_INFINITY
  collapsed: float = -_INFINITY


# Limits are ours, for runs of this project; no paper gives them.
RULES = (
    Rule(metric="rollout/reward", collapsed=0.5,
         text="reward fell to half of what it was; see the trajectories before"
         " and after, then a lower optimizer.learning_rate"),
    Rule(metric="learner/entropy", collapsed=0.1,
         text="entropy fell to a tenth: the policy samples nearly the same"
         " every time; raise loss.clip_high or set loss.entropy_coef"),
    Rule(metric="learner/clipped", above=0.2,
         text="a fifth of the tokens is clipped: updates are too large; lower"
         " optimizer.learning_rate"),
    Rule(metric="learner/rollout_kl", above=0.01,
         text="sampler and learner disagree about logprobs; check that both"
         " hold the same weights and dtype, or set loss.importance_cap"),
    Rule(metric="rollout/response_tokens", collapsed=0.25,
         text="responses shrank to a quarter; see whether the policy still"
         " thinks and calls the tool"),
    Rule(metric="rollout/truncated", above=0.5,
         text="half of the responses is cut off; raise"
         " rollout.max_response_tokens, or the policy does not learn to stop"),
    Rule(metric="rollout/tool_calls", collapsed=0.25,
         text="the policy is giving up its tool: calls fell to a quarter"),
    Rule(metric="rollout/tool_error_ratio", above=0.8,
         text="four of five calls fail; see how in experiments.view"),
    Rule(metric="roc/groups_kept", below=0.2,
         text="four of five groups have no signal; filter the problems by"
         " difficulty (experiments.filter_hard) or go to the next stage"),
    Rule(metric="rollout/masked_out_share", above=0.05,
         text="trajectories are lost to infrastructure; see what the rollout"
         " servers and the sandbox say"),
)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """A rule that began to hold.

  Attributes:
    step: of the run.
    metric: of the rule.
    value: mean over the last values [unit of the metric].
    text: for people, with the value.
  """

  step: int
  metric: str
  value: float
  text: str


class Watch:
  """Follows a run step by step."""

  def __init__(self):
    """Before the first step."""
    self._states = [_State() for _ in RULES]

  def add(self, step: Mapping[str, float | None]) -> list[Alarm]:
    """Alarms that begin with a step: on now, and not a step before.

    Args:
      step: the next line of metrics.jsonl.
    """
    found = []
    for rule, state in zip(RULES, self._states, strict=True):
      value = _value(rule.metric, step)
      if value is None:
        continue  # passed over
      was_on = state.is_on
      mean = state.add(value, rule)
      if state.is_on and not was_on:
        found.append(Alarm(int(step["step"] or 0), rule.metric, mean,
                           f"{rule.metric} = {mean:.3g}: {rule.text}"))
    return found


def all_of(steps: Steps) -> list[Alarm]:
  """Every alarm of a run, in order of step.

  Args:
    steps: lines of metrics.jsonl, in order, from the first step on.
  """
  watch = Watch()
  return [alarm for step in steps for alarm in watch.add(step)]


class _State:
  """Of one rule: its last values, the highest mean, whether it holds."""

  def __init__(self):
    self.is_on = False
    self._values: collections.deque[float] = collections.deque(maxlen=_WINDOW)
    self._highest = -_INFINITY

  def add(self, value: float, rule: Rule) -> float:
    """Takes the next value; gives the mean of the last ones."""
    self._values.append(value)
    mean = sum(self._values) / len(self._values)
    if len(self._values) == _WINDOW:
      self._highest = max(self._highest, mean)
      self.is_on = (mean > rule.above or mean < rule.below
                    or mean < rule.collapsed * self._highest)
    return mean


def _value(metric: str, step: Mapping[str, float | None]) -> float | None:
  if metric != "rollout/masked_out_share":
    return step.get(metric)
  lost, total = step.get("rollout/masked_out"), step.get("rollout/trajectories")
  return None if lost is None or not total else lost / total
