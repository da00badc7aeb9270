"""The end of a stage: held-out evaluation, table, summary.

`history` in summary.json is the chain of evaluations since SFT, one entry per
finished stage, so that the table of any stage tells how far RL has come.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rstar2_jax import assembly
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import workers as workers_lib
from rstar2_jax.learner import train_state

_COLUMNS = (
    ("stage", "stage"),
    ("pass@1", "pass_at_1"),
    ("+-", "pass_at_1_stderr"),
    ("tool errors", "tool_error_ratio"),
    ("tokens", "response_tokens"),
    ("turns", "turns"),
)


def finish(
    folder: run_folder.RunFolder, stage: assembly.Stage,
    workers: workers_lib.Workers, state: train_state.TrainState, *,
    num_steps: int,
) -> dict[str, Any]:
  """Saves the policy, evaluates it, writes the summary and prints the table.

  Args:
    folder: the run's.
    stage: the stage that has ended.
    workers: where the policy is evaluated.
    state: its last state.
    num_steps: updates of the stage.

  Returns:
    The summary.
  """
  stage.save_policy(state)
  workers.push(state.params, policy_version=num_steps)
  evaluation: dict[str, Any] = {}
  prompts = stage.heldout
  if prompts:
    total = len(prompts) * stage.cfg.eval.num_samples
    with progress.counter(total, f"evaluate {stage.cfg.stage}") as counter:
      evaluation, _ = workers.evaluate(
          prompts, on_done=lambda _: counter.advance())
  summary = summarize(
      stage.cfg.stage, evaluation, stage.history, num_steps=num_steps,
      wall_s=folder.wall_s())
  folder.write_summary(summary)
  _announce(folder, summary)
  return summary


def announce_finished(folder: run_folder.RunFolder) -> dict[str, Any]:
  """Prints the table of a stage that has ended before; gives its summary."""
  summary = folder.read_summary()
  steps = summary["steps"]
  progress.say(f"{summary['stage']} is finished already, after {steps} steps;"
               " for another run give a --name")
  _announce(folder, summary)
  return summary


def _announce(
    folder: run_folder.RunFolder, summary: Mapping[str, Any]
) -> None:
  progress.say(f"\n{table(summary)}\n\n{summary['stage']}:"
               f" {summary['steps']} steps in {summary['wall_s']:.0f} s; run"
               f" folder: {folder.path}")


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
  sizes = {row["stage"]: row.get("num_problems") for row in history}
  if len(set(sizes.values())) > 1:
    text += "\nnot of the same problems: " + ", ".join(
        f"{stage} {num}" for stage, num in sizes.items())
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
