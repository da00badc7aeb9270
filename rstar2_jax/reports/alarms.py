"""Signs that training goes wrong, read from the metrics of its steps.

Each rule is one row below: a metric, when it is alarming, and what to do. Means
are over the last five values, so that no single step rings.
"""

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


def starting(steps: Steps) -> list[Alarm]:
  """Alarms that begin with the last step: on now, and not a step before.

  Args:
    steps: lines of metrics.jsonl, in order, from the first step on.
  """
  if not steps:
    return []
  return [_alarm(rule, steps) for rule in RULES
          if _is_on(rule, steps) and not _is_on(rule, steps[:-1])]


def all_of(steps: Steps) -> list[Alarm]:
  """Every alarm of a run, in order of step; see `starting`."""
  return [alarm for end in range(1, len(steps) + 1)
          for alarm in starting(steps[:end])]


def _alarm(rule: Rule, steps: Steps) -> Alarm:
  value = _means(rule.metric, steps)[-1]
  return Alarm(int(steps[-1]["step"] or 0), rule.metric, value,
               f"{rule.metric} = {value:.3g}: {rule.text}")


def _is_on(rule: Rule, steps: Steps) -> bool:
  means = _means(rule.metric, steps)
  if not means:
    return False
  now = means[-1]
  return (now > rule.above or now < rule.below
          or now < rule.collapsed * max(means))


def _means(metric: str, steps: Steps) -> list[float]:
  """Of every five values in a row; steps without one are passed over."""
  values = [v for step in steps if (v := _value(metric, step)) is not None]
  return [sum(values[i:i + _WINDOW]) / _WINDOW
          for i in range(len(values) - _WINDOW + 1)]


def _value(metric: str, step: Mapping[str, float | None]) -> float | None:
  if metric != "rollout/masked_out_share":
    return step.get(metric)
  lost, total = step.get("rollout/masked_out"), step.get("rollout/trajectories")
  return None if lost is None or not total else lost / total
