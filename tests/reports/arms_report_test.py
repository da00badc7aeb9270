"""Tables of arms against numbers worked out by hand."""

import csv
import html.parser
import io

from experiments import arms
from rstar2_jax.reports import arms_report


def _run(arm, seed, pass_at_1, errors_correct):
  steps = [{"step": s, "rollout/tool_error_ratio_correct": errors_correct,
            "rollout/response_tokens": 50.0, "rollout/reward": 0.5,
            "rollout/truncated": 0.0} for s in range(4)]
  return arms_report.Run(
      arm, seed, {"steps": 4, "pass_at_1_after": pass_at_1}, steps)


_RUNS = [_run("roc_paper", 0, 0.70, 0.02), _run("grpo", 0, 0.60, 0.10),
         _run("roc_paper", 1, 0.50, 0.03), _run("grpo", 1, 0.40, 0.11)]


def _finding(measure, baseline="grpo"):
  findings = arms_report.find(arms.CLAIMS["roc"], _RUNS)
  return next(f for f, c in zip(findings, arms.CLAIMS["roc"], strict=True)
              if (c.measure, c.baseline) == (measure, baseline))


def test_claims_are_judged_by_paired_seeds():
  # Both differences are the same on both seeds, so their interval is a point.
  assert _finding("pass_at_1").verdict == "reproduced"
  assert abs(_finding("pass_at_1").gap.mean - 0.1) < 1e-12
  assert _finding("tool_error_ratio_correct").verdict == "reproduced"
  assert abs(_finding("tool_error_ratio_correct").gap.mean + 0.08) < 1e-12


def test_what_is_equal_or_was_not_run_is_undecided():
  assert _finding("response_tokens").verdict == "undecided"
  missing = _finding("pass_at_1", "grpo_all")
  assert missing.verdict == "undecided" and missing.gap is None


def test_arms_have_mean_and_half_width():
  rows = {row[0]: dict(zip(arms_report.arm_head(), row, strict=True))
          for row in arms_report.arm_rows(_RUNS)}
  # 60 and 127.06 points: t(0.975, 1) = 12.706 times 14.142 over sqrt(2).
  assert rows["roc_paper"]["held-out pass@1"] == "60.0 ± 127.1"
  assert rows["roc_paper"]["response [tokens]"] == "50.0 ± 0.0"
  assert rows["grpo"]["seeds"] == "2"


def test_csv_has_a_line_per_run_at_full_precision():
  rows = list(csv.DictReader(io.StringIO(arms_report.results_csv(_RUNS))))
  assert [(r["arm"], r["seed"]) for r in rows] == [
      (r.arm, str(r.seed)) for r in _RUNS]
  assert float(rows[1]["pass_at_1"]) == 0.6
  assert rows[0]["tool_error_ratio"] == ""


def test_files_of_a_report(tmp_path):
  findings = arms_report.find(arms.CLAIMS["roc"], _RUNS)
  arms_report.write(str(tmp_path / "new"), "A <title>", "python -m x", _RUNS,
                    findings)
  assert {p.name for p in (tmp_path / "new").iterdir()} == {
      "results.csv", "report.md", "report.html"}
  page = (tmp_path / "new" / "report.html").read_text()
  assert "<title>A &lt;title&gt;" in page and "A <title>" not in page
  assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
  assert page.count("<svg") == 4
  html.parser.HTMLParser().feed(page)
  assert "| roc_paper against grpo: higher held-out pass@1 |" in (
      tmp_path / "new" / "report.md").read_text()


def test_no_run_makes_a_report_too(tmp_path):
  arms_report.write(str(tmp_path), "t", "c", [], [])
  assert (tmp_path / "report.html").read_text().count("<svg") == 0
