"""The entropy analysis as tables and as one page that opens offline."""

from collections.abc import Sequence
import html

from rstar2_jax.evaluation import entropy
from rstar2_jax.reports import charts
from rstar2_jax.reports import page

_OFFSETS = 48
_NUM_TEXTS = 25
SEGMENT_HEAD = ("segment", "tokens", "mean entropy [nats]", "of all tokens",
                "of the most uncertain", "ratio")
TEXT_HEAD = ("token", "times uncertain", "of its times", "mean entropy [nats]")


def segment_rows(tokens: Sequence[entropy.Token]) -> list[list[str]]:
  """Under SEGMENT_HEAD; a ratio over 1 says: uncertain more than most."""
  return [[s.name, str(s.count), f"{s.mean_entropy:.3f}",
           f"{100 * s.of_all:.1f} %", f"{100 * s.of_top:.1f} %",
           f"{s.of_top / s.of_all:.2f}"] for s in entropy.by_segment(tokens)]


def text_rows(
    tokens: Sequence[entropy.Token], segment: entropy.Segment,
    num: int = _NUM_TEXTS,
) -> list[list[str]]:
  """Under TEXT_HEAD; white space is written as in Python."""
  return [[repr(s.name), str(s.num_top), f"{100 * s.num_top / s.count:.0f} %",
           f"{s.mean_entropy:.3f}"]
          for s in entropy.by_text(tokens, segment, num=num)]


def render(tokens: Sequence[entropy.Token], *, title: str, note: str) -> str:
  """The page.

  Args:
    tokens: at least one.
    title: plain text.
    note: plain text, what was read.
  """
  parts = [f"<h1>{html.escape(title)}</h1>",
           f"<p class=muted>{html.escape(note)}</p>",
           page.table(SEGMENT_HEAD, segment_rows(tokens)),
           "<div class=charts>", _offset_chart(tokens), _step_chart(tokens),
           "</div>"]
  for heading, segment in (
      ("Forking tokens: uncertain while reasoning", entropy.Segment.REASONING),
      ("Reflection tokens: uncertain after a tool response",
       entropy.Segment.AFTER_TOOL),
      ("Uncertain within calls", entropy.Segment.CALL)):
    rows = text_rows(tokens, segment)
    if rows:
      parts += [f"<h2>{heading}</h2>", page.table(TEXT_HEAD, rows)]
  return page.document(title, "".join(parts))


def _offset_chart(tokens: Sequence[entropy.Token]) -> str:
  series = []
  for name, after_error in (("call ran", False), ("call failed", True)):
    values = entropy.by_offset(
        tokens, after_error=after_error, length=_OFFSETS)
    if any(v == v for v in values):
      series.append(charts.Series(name, [*range(_OFFSETS)], values))
  if not series:
    return ""
  return charts.line_chart(series, "Entropy after a tool response",
                           "tokens since the response", "nats")


def _step_chart(tokens: Sequence[entropy.Token]) -> str:
  series = []
  for segment in entropy.Segment:
    steps, values = entropy.by_step(tokens, segment)
    if steps:
      series.append(charts.Series(segment, steps, values))
  return charts.line_chart(series, "Entropy by segment", "step", "nats")
