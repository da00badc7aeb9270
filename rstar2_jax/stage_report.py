"""The end of a stage: held-out evaluation, table, summary.

`history` in summary.json is the chain of evaluations since SFT, one entry per
finished stage, so that the table of any stage tells how far RL has come.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rstar2_jax import progress

_COLUMNS = (
    ("stage", "stage"),
    ("pass@1", "pass_at_1"),
    ("+-", "pass_at_1_stderr"),
    ("tool errors", "tool_error_ratio"),
    ("tokens", "response_tokens"),
    ("turns", "turns"),
)


def summarize(
    stage: str,
    evaluation: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    *,
    num_steps: int,
    wall_s: float,
) -> dict[str, Any]:
  """The content of summary.json.

  Args:
    stage: name of the stage that has ended.
    evaluation: its held-out metrics (`heldout.summarize`), {} if not done.
    history: evaluations of the stages before it, SFT first.
    num_steps: updates of this stage.
    wall_s: seconds of this stage, all its sessions together.

  Returns:
    A JSON object; `*_before` is the SFT policy, `*_after` this stage's.
  """
  history = [*history, {"stage": stage, **evaluation}]
  first, last = history[0], history[-1]
  return {
      "stage": stage,
      "pass_at_1_before": first.get("pass_at_1"),
      "pass_at_1_after": last.get("pass_at_1"),
      "tool_error_ratio_before": first.get("tool_error_ratio"),
      "tool_error_ratio_after": last.get("tool_error_ratio"),
      "steps": num_steps,
      "wall_s": round(wall_s, 1),
      "history": history,
  }


def table(summary: Mapping[str, Any]) -> str:
  """The before/after table as text, one row per stage, then per family."""
  history = [row for row in summary["history"] if "pass_at_1" in row]
  if not history:
    return "no held-out evaluation (--eval.num_problems=0)"
  rows = [[_cell(key, row.get(key)) for _, key in _COLUMNS]
          for row in history]
  text = progress.table([name for name, _ in _COLUMNS], rows)
  if len(history) > 1:
    first, last = history[0]["by_source"], history[-1]["by_source"]
    text += "\n\n" + progress.table(
        ["family", history[0]["stage"], history[-1]["stage"]],
        [[name, _cell("pass_at_1", first.get(name)),
          _cell("pass_at_1", last.get(name))] for name in sorted(last)])
  return text


def _cell(key: str, value: Any) -> str:
  if value is None:
    return "-"
  if key in ("pass_at_1", "pass_at_1_stderr", "tool_error_ratio"):
    return f"{100 * value:.1f} %"
  return value if isinstance(value, str) else f"{value:.1f}"
