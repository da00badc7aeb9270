"""Runs on one page that opens offline: results, curves, settings, warnings."""

from collections.abc import Mapping, Sequence
import dataclasses
import html
import math
from typing import Any

from rstar2_jax.reports import alarms
from rstar2_jax.reports import charts
from rstar2_jax.reports import page

_NAN = float("nan")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One run, finished or not.

  Attributes:
    name: for legends; differs between the runs of a page.
    flags: its whole configuration by flag name.
    preset: the configuration it would have without any flag, likewise.
    steps: lines of its metrics.jsonl.
    history: held-out evaluations, SFT first; empty as long as it runs.
    session: command, versions and seconds of its last session.
  """

  name: str
  flags: Mapping[str, Any]
  preset: Mapping[str, Any]
  steps: alarms.Steps
  history: Sequence[Mapping[str, Any]]
  session: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Chart:
  """Curves that belong together.

  Attributes:
    title: of the chart.
    unit: of the values after scaling.
    curves: metric keys by name in the legend.
    scale: factor from the metric to the unit.
  """

  title: str
  unit: str
  curves: Mapping[str, str]
  scale: float = 1.0


CHARTS = (
    Chart("Reward", "per trajectory", {
        "all": "rollout/reward", "after RoC": "roc/kept_reward"}),
    Chart("Response", "tokens", {"": "rollout/response_tokens"}),
    Chart("Turns and tool calls", "per trajectory", {
        "turns": "rollout/turns", "calls": "rollout/tool_calls"}),
    Chart("Failed calls", "% of calls", {
        "right trajectories": "rollout/tool_error_ratio_correct",
        "wrong ones": "rollout/tool_error_ratio_incorrect"}, 100.0),
    Chart("Groups without signal", "%", {
        "all right": "roc/groups_all_right",
        "all wrong": "roc/groups_all_wrong"}, 100.0),
    Chart("How trajectories end", "%", {
        "answered": "rollout/stop/answered",
        "no tool call": "rollout/stop/no_tool_call",
        "turns used up": "rollout/stop/max_turns",
        "tokens used up": "rollout/stop/max_tokens",
        "lost": "rollout/stop/infra_error"}, 100.0),
    Chart("Entropy", "nats", {"": "learner/entropy"}),
    Chart("Clipped tokens", "%", {"": "learner/clipped"}, 100.0),
    Chart("Logprob gap, learner and sampler", "nats, mean of |difference|",
          {"": "learner/rollout_gap"}),
    Chart("KL", "nats", {
        "new to old policy": "learner/approx_kl",
        "sampler to learner": "learner/rollout_kl",
        "to the first policy": "learner/reference_kl"}),
    Chart("Loss", "", {"": "learner/loss"}),
    Chart("Gradient", "norm", {"": "learner/grad_norm"}),
    Chart("Step time", "s", {
        "rollout": "time/rollout", "update": "time/update",
        "sync": "time/sync", "select": "time/select", "log": "time/log"}),
    Chart("Time of a trajectory", "s", {
        "sampling": "rollout/sample_s", "tool": "rollout/tool_s",
        "verification": "rollout/grade_s"}),
    Chart("Sandbox", "ms per call", {
        "run": "rollout/tool_wall_ms", "wait": "rollout/tool_queue_ms"}),
    Chart("KV cache reserved", "%, peak of the step",
          {"": "rollout/kv_use"}, 100.0),
)


def render(runs: Sequence[Run]) -> str:
  """The page.

  Args:
    runs: at least one; several share each chart.

  Returns:
    HTML with everything inside; it loads nothing.
  """
  title = ", ".join(run.name for run in runs)
  return page.document(title, "".join([
      f"<h1>{html.escape(title)}</h1>",
      _section("Warnings", _warnings(runs)),
      _section("Held-out results", _results(runs)),
      _section("Training", _charts(runs)),
      _section("Settings that differ from the preset", _settings(runs)),
      _section("Environment", _environment(runs))]))


def _section(title: str, body: str) -> str:
  return f"<h2>{html.escape(title)}</h2>{body}" if body else ""


def _warnings(runs: Sequence[Run]) -> str:
  rows = [[run.name, str(alarm.step), alarm.text]
          for run in runs for alarm in alarms.all_of(run.steps)]
  if not rows:
    return "<p class=good>none</p>"
  return page.table(["run", "step", "what"], rows)


def _results(runs: Sequence[Run]) -> str:
  rows = [[run.name, str(entry["stage"]), _percent(entry.get("pass_at_1")),
           _percent(entry.get("pass_at_1_stderr")),
           _percent(entry.get("tool_error_ratio")),
           _number(entry.get("response_tokens")), _number(entry.get("turns"))]
          for run in runs for entry in run.history if "pass_at_1" in entry]
  if not rows:
    return ""
  tables = page.table(["run", "stage", "pass@1", "±", "failed calls", "tokens",
                       "turns"], rows)
  chart = _chart_of([
      charts.Series(run.name, [*range(len(run.history))],
                    [100 * _float(e.get("pass_at_1")) for e in run.history])
      for run in runs if len(run.history) > 1],
      "pass@1", "stages since SFT", "%")
  return tables + chart + _families(runs)


def _families(runs: Sequence[Run]) -> str:
  """First and last evaluation of each family."""
  columns = [(f"{run.name}: {entry['stage']}", entry["by_source"])
             for run in runs
             for entry in [*run.history[:1], *run.history[1:][-1:]]
             if "by_source" in entry]
  names = sorted({name for _, values in columns for name in values})
  if not names:
    return ""
  return page.table(
      ["family", *(head for head, _ in columns)],
      [[name, *(_percent(values.get(name)) for _, values in columns)]
       for name in names])


def _charts(runs: Sequence[Run]) -> str:
  drawn = [_chart_of(_curves(chart, runs), chart.title, "step", chart.unit)
           for chart in CHARTS]
  return f"<div class=charts>{''.join(drawn)}</div>" if any(drawn) else ""


def _curves(chart: Chart, runs: Sequence[Run]) -> list[charts.Series]:
  found = []
  for run in runs:
    for name, key in chart.curves.items():
      x = [_float(step["step"]) for step in run.steps]
      y = [chart.scale * _float(step.get(key)) for step in run.steps]
      parts = [run.name] if len(runs) > 1 or not name else []
      if any(map(math.isfinite, y)):
        found.append(charts.Series(": ".join([*parts, name]).rstrip(": "),
                                   x, y))
  return found


def _chart_of(
    series: Sequence[charts.Series], title: str, x_label: str, y_label: str
) -> str:
  if not series:
    return ""
  return charts.line_chart(series, title, x_label, y_label)


def _settings(runs: Sequence[Run]) -> str:
  names = dict.fromkeys(
      name for run in runs for name in run.flags
      if name in run.preset and run.flags[name] != run.preset[name])
  if not names:
    return "<p>none</p>"
  return page.table(
      ["flag", *(run.name for run in runs), "preset"],
      [[f"--{name}", *(_flag(run.flags.get(name)) for run in runs),
        ", ".join(dict.fromkeys(_flag(run.preset.get(name)) for run in runs))]
       for name in names])


def _environment(runs: Sequence[Run]) -> str:
  rows = []
  for run in runs:
    versions = " ".join(f"{name} {version}" for name, version
                        in run.session.get("versions", {}).items())
    rows.append([run.name, " ".join(run.session.get("command", ())), versions,
                 f"{_float(run.session.get('wall_s')):.0f} s"])
  return page.table(["run", "command", "versions", "wall time"], rows)


def _flag(value: Any) -> str:
  if isinstance(value, list | tuple):
    return ",".join(map(str, value))
  return str(value)


def _float(value: Any) -> float:
  return _NAN if value is None else float(value)


def _percent(value: float | None) -> str:
  return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
  return "-" if value is None else f"{value:.1f}"
