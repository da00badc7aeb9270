"""Remainders: powers, mixed arithmetic, congruences, affine iterations."""

import random

from rstar2_jax.data.families import family


def power(rng: random.Random, level: int) -> family.Instance:
  """Remainder of a power; from level 2 of a power plus a number."""
  hi = (99, 99, 999)[level - 1]
  a, b = rng.randint(3, hi), rng.randint(11, hi)
  m = rng.randint(11, (99, 999, 999)[level - 1])
  if level == 1:
    return family.Instance(
        params=(a, b, m),
        texts=(f"What is the remainder when {a}^{b} is divided by {m}?",
               f"Find {a}^{b} modulo {m}.",
               f"{a} to the power {b} is divided by {m}. What is the"
               " remainder?"),
        answer=_power_mod(a, b, m),
        program=f"print(pow({a}, {b}, {m}))",
        slips=(f"print({a} * {b} % {m})", f"print(pow({b}, {a}, {m}))"))
  c = rng.randint(11, hi)
  return family.Instance(
      params=(a, b, c, m),
      texts=(f"What is the remainder when {a}^{b} + {c} is divided by {m}?",
             f"Find {a}^{b} + {c} modulo {m}."),
      answer=(_power_mod(a, b, m) + c) % m,
      program=f"print((pow({a}, {b}, {m}) + {c}) % {m})",
      slips=(f"print(pow({a}, {b} + {c}, {m}))",
             f"print(pow({a}, {b}, {m}))"))


def chain(rng: random.Random, level: int) -> family.Instance:
  """Two to four steps of arithmetic, then a remainder."""
  hi = (99, 999, 9999)[level - 1]
  a, b, c = (rng.randint(11, hi) for _ in range(3))
  m = rng.randint(11, (99, 99, 999)[level - 1])
  if level == 1:
    return family.Instance(
        params=(a, b, c, m),
        texts=(f"Multiply {a} by {b} and add {c}. What is the remainder"
               f" modulo {m}?",
               f"What is the remainder when {a} * {b} + {c} is divided by"
               f" {m}?"),
        answer=(a % m * (b % m) + c % m) % m,
        program=f"print(({a} * {b} + {c}) % {m})",
        slips=(f"print({a} * {b} + {c} % {m})",
               f"print(({a} + {b} + {c}) % {m})"))
  d = rng.randint(11, hi)
  return family.Instance(
      params=(a, b, c, d, m),
      texts=(f"Multiply {a} by {b}, add {c} and subtract {d}. What is the"
             f" remainder modulo {m}?",
             f"What is the remainder when {a} * {b} + {c} - {d} is divided"
             f" by {m}?"),
      answer=((a % m) * (b % m) + (c - d) % m) % m,
      program=f"print(({a} * {b} + {c} - {d}) % {m})",
      slips=(f"print({a} * {b} + {c} - {d} % {m})",
             f"print(({a} * {b} - {c} + {d}) % {m})"))


def congruence(rng: random.Random, level: int) -> family.Instance:
  """Smallest number with two given remainders (coprime moduli)."""
  pool = ((5, 7, 8, 9, 11), (11, 13, 16, 17, 19), (31, 37, 41, 43, 47))
  a, b = rng.sample(pool[level - 1], 2)
  r, s = rng.randint(1, a - 1), rng.randint(1, b - 1)
  # n = r + a t with a t = s - r (mod b).
  answer = r + a * ((s - r) * pow(a, -1, b) % b)
  return family.Instance(
      params=(a, r, b, s),
      texts=(f"What is the smallest positive integer with remainder {r} modulo"
             f" {a} and remainder {s} modulo {b}?",
             f"Find the smallest positive n with n modulo {a} = {r} and n"
             f" modulo {b} = {s}."),
      answer=answer,
      program=(f"n = 1\nwhile n % {a} != {r} or n % {b} != {s}:\n  n += 1\n"
               "print(n)"),
      slips=(f"n = 1\nwhile n % {a} != {r} and n % {b} != {s}:\n  n += 1\n"
             "print(n)",))


def iteration(rng: random.Random, level: int) -> family.Instance:
  """An affine map applied many times."""
  hi = (9, 99, 99)[level - 1]
  a, p, q = (rng.randint(2, hi) for _ in range(3))
  n = rng.randint(5, (19, 99, 999)[level - 1])
  m = rng.randint(50, (99, 999, 999)[level - 1])
  x = a * pow(p, n, m) + q * sum(pow(p, i, m) for i in range(n))
  step = f"  x = ({p} * x + {q}) % {m}\nprint(x)"
  return family.Instance(
      params=(a, p, q, n, m),
      texts=(f"Start with {a}. Do this {n} times: multiply by {p}, add {q},"
             f" take the remainder modulo {m}. What is the result?",
             f"A sequence starts with {a}. The next term is {p} times the term"
             f" before plus {q}, modulo {m}. Find the term after {n} steps."),
      answer=x % m,
      program=f"x = {a}\nfor i in range({n}):\n{step}",
      slips=(f"x = {a}\nfor i in range({n} - 1):\n{step}",
             f"x = {a}\nfor i in range({n}):\n  x = {p} * (x + {q}) % {m}\n"
             "print(x)"))


def _power_mod(a: int, b: int, m: int) -> int:
  """a^b mod m by repeated multiplication."""
  result = 1
  for _ in range(b):
    result = result * a % m
  return result
