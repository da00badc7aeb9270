"""Procedural problems: determinism, and no overlap of the splits."""

import itertools
import subprocess
import sys

import pytest

from rstar2_jax.data import families
from rstar2_jax.data import problems


def test_train_and_heldout_share_no_question():
  """Thousands of draws under several seeds, as seeds must not matter."""
  train = [problems.problem("train", seed, i)
           for seed in (0, 1, 2) for i in range(4000)]
  heldout = [problems.problem("heldout", seed, i)
             for seed in (0, 7) for i in range(3000)]
  assert not ({p.metadata["key"] for p in train}
              & {p.metadata["key"] for p in heldout})
  assert not {p.problem for p in train} & {p.problem for p in heldout}
  assert not {p.id for p in train} & {p.id for p in heldout}
  # Every family is held out in part, and for no family entirely.
  for split in (train, heldout):
    assert {p.source for p in split} == set(families.ALL)


def test_the_split_is_a_property_of_the_question():
  keys = [problems.problem("train", 3, i).metadata["key"] for i in range(500)]
  assert not any(map(problems.is_heldout, keys))
  keys = [problems.problem("heldout", 3, i).metadata["key"] for i in range(500)]
  assert all(map(problems.is_heldout, keys))


def test_an_index_is_enough_to_resume():
  first = list(itertools.islice(problems.stream("train", 5), 30))
  rest = list(itertools.islice(problems.stream("train", 5, start=20), 10))
  assert rest == first[20:]
  backwards = [problems.problem("train", 5, i) for i in reversed(range(30))]
  assert backwards[::-1] == first


def test_other_processes_draw_the_same():
  code = ("from rstar2_jax.data import problems\n"
          "print([problems.problem('train', 1, i).problem for i in range(50)])")
  printed = {
      subprocess.run([sys.executable, "-c", code], capture_output=True,
                     text=True, check=True,
                     env={"PYTHONHASHSEED": s, "PYTHONPATH": "."}).stdout
      for s in ("1", "2")}
  expected = [problems.problem("train", 1, i).problem for i in range(50)]
  assert printed == {f"{expected}\n"}


def test_seeds_differ():
  drawn = [tuple(problems.problem("train", seed, i).problem for i in range(20))
           for seed in range(5)]
  assert len(set(drawn)) == 5


def test_families_and_levels_are_obeyed():
  drawn = [problems.problem("train", 0, i, families=("gcd", "primes"),
                            min_level=2, max_level=3) for i in range(200)]
  assert {p.source for p in drawn} == {"gcd", "primes"}
  assert {p.level for p in drawn} == {2, 3}


def test_answers_are_plain_integers():
  for i in range(500):
    answer = problems.problem("heldout", 0, i).answer
    assert answer == str(int(answer))


@pytest.mark.parametrize("kwargs, message", [
    ({"families": ("gdc",)}, "unknown problem family 'gdc'; known: .*gcd"),
    ({"min_level": 3, "max_level": 2}, "levels 3 to 2"),
    ({"max_level": 4}, "levels 1 to 4"),
])
def test_bad_arguments_are_named(kwargs, message):
  with pytest.raises(ValueError, match=message):
    problems.problem("train", 0, 0, **kwargs)
  with pytest.raises(ValueError, match="split 'test'"):
    problems.problem("test", 0, 0)
