"""What an ablation shows: a row per run, means per arm, verdicts, curves."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import html
import io
import math
import os
from typing import Any

from rstar2_jax.evaluation import comparison
from rstar2_jax.reports import charts
from rstar2_jax.reports import page

# Curves of single steps are noisy; the paper's are smoothed too.
_WINDOW = 5
_CURVES = ("tool_error_ratio_correct", "reward", "response_tokens",
           "truncated")


@dataclasses.dataclass(frozen=True)
class Run:
  """One finished run.

  Attributes:
    arm: its name.
    seed: its seed.
    summary: its summary.json.
    steps: its metrics.jsonl.
  """

  arm: str
  seed: int
  summary: Mapping[str, Any]
  steps: Sequence[Mapping[str, float | None]]

  @property
  def measures(self) -> Mapping[str, float]:
    """See `comparison.measures`."""
    return comparison.measures(self.summary, self.steps)


@dataclasses.dataclass(frozen=True)
class Finding:
  """A claim of the paper beside what came out.

  Attributes:
    text: the claim.
    source: where the paper makes it.
    gap: arm - baseline, paired by seed; None: no seed has both.
    verdict: see `comparison.verdict`.
    measure: key of `comparison.MEASURES`.
  """

  text: str
  source: str
  gap: comparison.Interval | None
  verdict: comparison.Verdict
  measure: str


def find(
    claims: Sequence[Any], runs: Sequence[Run]
) -> list[Finding]:
  """The verdict on each claim.

  Args:
    claims: with arm, baseline, measure, expected and source.
    runs: of all arms and seeds.
  """
  found = []
  for claim in claims:
    gap = comparison.difference(
        by_seed(runs, claim.arm, claim.measure),
        by_seed(runs, claim.baseline, claim.measure))
    margin = comparison.NO_GAIN_MARGIN.get(claim.measure, 0.0)
    wanted = claim.expected.replace("no_gain", "no gain in")
    found.append(Finding(
        f"{claim.arm} against {claim.baseline}: {wanted}"
        f" {comparison.MEASURES[claim.measure]}", claim.source, gap,
        comparison.verdict(gap, claim.expected, margin=margin),
        claim.measure))
  return found


def by_seed(
    runs: Sequence[Run], arm: str, measure: str
) -> dict[int, float]:
  """One measure of an arm's runs."""
  return {run.seed: run.measures[measure] for run in runs
          if run.arm == arm and measure in run.measures}


def results_csv(runs: Sequence[Run]) -> str:
  """One line per run, numbers at full precision."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator="\n")
  writer.writerow(["arm", "seed", "steps", *comparison.MEASURES])
  for run in runs:
    writer.writerow([run.arm, run.seed, run.summary["steps"],
                     *(run.measures.get(m, "") for m in comparison.MEASURES)])
  return out.getvalue()


def arm_rows(runs: Sequence[Run]) -> list[list[str]]:
  """Per arm: name, seeds, every measure with its 95 % half width."""
  rows = []
  for arm in dict.fromkeys(run.arm for run in runs):
    row = [arm, str(sum(run.arm == arm for run in runs))]
    for measure in comparison.MEASURES:
      values = list(by_seed(runs, arm, measure).values())
      row.append(_cell(measure, comparison.interval(values))
                 if values else "-")
    rows.append(row)
  return rows


def arm_head() -> list[str]:
  """Heads of `arm_rows`."""
  return ["arm", "seeds", *comparison.MEASURES.values()]


FINDING_HEAD = ("claim", "source", "difference", "95 % interval", "verdict")


def finding_rows(findings: Sequence[Finding]) -> list[list[str]]:
  """Per claim, under FINDING_HEAD."""
  rows = []
  for f in findings:
    if f.gap is None:
      gap, bounds = "-", "-"
    else:
      gap = _number(f.measure, f.gap.mean, sign=True)
      bounds = "-" if math.isnan(f.gap.low) else (
          f"{_number(f.measure, f.gap.low, sign=True)} to"
          f" {_number(f.measure, f.gap.high, sign=True)}")
    rows.append([f.text, f.source, gap, bounds, f.verdict])
  return rows


def write(
    folder: str, title: str, command: str, runs: Sequence[Run],
    findings: Sequence[Finding],
) -> None:
  """Writes results.csv, report.md and report.html.

  Args:
    folder: made if it is missing.
    title: of the report.
    command: that made the runs.
    runs: of all arms and seeds; none is allowed.
    findings: of `find`; none is allowed.
  """
  os.makedirs(folder, exist_ok=True)
  for name, text in (
      ("results.csv", results_csv(runs)),
      ("report.md", markdown(title, command, runs, findings)),
      ("report.html", html_page(title, command, runs, findings))):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
      file.write(text)


def markdown(
    title: str, command: str, runs: Sequence[Run],
    findings: Sequence[Finding],
) -> str:
  """The tables for a text file."""
  parts = [f"# {title}", "", f"Made by `{command}`.", "",
           *_markdown_table(arm_head(), arm_rows(runs)), "",
           "Held-out pass@1 is the final policy's; the rest are means over the"
           " last quarter of", "the training steps. ± is half the 95 % interval"
           " (Student's t over seeds).", ""]
  if findings:
    parts += _markdown_table(FINDING_HEAD, finding_rows(findings))
  return "\n".join(parts) + "\n"


def html_page(
    title: str, command: str, runs: Sequence[Run],
    findings: Sequence[Finding],
) -> str:
  """A page with the tables and the curves of all arms, mean and 95 % band."""
  parts = [f"<h1>{html.escape(title)}</h1>",
           f"<p class=muted><code>{html.escape(command)}</code></p>",
           page.table(arm_head(), arm_rows(runs))]
  if findings:
    parts += ["<h2>Claims</h2>",
              page.table(FINDING_HEAD, finding_rows(findings))]
  parts.append(f"<h2>Training, mean of {_WINDOW} steps, 95 % band over seeds"
               "</h2><div class=charts>")
  parts += [chart for m in _CURVES if (chart := _chart(runs, m))]
  return page.document(title, "".join(parts) + "</div>")


def _chart(runs: Sequence[Run], measure: str) -> str:
  key = comparison.TRAINING_METRICS[measure]
  scale = 100 if measure in comparison.SHARES else 1
  series = []
  for arm in dict.fromkeys(run.arm for run in runs):
    values = [comparison.smooth(
        {int(s["step"] or 0): scale * y for s in run.steps
         if (y := s.get(key)) is not None}, _WINDOW)
              for run in runs if run.arm == arm]
    x, mean, low, high = comparison.band([v for v in values if v])
    if x:
      series.append(charts.Series(arm, x, mean, low, high))
  if not series:
    return ""
  return charts.line_chart(series, comparison.MEASURES[measure], "step",
                           "%" if scale == 100 else "")


def _markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
  return ["| " + " | ".join(cells) + " |"
          for cells in [head, ["---"] * len(head), *rows]]


def _cell(measure: str, value: comparison.Interval) -> str:
  text = _number(measure, value.mean)
  if math.isnan(value.low):
    return text
  return f"{text} ± {_number(measure, value.high - value.mean)}"


def _number(measure: str, value: float, *, sign: bool = False) -> str:
  if measure in comparison.SHARES:
    value *= 100
  return f"{value:{'+' if sign else ''}.1f}"
