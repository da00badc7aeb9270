"""Trajectories of a run as one page that opens offline.

A small index of all trajectories is plain JSON; what is long about each
(tokens, tool results) is deflated by itself and unpacked by the browser when
the trajectory is looked at. So thousands open at once, and whatever a policy
or a program printed reaches the page as base64, never as markup.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
import html
import json
import pathlib
from typing import Any
import zlib

from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.reports import page

_HERE = pathlib.Path(__file__).parent
# Sampler and learner are often closer than 1e-4 nats.
_DIGITS = 6

_Fate = trajectory_records.Fate
_FATES = {
    _Fate.TRAINED: "in the loss",
    _Fate.NO_SIGNAL: "all rewards of its group are equal",
    _Fate.NOT_DRAWN: "left out by Resample-on-Correct",
    _Fate.TOO_FEW: "its group lost more trajectories than RoC can spare",
    _Fate.NO_SIGNAL_LEFT: "what RoC kept of its group has equal rewards",
    _Fate.OVERLONG: "cut off: in the baseline, not in the loss",
    _Fate.LOST: "spoiled by our infrastructure",
}


def render(
    records: Iterable[trajectory_records.Record], *, title: str
) -> str:
  """The page.

  Args:
    records: in the order of the list; groups need not be together.
    title: plain text, e.g. the run's folder.

  Returns:
    HTML with everything inside; it loads nothing.
  """
  index, details = [], []
  for record in records:
    index.append(summary(record))
    details.append(_pack(_detail(record)))
  data = _script_json({
      "rows": index, "fates": _FATES,
      "errors": [s for s in types.ToolStatus if s.is_policy_error]})
  body = "".join([
      f"<style>{_asset('css')}</style>",
      _asset("html").replace("{{title}}", html.escape(title)),
      f'<script type="application/json" id="index">{data}</script>',
      '<script type="text/plain" id="details">', "\n".join(details),
      "</script>"])
  return page.document(title, body, script=_asset("js"))


def summary(record: trajectory_records.Record) -> dict[str, Any]:
  """What the list and the filters know of a trajectory."""
  t = record.trajectory
  versions = sorted({span.policy_version for span in t.spans
                     if span.policy_version is not None})
  return {
      "step": record.step, "prompt": t.prompt.id, "sample": t.sample,
      "source": t.prompt.source, "level": t.prompt.level,
      "problem": t.prompt.problem[:200], "reward": t.reward,
      "stop": t.stop_reason, "turns": t.num_turns,
      "tokens": t.num_sampled_tokens,
      "statuses": [result.status for result in t.tool_results],
      "fate": record.fate, "advantage": record.advantage,
      "errorRatio": round(record.error_ratio, _DIGITS),
      "answerFormat": round(record.answer_format, _DIGITS),
      "versions": versions}


def _detail(record: trajectory_records.Record) -> dict[str, Any]:
  """What the page shows of the trajectory that is looked at."""
  t = record.trajectory
  return {
      "problem": t.prompt.problem, "answer": t.prompt.answer,
      "spans": _spans(record), "timings": dict(t.timings),
      "calls": [_call(call) for call in t.tool_calls],
      "results": [_result(result) for result in t.tool_results]}


def _spans(record: trajectory_records.Record) -> list[dict[str, Any]]:
  spans, begin = [], 0
  for span, pieces in zip(record.trajectory.spans, record.pieces, strict=True):
    item: dict[str, Any] = {
        "source": span.source, "pieces": pieces, "ids": span.token_ids}
    if span.source is types.Source.POLICY:
      end = begin + len(span.token_ids)
      item |= {"version": span.policy_version,
               "logprobs": _rounded(span.logprobs or ()),
               "learner": _rounded(record.learner_logprobs[begin:end]),
               "entropy": _rounded(record.entropy[begin:end])}
      begin = end
    spans.append(item)
  return spans


def _call(call: types.ToolCall) -> dict[str, Any]:
  code = call.arguments.get("code") if call.status is None else None
  return {"turn": call.turn, "name": call.name,
          "code": code if isinstance(code, str) else call.raw}


def _result(result: types.ToolResult) -> dict[str, Any]:
  return {
      "status": result.status, "wallMs": round(result.wall_ms, 1),
      "queueMs": round(result.queue_ms, 1), "truncated": result.truncated,
      "parts": [[name, text] for name, text in (
          ("stdout", result.stdout), ("value", result.value),
          ("stderr", result.stderr), ("message", result.message)) if text]}


def _pack(value: Mapping[str, Any]) -> str:
  packer = zlib.compressobj(level=6, wbits=-zlib.MAX_WBITS)
  # A lone surrogate, which a program may print, is no UTF-8.
  text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
  return base64.b64encode(
      packer.compress(text.encode()) + packer.flush()).decode()


def _script_json(value: Any) -> str:
  """JSON that may stand inside a script element."""
  return json.dumps(value, separators=(",", ":")).replace("<", r"\u003c")


def _rounded(values: Sequence[float]) -> list[float]:
  return [round(x, _DIGITS) for x in values]


def _asset(suffix: str) -> str:
  return (_HERE / f"trajectory_viewer.{suffix}").read_text(encoding="utf-8")
