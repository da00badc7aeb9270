"""Greatest common divisors, divisors, primes, counting multiples."""

import random

import numpy as np

from rstar2_jax.data.families import family


def gcd(rng: random.Random, level: int) -> family.Instance:
  """Greatest common divisor of two numbers; level 3: larger ones."""
  factor = rng.randint(2, (19, 99, 199)[level - 1])
  hi = (20, 40, 49)[level - 1]
  a, b = (factor * n for n in rng.sample(range(3, hi), 2))
  return family.Instance(
      params=(a, b),
      texts=(f"What is the greatest common divisor of {a} and {b}?",
             f"Find the largest integer that divides {a} and {b}."),
      answer=max(d for d in range(1, a + 1) if a % d == 0 and b % d == 0),
      program=f"import math\nprint(math.gcd({a}, {b}))",
      slips=(f"import math\nprint(math.lcm({a}, {b}))",
             f"print({a} // {b})"))


def lcm(rng: random.Random, level: int) -> family.Instance:
  """Least common multiple of two numbers."""
  factor = rng.randint(2, (9, 19, 49)[level - 1])
  hi = (12, 40, 99)[level - 1]
  a, b = (factor * n for n in rng.sample(range(3, hi), 2))
  multiple = max(a, b)
  while multiple % min(a, b):
    multiple += max(a, b)
  return family.Instance(
      params=(a, b),
      texts=(f"What is the least common multiple of {a} and {b}?",
             f"Find the smallest positive integer that {a} and {b} divide."),
      answer=multiple,
      program=f"import math\nprint(math.lcm({a}, {b}))",
      slips=(f"import math\nprint(math.gcd({a}, {b}))",
             f"print({a} * {b})"))


def divisors(rng: random.Random, level: int) -> family.Instance:
  """Number (odd draws) or sum (even draws) of the divisors."""
  n = rng.randint(*((20, 199), (100, 999), (1000, 4999))[level - 1])
  is_sum = rng.random() < 0.5
  found = {d for i in range(1, int(n**0.5) + 1) if n % i == 0
           for d in (i, n // i)}
  count = f"print(sum({n} % d == 0 for d in range(1, {n} + 1)))"
  total = f"print(sum(d for d in range(1, {n} + 1) if {n} % d == 0))"
  if is_sum:
    return family.Instance(
        params=(n, 1),
        texts=(f"What is the sum of the divisors of {n}?",
               f"Add all positive integers that divide {n}."),
        answer=sum(found), program=total,
        slips=(count, f"print(sum(d for d in range(1, {n}) if {n} % d == 0))"))
  return family.Instance(
      params=(n, 0),
      texts=(f"How many divisors does {n} have?",
             f"How many positive integers divide {n}?"),
      answer=len(found), program=count,
      slips=(total, f"print(sum({n} % d == 0 for d in range(1, {n})))"))


def primes(rng: random.Random, level: int) -> family.Instance:
  """Primes in an interval: how many, or their sum."""
  a = rng.randint(*((2, 50), (20, 200), (200, 900))[level - 1])
  b = a + rng.randint(12, (40, 60, 99)[level - 1])
  is_sum = rng.random() < 0.5
  found = _primes_between(a, b)
  is_prime = "all(n % d for d in range(2, n))"
  span = f"range({a}, {b} + 1)"
  count = f"print(sum({is_prime} for n in {span}))"
  total = f"print(sum(n for n in {span} if {is_prime}))"
  if is_sum:
    return family.Instance(
        params=(a, b, 1),
        texts=(f"What is the sum of the primes from {a} to {b}?",
               f"Add all primes from {a} to {b}."),
        answer=int(found.sum()), program=total,
        slips=(count, total.replace("all", "any")))
  return family.Instance(
      params=(a, b, 0),
      texts=(f"How many primes are there from {a} to {b}?",
             f"How many integers from {a} to {b} are prime?"),
      answer=len(found), program=count,
      slips=(total, count.replace("all", "any")))


def multiples(rng: random.Random, level: int) -> family.Instance:
  """How many integers of a range are divisible; level 2: and not by ..."""
  a = rng.randint(*((10, 99), (100, 400), (100, 4000))[level - 1])
  b = a + rng.randint(*((50, 99), (200, 500), (500, 5000))[level - 1])
  k = rng.randint(3, (9, 12, 19)[level - 1])
  n = np.arange(a, b + 1)
  if level == 1:
    test = f"n % {k} == 0"
    return family.Instance(
        params=(a, b, k),
        texts=(f"How many integers from {a} to {b} are divisible by {k}?",
               f"How many multiples of {k} are there from {a} to {b}?"),
        answer=int((n % k == 0).sum()),
        program=f"print(sum({test} for n in range({a}, {b} + 1)))",
        slips=(f"print(sum(n for n in range({a}, {b} + 1) if {test}))",
               f"print({b} // {k})"))
  j = rng.choice([j for j in range(2, 12) if j % k and k % j])
  both = f"n % {k} == 0 and n % {j}"
  return family.Instance(
      params=(a, b, k, j),
      texts=(f"How many integers from {a} to {b} are divisible by {k} but not"
             f" by {j}?",
             f"How many multiples of {k} from {a} to {b} are not divisible by"
             f" {j}?"),
      answer=int(((n % k == 0) & (n % j != 0)).sum()),
      program=f"print(sum(n % {k} == 0 != n % {j} for n in range({a},"
              f" {b} + 1)))",
      slips=(f"print(sum(n % {k} == 0 for n in range({a}, {b} + 1)))",
             f"print(sum(n for n in range({a}, {b} + 1) if {both}))"))


def _primes_between(a: int, b: int) -> np.ndarray:
  """Primes p with a <= p <= b, by a sieve."""
  is_prime = np.ones(b + 1, bool)
  is_prime[:2] = False
  for i in range(2, int(b**0.5) + 1):
    is_prime[i * i::i] &= not is_prime[i]
  return np.flatnonzero(is_prime[a:]) + a
