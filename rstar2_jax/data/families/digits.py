"""Digits of large numbers and numbers in other bases."""

import random

from rstar2_jax.data.families import family


def digit_sum(rng: random.Random, level: int) -> family.Instance:
  """Sum of the digits of a power; from level 2 of a power plus a number."""
  a = rng.randint(3, (19, 99, 999)[level - 1])
  b = rng.randint(11, (30, 60, 99)[level - 1])
  if level == 1:
    return family.Instance(
        params=(a, b),
        texts=(f"What is the sum of the digits of {a}^{b}?",
               f"Add all digits of {a}^{b}."),
        answer=_digit_sum(a**b, 10),
        program=f"print(sum(map(int, str({a}**{b}))))",
        slips=(f"print(len(str({a}**{b})))",
               f"print(sum(map(int, str({a} * {b}))))"))
  c = rng.randint(11, (99, 999, 9999)[level - 1])
  return family.Instance(
      params=(a, b, c),
      texts=(f"What is the sum of the digits of {a}^{b} + {c}?",
             f"Add all digits of {a}^{b} + {c}."),
      answer=_digit_sum(a**b + c, 10),
      program=f"print(sum(map(int, str({a}**{b} + {c}))))",
      slips=(f"print(len(str({a}**{b} + {c})))",
             f"print(sum(map(int, str({a}**{b}))))"))


def digit_count(rng: random.Random, level: int) -> family.Instance:
  """How often a digit occurs in a power."""
  a = rng.randint(3, (19, 99, 999)[level - 1])
  b = rng.randint(20, (40, 60, 99)[level - 1])
  d = rng.randint(0, 9)
  power, answer = a**b, 0
  while power:
    power, digit = divmod(power, 10)
    answer += digit == d
  return family.Instance(
      params=(a, b, d),
      texts=(f"How many digits of {a}^{b} are {d}?",
             f"How many times is {d} among the digits of {a}^{b}?"),
      answer=answer,
      program=f"print(str({a}**{b}).count('{d}'))",
      slips=(f"print(len(str({a}**{b})))",
             f"print(sum(map(int, str({a}**{b}))))"))


def base(rng: random.Random, level: int) -> family.Instance:
  """Value of a number written in another base, or the sum of two."""
  b = rng.randint(4, 9)
  num_digits = (3, 4, 6)[level - 1]
  x = _numeral(rng, b, num_digits)
  if level == 1:
    return family.Instance(
        params=(int(x), b),
        texts=(f"What is the base {b} number {x} in base 10?",
               f"Find the value of {x} in base {b}."),
        answer=_value(x, b),
        program=f"print(int('{x}', {b}))",
        slips=(f"print(int('{x}') // {b})", f"print(int('{x}') % {b})"))
  y = _numeral(rng, b, num_digits)
  return family.Instance(
      params=(int(x), int(y), b),
      texts=(f"What is the sum of the base {b} numbers {x} and {y} in base"
             " 10?",
             f"Add {x} and {y} in base {b}. Find the value in base 10."),
      answer=_value(x, b) + _value(y, b),
      program=f"print(int('{x}', {b}) + int('{y}', {b}))",
      slips=(f"print(int('{x}') + int('{y}'))",
             f"print(int('{x}', {b}) * int('{y}', {b}))"))


def base_digits(rng: random.Random, level: int) -> family.Instance:
  """Sum of the digits of a number written in another base."""
  n = rng.randint(*((100, 999), (1000, 9999), (10000, 99999))[level - 1])
  b = rng.randint(3, 9)
  return family.Instance(
      params=(n, b),
      texts=(f"Write {n} in base {b}. What is the sum of the digits?",
             f"What is the sum of the digits of {n} in base {b}?"),
      answer=_digit_sum(n, b),
      program=f"n, s = {n}, 0\nwhile n:\n  s += n % {b}\n  n //= {b}\nprint(s)",
      slips=(f"n, s = {n}, 0\nwhile n:\n  s += 1\n  n //= {b}\nprint(s)",
             f"print({n} % {b})"))


def _numeral(rng: random.Random, base_: int, num_digits: int) -> str:
  digits = [rng.randint(1, base_ - 1)]
  digits += [rng.randint(0, base_ - 1) for _ in range(num_digits - 1)]
  return "".join(map(str, digits))


def _value(numeral: str, base_: int) -> int:
  return sum(int(d) * base_**i for i, d in enumerate(reversed(numeral)))


def _digit_sum(n: int, base_: int) -> int:
  total = 0
  while n:
    n, digit = divmod(n, base_)
    total += digit
  return total
