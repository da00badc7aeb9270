"""Word problems: shops, price systems, choosing people."""

import fractions
import random

from rstar2_jax.data.families import family


def profit(rng: random.Random, level: int) -> family.Instance:
  """Boxes of goods sold at a price, less the cost."""
  hi = (20, 99, 999)[level - 1]
  a, b, c = (rng.randint(3, hi) for _ in range(3))
  d = rng.randint(10, (99, 999, 9999)[level - 1])
  if level == 1:
    return family.Instance(
        params=(a, b, c, d),
        texts=(f"A shop sells {a} boxes of {b} pens at {c} cents a pen and pays"
               f" {d} cents. What is the profit?",
               f"{a} boxes hold {b} pens each. Each pen sells at {c} cents, all"
               f" cost {d} cents. Find the profit."),
        answer=sum(b * c for _ in range(a)) - d,
        program=f"print({a} * {b} * {c} - {d})",
        slips=(f"print({a} * {b} * {c} + {d})",
               f"print(({a} + {b}) * {c} - {d})"))
  e = rng.randint(3, hi)
  return family.Instance(
      params=(a, b, c, e, d),
      texts=(f"A shop sells {a} pens at {b} cents and {c} cups at {e} cents and"
             f" pays {d} cents. What is the profit?",
             f"{a} pens sell at {b} cents each and {c} cups at {e} cents, all"
             f" cost {d} cents. Find the profit."),
      answer=sum(b for _ in range(a)) + sum(e for _ in range(c)) - d,
      program=f"print({a} * {b} + {c} * {e} - {d})",
      slips=(f"print({a} * {b} + {c} * {e} + {d})",
             f"print(({a} + {b}) * ({c} + {e}) - {d})"))


def prices(rng: random.Random, level: int) -> family.Instance:
  """Two linear equations: the price of one of two goods."""
  hi = (9, 20, 99)[level - 1]
  x, y = rng.randint(2, hi), rng.randint(2, (9, 50, 99)[level - 1])
  a, b, c, d = (rng.randint(2, hi) for _ in range(4))
  while a * d == b * c:
    d += 1
  x += x == y
  s, t = a * x + b * y, c * x + d * y
  is_pen = rng.random() < 0.5
  # Elimination with exact fractions, apart from the program's determinant.
  cup = (t - fractions.Fraction(c, a) * s) / (d - fractions.Fraction(c, a) * b)
  pen = (s - b * cup) / a
  pen_program = f"print(({s} * {d} - {t} * {b}) // ({a} * {d} - {b} * {c}))"
  cup_program = f"print(({a} * {t} - {c} * {s}) // ({a} * {d} - {b} * {c}))"
  good = "pen" if is_pen else "cup"
  program = pen_program if is_pen else cup_program
  return family.Instance(
      params=(a, b, s, c, d, t, int(is_pen)),
      texts=(f"{a} pens and {b} cups cost {s} cents, {c} pens and {d} cups cost"
             f" {t} cents. What is the cost of a {good}?",
             f"A shop sells {a} pens and {b} cups at {s} cents, {c} pens and"
             f" {d} cups at {t} cents. Find the cost of a {good}."),
      answer=int(pen if is_pen else cup),
      program=program,
      slips=(cup_program if is_pen else pen_program,
             program.replace(f"- {b} * {c}))", f"+ {b} * {c}))")))


def choices(rng: random.Random, level: int) -> family.Instance:
  """Ways to choose people; from level 2 from two kinds of them."""
  n = rng.randint(*((8, 60), (8, 20), (20, 60))[level - 1])
  k = rng.randint(3, (5, 4, 5)[level - 1])
  if level == 1:
    return family.Instance(
        params=(n, k),
        texts=(f"How many ways are there to choose {k} of {n} people?",
               f"{k} of {n} people are chosen. How many ways are there?"),
        answer=_choose(n, k),
        program=f"import math\nprint(math.comb({n}, {k}))",
        slips=(f"import math\nprint(math.perm({n}, {k}))",
               f"print({n}**{k})"))
  m = rng.randint(*((8, 20), (8, 20), (20, 60))[level - 1])
  j = rng.randint(2, (5, 4, 5)[level - 1])
  left, right = f"math.comb({n}, {k})", f"math.comb({m}, {j})"
  return family.Instance(
      params=(n, k, m, j),
      texts=(f"How many ways are there to choose {k} of {n} men and {j} of {m}"
             " women?",
             f"{k} of {n} men and {j} of {m} women are chosen. How many ways"
             " are there?"),
      answer=_choose(n, k) * _choose(m, j),
      program=f"import math\nprint({left} * {right})",
      slips=(f"import math\nprint({left} + {right})",
             f"import math\nprint(math.comb({n} + {m}, {k} + {j}))"))


def _choose(n: int, k: int) -> int:
  """Binomial coefficient by Pascal's triangle."""
  row = [1]
  for _ in range(n):
    row = [1, *(x + y for x, y in zip(row, row[1:])), 1]
  return row[k]
