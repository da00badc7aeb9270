"""Sums over ranges, progressions, recurrences."""

import random

import numpy as np

from rstar2_jax.data.families import family


def powers(rng: random.Random, level: int) -> family.Instance:
  """Sum of squares or cubes of a range; level 2: of its odd numbers."""
  a = rng.randint(*((1, 20), (10, 99), (100, 400))[level - 1])
  b = a + rng.randint(5, (40, 200, 599)[level - 1])
  k = rng.choice((2, 3))
  name = ("squares", "cubes")[k - 2]
  n = np.arange(a, b + 1, dtype=np.int64)
  span = f"range({a}, {b} + 1)"
  if level == 1:
    return family.Instance(
        params=(a, b, k),
        texts=(f"What is the sum of the {name} of the integers from {a} to"
               f" {b}?",
               f"Add the {name} of all integers from {a} to {b}."),
        answer=int((n**k).sum()),
        program=f"print(sum(n**{k} for n in {span}))",
        slips=(f"print(sum(n**{k} for n in range({a}, {b})))",
               f"print(sum(n for n in {span}))"))
  return family.Instance(
      params=(a, b, k),
      texts=(f"What is the sum of the {name} of the odd integers from {a} to"
             f" {b}?",
             f"Add the {name} of all odd integers from {a} to {b}."),
      answer=int((n[n % 2 == 1]**k).sum()),
      program=f"print(sum(n**{k} for n in {span} if n % 2))",
      slips=(f"print(sum(n**{k} for n in {span}))",
             f"print(sum(n for n in {span} if n % 2))"))


def progression(rng: random.Random, level: int) -> family.Instance:
  """Sum of an arithmetic progression."""
  hi = (20, 99, 999)[level - 1]
  a, d = rng.randint(2, hi), rng.randint(2, hi)
  n = rng.randint(5, (20, 99, 999)[level - 1])
  return family.Instance(
      params=(a, d, n),
      texts=(f"The first term is {a} and the next term is always {d} more. What"
             f" is the sum of the first {n} terms?",
             f"A sequence starts with {a} and each step adds {d}. Find the sum"
             f" of the first {n} terms."),
      answer=n * (2 * a + (n - 1) * d) // 2,
      program=f"print(sum({a} + {d} * i for i in range({n})))",
      slips=(f"print({a} + {d} * ({n} - 1))",
             f"print(sum({a} + {d} * i for i in range({n} + 1)))"))


def recurrence(rng: random.Random, level: int) -> family.Instance:
  """A term of a sequence in which two terms make the next."""
  hi = (9, 20, 99)[level - 1]
  a, b = rng.randint(1, hi), rng.randint(1, hi)
  n = rng.randint(6, (15, 25, 40)[level - 1])
  term = np.linalg.matrix_power(np.array([[1, 1], [1, 0]], object), n - 1)
  loop = "  a, b = b, a + b\nprint(a)"
  return family.Instance(
      params=(a, b, n),
      texts=(f"A sequence starts with {a} and {b}. The next term is always the"
             f" sum of the two terms before. What is term {n}?",
             f"The first two terms are {a} and {b}. Each next term adds the two"
             f" terms before. Find term {n}."),
      answer=int(term[1, 0] * b + term[1, 1] * a),
      program=f"a, b = {a}, {b}\nfor i in range({n} - 1):\n{loop}",
      slips=(f"a, b = {a}, {b}\nfor i in range({n}):\n{loop}",
             f"a, b = {a}, {b}\nfor i in range({n} - 2):\n{loop}"))
