"""Charts: where points come to lie, gaps, escaping."""

import math
import re
from xml.etree import ElementTree

import pytest

from rstar2_jax.reports import charts

_SVG = "{http://www.w3.org/2000/svg}"


def _chart(*series, **kwargs):
  return ElementTree.fromstring(charts.line_chart(
      series, "title", "step", "%", **kwargs))


def _paths(root, css):
  return [p.get("d") for p in root.iter(f"{_SVG}path")
          if css in p.get("class").split()]


def _points(d):
  return [tuple(map(float, p)) for p in re.findall(r"([\d.]+),([\d.]+)", d)]


def test_points_lie_between_the_axes_in_proportion():
  root = _chart(charts.Series("a", [0, 5, 10], [0.0, 50.0, 100.0]),
                width=468, height=268)
  # 56 left, 12 right, 30 above, 38 below: a plot of 400 by 200.
  assert _points(_paths(root, "curve")[0]) == [
      (56, 230), (256, 130), (456, 30)]


def test_nan_leaves_a_gap_in_curve_and_band():
  root = _chart(charts.Series(
      "a", [0, 1, 2, 3, 4], [1, 1, math.nan, 2, 2],
      [0, 0, 0, math.nan, 1], [2, 2, 2, 3, 3]))
  assert _paths(root, "curve")[0].count("M") == 2
  band = _paths(root, "band")[0]
  assert band.count("M") == 2 and "nan" not in band


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0], [math.nan], []])
def test_one_value_equal_values_or_none_make_a_chart(values):
  text = charts.line_chart(
      [charts.Series("a", list(range(len(values))), values)], "t", "x", "y")
  ElementTree.fromstring(text)
  assert "nan" not in text.replace("nan\"", "")


def test_names_are_escaped():
  text = charts.line_chart(
      [charts.Series("<script>", [0, 1], [0, 1]),
       charts.Series("b&c", [0, 1], [0, 1])], "<b>", "<i>", "&")
  assert "<script>" not in text and "<b>" not in text and "<i>" not in text
  ElementTree.fromstring(text)


def test_curves_have_the_colors_of_the_legend():
  root = _chart(charts.Series("a", [0, 1], [0, 1]),
                charts.Series("b", [0, 1], [1, 0]))
  lines = [e.get("class") for e in root.iter(f"{_SVG}line")
           if "curve" in e.get("class")]
  assert lines == ["curve c0", "curve c1"]
  assert [p.get("class") for p in root.iter(f"{_SVG}path")
          if "curve" in p.get("class")] == lines
