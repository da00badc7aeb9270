"""Procedural families of integer-answer problems, by name."""

from rstar2_jax.data.families import digits
from rstar2_jax.data.families import divisibility
from rstar2_jax.data.families import family
from rstar2_jax.data.families import modular
from rstar2_jax.data.families import stories
from rstar2_jax.data.families import sums

ALL = {f.name: f for f in (
    family.Family("modular_power", modular.power),
    family.Family("arithmetic_chain", modular.chain),
    family.Family("congruence", modular.congruence),
    family.Family("iteration", modular.iteration),
    family.Family("gcd", divisibility.gcd),
    family.Family("lcm", divisibility.lcm),
    family.Family("divisors", divisibility.divisors),
    family.Family("primes", divisibility.primes),
    family.Family("multiples", divisibility.multiples),
    family.Family("sum_of_powers", sums.powers),
    family.Family("progression", sums.progression),
    family.Family("recurrence", sums.recurrence),
    family.Family("digit_sum", digits.digit_sum),
    family.Family("digit_count", digits.digit_count),
    family.Family("base", digits.base),
    family.Family("base_digits", digits.base_digits),
    family.Family("profit", stories.profit),
    family.Family("prices", stories.prices),
    family.Family("choices", stories.choices),
)}
