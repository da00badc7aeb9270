"""Every family: right programs, wrong slips, failing faults."""

import json
import random
import re
import subprocess
import sys

import pytest

from rstar2_jax import types
from rstar2_jax.data import demonstrations
from rstar2_jax.data import families

LEVELS = (1, 2, 3)
NUM_DRAWS = 40

# Runs each program in a fresh namespace; prints what each printed, as JSON.
_RUNNER = """
import contextlib, io, json, sys
printed = []
for program in json.load(sys.stdin):
  out = io.StringIO()
  with contextlib.redirect_stdout(out):
    exec(compile(program, "main.py", "exec"), {})
  printed.append(out.getvalue())
print(json.dumps(printed))
"""


def _run(programs):
  """What a separate Python prints for each program; fails if one raises."""
  done = subprocess.run(
      [sys.executable, "-I", "-c", _RUNNER], input=json.dumps(programs),
      capture_output=True, text=True, check=True, timeout=60)
  return json.loads(done.stdout)


def _instances(name, level, num=NUM_DRAWS):
  return [families.ALL[name].make(random.Random(f"{name} {level} {i}"), level)
          for i in range(num)]


def test_enough_families():
  assert len(families.ALL) >= 12


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", families.ALL)
def test_program_prints_the_answer_and_slips_do_not(name, level):
  instances = _instances(name, level)
  printed = _run([i.program for i in instances])
  assert printed == [f"{i.answer}\n" for i in instances]

  slips = [(i.answer, slip) for i in instances for slip in i.slips]
  assert all(1 <= len(i.slips) <= 3 for i in instances)
  printed = _run([slip for _, slip in slips])
  num_wrong = sum(text != f"{answer}\n" for (answer, _), text
                  in zip(slips, printed, strict=True))
  assert num_wrong >= 0.9 * len(slips)
  # A slip's output is shown and copied: it must not be a wall of digits.
  assert max(map(len, printed)) <= 20


@pytest.mark.parametrize("name", families.ALL)
def test_faults_fail_with_a_typed_error(name):
  expected = {types.ToolStatus.SYNTAX_ERROR, types.ToolStatus.RUNTIME_ERROR}
  for level in LEVELS:
    for instance in _instances(name, level, num=5):
      for code in (instance.program, *instance.slips):
        faults = demonstrations.faults(code)
        results = [demonstrations.execute(fault) for fault in faults]
        assert {r.status for r in results} == expected
        assert all(r.stderr and not r.stdout for r in results)
        assert ("import math" in code) == (len(faults) == 3)


@pytest.mark.parametrize("name", families.ALL)
def test_a_program_can_be_copied_from_its_problem(name):
  """Short texts, each with all numbers of the program but small constants."""
  for level in LEVELS:
    for instance in _instances(name, level):
      assert 2 <= len(instance.texts) <= 3
      assert len(set(instance.texts)) == len(instance.texts)
      needed = {n for n in re.findall(r"\d+", instance.program) if int(n) > 3}
      for text in instance.texts:
        assert len(text) < 170
        assert needed <= set(re.findall(r"\d+", text))


def test_levels_grow():
  """Numbers of level 3 are longer than those of level 1."""
  for name in families.ALL:
    sizes = [sum(c.isdigit() for i in _instances(name, level)
                 for c in i.texts[0]) for level in LEVELS]
    assert sizes[0] < sizes[2], name
