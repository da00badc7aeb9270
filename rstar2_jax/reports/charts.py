"""Line charts as SVG text: curves with a band, no library, no network.

Colors come from CSS variables (`page.STYLE`), so that a page's dark mode
reaches into its charts.
"""

from collections.abc import Sequence
import dataclasses
import html
import math

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 30, 38
_LINE_HEIGHT = 16
NUM_COLORS = 8


@dataclasses.dataclass(frozen=True)
class Series:
  """One curve.

  Attributes:
    name: in the legend.
    x: positions, ascending.
    mean: values, as many; NaN leaves a gap.
    low: lower edge of a band around the curve, or None.
    high: its upper edge.
  """

  name: str
  x: Sequence[float]
  mean: Sequence[float]
  low: Sequence[float] | None = None
  high: Sequence[float] | None = None


def line_chart(
    series: Sequence[Series], title: str, x_label: str, y_label: str,
    width: int = 460, height: int = 280,
) -> str:
  """An SVG element.

  Args:
    series: at least one; curve i has color i modulo NUM_COLORS.
    title: above the chart.
    x_label: below the axis, with its unit.
    y_label: beside the title, with its unit.
    width: in pixels.
    height: of the plot with its axes; the legend is added below [pixels].
  """
  x_low, x_high = _range(v for s in series for v in s.x)
  y_ticks = _ticks(*_range(v for s in series for v in _all_y(s)))
  y_low, y_high = y_ticks[0], y_ticks[-1]
  plot_w, plot_h = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

  def at(x: float, y: float) -> tuple[float, float]:
    return (_LEFT + plot_w * (x - x_low) / (x_high - x_low),
            _TOP + plot_h * (y_high - y) / (y_high - y_low))

  legend, legend_height = _legend(series, width, height)
  parts = [
      f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img"'
      f' viewBox="0 0 {width} {height + legend_height}" width="{width}"'
      f' height="{height + legend_height}" aria-label="{_text(title)}">',
      f'<text class="title" x="{_LEFT}" y="16">{_text(title)}'
      f'<tspan class="muted" dx="6">{_text(y_label)}</tspan></text>',
  ]
  for y in y_ticks:
    _, py = at(x_low, y)
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}"'
                 f' y1="{py:.1f}" y2="{py:.1f}"/><text class="tick"'
                 f' text-anchor="end" x="{_LEFT - 6}" y="{py + 4:.1f}">'
                 f'{number(y)}</text>')
  for x in _ticks(x_low, x_high):
    if x_low <= x <= x_high:
      px, _ = at(x, y_low)
      parts.append(f'<text class="tick" text-anchor="middle" x="{px:.1f}"'
                   f' y="{height - _BOTTOM + 16}">{number(x)}</text>')
  parts.append(f'<text class="tick" text-anchor="middle"'
               f' x="{_LEFT + plot_w / 2:.1f}" y="{height - 6}">'
               f'{_text(x_label)}</text>')
  # All bands first, so that none covers a curve.
  parts += [_band(s, i, at) for i, s in enumerate(series)]
  parts += [_curve(s, i, at) for i, s in enumerate(series)]
  return "".join([*parts, legend, "</svg>"])


def number(value: float) -> str:
  """A number in few characters: 0.25, 1200, 3e-06; "-" for NaN."""
  if math.isnan(value):
    return "-"
  return f"{value:.4g}"


def _band(series: Series, index: int, at) -> str:
  if series.low is None or series.high is None:
    return ""
  paths = []
  for run in _runs([*zip(series.x, series.low, series.high)]):
    edge = [at(x, high) for x, _, high in run]
    edge += [at(x, low) for x, low, _ in reversed(run)]
    paths.append("M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in edge) + "Z")
  return f'<path class="band c{index % NUM_COLORS}" d="{"".join(paths)}"/>'


def _curve(series: Series, index: int, at) -> str:
  paths = ["M" + "L".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in run)
           for run in _runs([*zip(series.x, series.mean)])]
  return f'<path class="curve c{index % NUM_COLORS}" d="{"".join(paths)}"/>'


def _runs(points: Sequence[tuple[float, ...]]) -> list[list]:
  """Stretches without NaN."""
  runs: list[list] = [[]]
  for point in points:
    if all(map(math.isfinite, point)):
      runs[-1].append(point)
    elif runs[-1]:
      runs.append([])
  return [run for run in runs if run]


def _legend(
    series: Sequence[Series], width: int, top: int
) -> tuple[str, int]:
  if len(series) < 2:
    return "", 0
  parts, x, y = [], _LEFT, top + 6
  for i, s in enumerate(series):
    needed = 24 + 7 * len(s.name)
    if x > _LEFT and x + needed > width:
      x, y = _LEFT, y + _LINE_HEIGHT
    parts.append(f'<line class="curve c{i % NUM_COLORS}" x1="{x}"'
                 f' x2="{x + 14}" y1="{y}" y2="{y}"/><text class="tick"'
                 f' x="{x + 18}" y="{y + 4}">{_text(s.name)}</text>')
    x += needed
  return "".join(parts), y - top + _LINE_HEIGHT


def _all_y(series: Series):
  yield from series.mean
  yield from series.low or ()
  yield from series.high or ()


def _range(values) -> tuple[float, float]:
  """Least and greatest finite value, apart even if they are equal."""
  finite = [v for v in values if math.isfinite(v)] or [0.0]
  low, high = min(finite), max(finite)
  return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
  """Round numbers from at most `low` to at least `high`, about five."""
  raw = (high - low) / 4
  power = 10 ** math.floor(math.log10(raw))
  step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  return [i * step for i in range(first, last + 1)]


def _text(text: str) -> str:
  return html.escape(text)
