"""Ablation arms: each one row of flags, tied to a figure of the paper.

An arm says what differs from the card it runs on (`experiments.stage1`, since
Fig. 9 is a run from SFT). Sizes follow that card: where the paper has G = 16
of 32, an arm takes roc.keep of rollout.group_size.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, Literal

from rstar2_jax import config
from rstar2_jax import errors

Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
  """One variant of the algorithm.

  Attributes:
    name: part of run names.
    source: where the paper shows or discusses it; "ours" if it does not.
    question: what the arm tells.
    changes: values by flag name, for a card's configuration.
  """

  name: str
  source: str
  question: str
  changes: Callable[[config.Config], Changes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
  """What the paper says of one arm beside another.

  Attributes:
    arm: name of the arm it is said of.
    baseline: name of the arm it is compared with.
    measure: a name of `comparison.MEASURES`.
    expected: whether the arm's measure is higher or lower, or shows no gain.
    source: where the paper says so; "ours" where it leaves the question open.
  """

  arm: str
  baseline: str
  measure: str
  expected: Literal["higher", "lower", "no_gain"]
  source: str


def _always(**values: Any) -> Callable[[config.Config], Changes]:
  """Changes that are the same for every card; `__` stands for the dot."""
  return lambda cfg: {k.replace("__", "."): v for k, v in values.items()}


_ROC_PAPER = Arm(
    name="roc_paper", source="Fig. 4, 9", changes=_always(),
    question="GRPO-RoC as the paper defines it")

_ROC = (
    _ROC_PAPER,
    Arm(name="grpo", source="Fig. 4, 9",
        question="GRPO with as many trajectories as RoC keeps",
        changes=lambda cfg: {"roc.enabled": False,
                             "rollout.group_size": cfg.roc.keep}),
    Arm(name="grpo_all", source="ours",
        question="RoC's rollouts, all of them in the loss",
        changes=_always(roc__enabled=False)),
    Arm(name="grpo_random", source="ours",
        question="RoC's rollouts, as many kept, without its choice",
        changes=_always(roc__mode="random")),
    Arm(name="roc_release", source="released code",
        question="RoC with the released code's quotas",
        changes=_always(roc__mode="release")),
    Arm(name="roc_errors_only", source="Eq. 4",
        question="only erroneous calls in the penalty",
        changes=_always(roc__use_answer_format=False)),
    Arm(name="roc_format_only", source="Eq. 5",
        question="only the answer's format in the penalty",
        changes=_always(roc__use_error_ratio=False)),
)

_FAILED_ATTEMPTS = (
    _ROC_PAPER,
    Arm(name="error_penalty", source="section 2.2.2",
        question="erroneous calls taken off the reward",
        changes=_always(reward__tool_error_penalty=0.5)),
    Arm(name="filter_overlong", source="section 5.3",
        question="truncated trajectories without loss",
        changes=_always(loss__filter_overlong=True)),
    Arm(name="repetition", source="section 5.3",
        question="repeated n-grams in RoC's penalty",
        changes=_always(roc__use_repetition=True)),
)

_LOSS = (
    _ROC_PAPER,
    Arm(name="clip_symmetric", source="section 2.2.1",
        question="no clip-higher",
        changes=lambda cfg: {"loss.clip_high": cfg.loss.clip_low}),
    Arm(name="kl", source="section 2.2.1",
        question="a KL term to the starting policy",
        changes=_always(loss__kl_coef=0.01)),
    Arm(name="no_std", source="ours",
        question="advantages not divided by the deviation (Dr.GRPO)",
        changes=_always(loss__normalize_by_std=False,
                        loss__normalization="dr_grpo")),
)

SUITES: Mapping[str, Sequence[Arm]] = {
    "roc": _ROC, "failed_attempts": _FAILED_ATTEMPTS, "loss": _LOSS}


_Expected = Literal["higher", "lower", "no_gain"]


def _roc_beats(baseline: str, source: str) -> tuple[Claim, ...]:
  expectations: tuple[tuple[str, _Expected], ...] = (
      ("tool_error_ratio_correct", "lower"), ("pass_at_1", "higher"),
      ("response_tokens", "lower"))
  return tuple(
      Claim(arm="roc_paper", baseline=baseline, measure=measure,
            expected=expected, source=source)
      for measure, expected in expectations)


CLAIMS: Mapping[str, Sequence[Claim]] = {
    "roc": (
        *_roc_beats("grpo", "Fig. 4, 9"),
        *_roc_beats("grpo_all", "ours"),
        *_roc_beats("grpo_random", "ours"),
    ),
    "failed_attempts": (
        Claim(arm="filter_overlong", baseline="roc_paper",
              measure="pass_at_1", expected="no_gain", source="section 5.3"),
        Claim(arm="filter_overlong", baseline="roc_paper",
              measure="truncated", expected="higher", source="section 5.3"),
        Claim(arm="repetition", baseline="roc_paper", measure="pass_at_1",
              expected="no_gain", source="section 5.3"),
        Claim(arm="error_penalty", baseline="roc_paper", measure="pass_at_1",
              expected="no_gain", source="section 2.2.2 (argued, not run)"),
    ),
    "loss": (
        Claim(arm="roc_paper", baseline="clip_symmetric",
              measure="pass_at_1", expected="higher", source="section 2.2.1"),
        Claim(arm="kl", baseline="roc_paper", measure="pass_at_1",
              expected="no_gain", source="section 2.2.1"),
    ),
}


def select(suite: str, names: Sequence[str]) -> Sequence[Arm]:
  """Arms of a suite.

  Args:
    suite: a key of SUITES.
    names: of the arms wanted; empty: all.

  Raises:
    errors.UserError: an unknown suite or arm; the message lists the known.
  """
  if suite not in SUITES:
    raise errors.UserError(
        f"--suite={suite}: must be one of {', '.join(SUITES)}")
  known = {arm.name: arm for arm in SUITES[suite]}
  for name in names:
    if name not in known:
      raise errors.UserError(
          f"--arms={name}: suite {suite} has {', '.join(known)}")
  return [known[name] for name in dict.fromkeys(names or known)]
