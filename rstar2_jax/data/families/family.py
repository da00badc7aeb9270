"""What a family of procedural problems makes.

A family turns a random generator and a difficulty level into one `Instance`:
the question in a few paraphrases, its exact answer, the short program that
answers it, and programs that answer a neighboring question. The answer is
computed by other means than the program, so that a test can compare the two.

Levels: 1 small numbers, 2 larger numbers or one more clause, 3 the largest
numbers with every clause. Numbers mostly have one to four digits, so that a
small model can learn to copy them, though not to compute with them.
"""

from collections.abc import Callable
import dataclasses
import random


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
  """One problem with everything known about it."""

  params: tuple[int, ...]  # identity within family and level
  texts: tuple[str, ...]  # paraphrases of one question
  answer: int
  program: str  # prints the answer
  slips: tuple[str, ...]  # run, but answer a neighboring question


@dataclasses.dataclass(frozen=True)
class Family:
  """A named source of instances."""

  name: str
  make: Callable[[random.Random, int], Instance]  # (rng, level)
