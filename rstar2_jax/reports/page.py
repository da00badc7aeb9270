"""The frame of a page that opens offline, in light and dark."""

from collections.abc import Sequence
import html

STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c1e21;
  --muted: #6b7280; --line: #e2e5ea; --c0: #2563eb; --c1: #dc2626;
  --c2: #d97706; --c3: #059669; --c4: #7c3aed; --c5: #db2777; --c6: #0891b2;
  --c7: #65a30d; --good: #15803d; --bad: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --back: #15171a; --ink: #e6e8eb;
  --muted: #9aa3ae; --line: #2d3238; --c0: #60a5fa; --c1: #f87171;
  --c2: #fbbf24; --c3: #34d399; --c4: #a78bfa; --c5: #f472b6; --c6: #22d3ee;
  --c7: #a3e635; --good: #4ade80; --bad: #f87171; } }
body { background: var(--back); color: var(--ink); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.muted { color: var(--muted); fill: var(--muted); font-weight: normal; }
.good { color: var(--good); } .bad { color: var(--bad); }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
.chart { max-width: 100%; height: auto; }
.chart text { fill: var(--ink); font: 11px system-ui, sans-serif; }
.chart .title { font-size: 13px; font-weight: 600; }
.chart .tick { fill: var(--muted); } .chart .grid { stroke: var(--line); }
.chart .curve { fill: none; stroke-width: 1.8; } .chart .band { opacity: .16; }
""" + "".join(
    f".chart .curve.c{i} {{ stroke: var(--c{i}); }}"
    f" .chart .band.c{i} {{ fill: var(--c{i}); }}\n" for i in range(8))


def document(title: str, body: str, *, script: str = "") -> str:
  """A whole HTML page.

  Args:
    title: plain text.
    body: HTML; what comes from outside must be escaped already.
    script: JavaScript, placed last; may not hold "</".
  """
  tail = f"<script>{script}</script>" if script else ""
  return ("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta name=\"viewport\" content=\"width=device-width\">"
          f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
          f"<body>{body}{tail}</body></html>\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table of plain text; every cell is escaped."""
  def row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(
        f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
  return ("<table><thead>" + row("th", head) + "</thead><tbody>"
          + "".join(row("td", r) for r in rows) + "</tbody></table>")
