"""Demonstrations: rates, repairs, and outputs as a real Python gives them."""

import subprocess
import sys

import pytest

from rstar2_jax import types
from rstar2_jax.chat import tool_text
from rstar2_jax.data import demonstrations
from rstar2_jax.data import problems

KWARGS = {"max_level": 2, "slip_rate": 0.35, "fault_rate": 0.3}


def _many(num=2000, **kwargs):
  return [demonstrations.demonstration(0, i, **KWARGS | kwargs)
          for i in range(num)]


def test_rates():
  """2000 draws: standard errors are about 0.011."""
  drawn = _many()
  assert abs(sum(len(d.turns) == 2 for d in drawn) / 2000 - 0.3) < 0.045
  # Slips are wrong for nearly all parameters, hence about 65 % right.
  assert abs(sum(d.is_correct for d in drawn) / 2000 - 0.66) < 0.05
  assert all(d.prompt.level <= 2 for d in drawn)


def test_without_slips_and_faults_all_are_right_at_once():
  drawn = _many(300, slip_rate=0.0, fault_rate=0.0, max_level=3)
  assert all(d.is_correct and len(d.turns) == 1 for d in drawn)


def test_with_faults_the_first_call_fails_and_the_second_repairs_it():
  for drawn in _many(300, fault_rate=1.0):
    first, second = drawn.turns
    assert first.result.status.is_policy_error
    assert second.result.status is types.ToolStatus.SUCCESS
    assert first.code in demonstrations.faults(second.code)


def test_the_answer_is_what_the_tool_printed():
  for drawn in _many(300, slip_rate=1.0):
    assert drawn.answer == drawn.turns[-1].result.stdout.strip()


def test_only_training_problems_are_shown():
  keys = {d.prompt.metadata["key"] for d in _many()}
  assert not any(map(problems.is_heldout, keys))


def test_same_arguments_same_demonstration():
  demonstrations.execute.cache_clear()
  first = demonstrations.demonstration(4, 17, **KWARGS)
  demonstrations.execute.cache_clear()
  assert demonstrations.demonstration(4, 17, **KWARGS) == first


@pytest.mark.parametrize("index", range(24))
def test_results_are_those_of_a_real_process(index, tmp_path):
  """The text shown for a program is what a separate Python would give."""
  drawn = demonstrations.demonstration(
      1, index, max_level=3, slip_rate=0.35, fault_rate=1.0)
  for turn in drawn.turns:
    program = tmp_path / "main.py"
    program.write_text(turn.code)
    done = subprocess.run([sys.executable, "-I", str(program)],
                          capture_output=True, text=True, timeout=30)
    real = types.ToolResult(
        status=turn.result.status, stdout=done.stdout,
        exit_code=done.returncode,
        stderr=done.stderr.replace(str(program), "main.py"))
    assert (done.returncode == 0) == (
        turn.result.status is types.ToolStatus.SUCCESS)
    assert (tool_text.render(real, max_chars=256)
            == tool_text.render(turn.result, max_chars=256))
