"""The lenient grader: its own part by hand, the whole on shared cases."""

import asyncio
import contextlib
import json
import os
import pathlib

from hypothesis import given
from hypothesis import strategies
import pytest

from rstar2_jax.rewards import equality
from rstar2_jax.rollout import sandbox_process
from rstar2_jax.rollout import tool_client

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DATA = pathlib.Path(
    os.environ.get("RSTAR2_DATA") or _ROOT.parent / "shared" / "data")


@pytest.mark.parametrize("answer,gold,verdict", [
    ("seat", "east", False), ("East", "east", True),
    (r"\text{ no  solution }", r"\text{No solution}", True),
    ("odd", r"\text{even}", False), ("C", r"\text{(C)}", True),
    ("D", r"\text{(C)}", False), ("52_8", "52_{8}", True),
    ("4343_7", "4343_6", False), ("1,024", "1024", True), ("17", "18", False),
    ("x" * 2001, "x", False), ("__import__('os')", "x^2", False),
    (r"\frac{1}{2}", "0.5", None), ("ab", "ba", None), ("52", "52_8", None),
])
def test_what_needs_no_mathematics(answer, gold, verdict):
  assert equality.decide(answer, gold) is verdict


@pytest.mark.parametrize("text,form", [
    (r"0.\overline{3}", r"\frac{3}{9}"),
    (r"1.2\overline{34}", r"\frac{1222}{990}"),  # (1234 - 12) / 990
    (r".\overline{9}", r"\frac{9}{9}"),
    (r"\frac{3\pm\sqrt{21}}{2}",
     r"\frac{3+\sqrt{21}}{2}, \frac{3-\sqrt{21}}{2}"),
    (r"\$18", "18"), ("3 \\pm 2", "3 \\pm 2"), ("x+1", "x+1"),
])
def test_rewritten_forms(text, form):
  assert equality.rewrite(text) == form


@given(strategies.text(max_size=80), strategies.text(max_size=80))
def test_any_text_is_answered(answer, gold):
  assert equality.decide(answer, gold) in (True, False, None)
  assert isinstance(equality.rewrite(answer), str)


@given(strategies.integers(0, 10**6), strategies.integers(1, 10**6))
def test_unequal_integers_are_never_equal(gold, difference):
  assert equality.decide(str(gold + difference), str(gold)) is False


@contextlib.contextmanager
def _grader():
  """Grades through a sandbox runner that is started for it."""
  with contextlib.closing(sandbox_process.SandboxProcess(
      isolation="namespaces")) as process:
    def grade_all(pairs):
      async def run():
        client = tool_client.SandboxClient(
            [process.url], timeout_s=5, cpu_timeout_s=5, memory_mb=512,
            deadline_s=60)
        try:
          return [await equality.grade(r, gold, client.verify)
                  for r, gold in pairs]
        finally:
          await client.close()
      return asyncio.run(run())
    yield grade_all


def _boxed(text):
  return rf"<answer>\boxed{{{text}}}</answer>"


def test_equal_forms_are_accepted_and_unequal_ones_are_not():
  pairs = {
      (r"0.5", r"\frac{1}{2}"): True, (r"0.\overline{3}", r"\frac13"): True,
      (r"2\sqrt{2}", r"\sqrt{8}"): True, (r"0.333", r"\frac13"): False,
      (r"[0,1]", "[0,1)"): False, (r"(2,1)", "(1,2)"): False,
      (r"\{2,1\}", r"\{1,2\}"): True, (r"q-p", "p-q"): False,
      (r"10^{10^{10^{10}}}", r"\frac12"): False}
  with _grader() as grade_all:
    found = grade_all([(_boxed(a), gold) for a, gold in pairs])
  assert dict(zip(pairs, found, strict=True)) == pairs


@pytest.mark.slow
def test_shared_lenient_cases():
  path = _DATA / "grading" / "cases.jsonl"
  if not path.is_file():
    pytest.skip("the shared grading cases are not here; set RSTAR2_DATA")
  cases = [c for c in map(json.loads, path.read_text().splitlines())
           if c["mode"] == "lenient"]
  with _grader() as grade_all:
    found = grade_all([(c["response"], c["gold"]) for c in cases])
  wrong = [c["id"] for c, f in zip(cases, found, strict=True)
           if bool(f) != c["correct"]]
  accepted = [c["id"] for c, f in zip(cases, found, strict=True)
              if f and not c["correct"]]
  assert not accepted
  assert len(wrong) <= 0.005 * len(cases), wrong
