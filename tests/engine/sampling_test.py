"""Draws by their distribution, against numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rstar2_jax.engine import sampling

_NUM_IDS = 24
_NUM_DRAWS = 6000


def draw(logits, *, num_ids=_NUM_IDS, first_seed=0, position=7, **values):
  """int32 [n] and float32 [n]: draws of one distribution by seed."""
  def full(value, dtype):
    return jnp.full(_NUM_DRAWS, value, dtype)
  params = sampling.SamplingParams(
      temperature=full(values.get("temperature", 1.0), jnp.float32),
      top_p=full(values.get("top_p", 1.0), jnp.float32),
      min_p=full(values.get("min_p", 0.0), jnp.float32),
      top_k=full(values.get("top_k", -1), jnp.int32),
      seed=jnp.arange(first_seed, first_seed + _NUM_DRAWS, dtype=jnp.uint32))
  sample = jax.jit(functools.partial(
      sampling.sample, num_ids=num_ids,
      is_filtered=bool({"top_p", "min_p", "top_k"} & values.keys())))
  ids, logprobs = sample(
      jnp.tile(logits, (_NUM_DRAWS, 1)), full(position, jnp.int32), params)
  return np.asarray(ids), np.asarray(logprobs)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
  return np.random.default_rng(0).normal(0, 2, 32).astype(np.float32)


def softmax(logits, temperature=1.0):
  probs = np.exp(logits[:_NUM_IDS].astype(np.float64) / temperature)
  return probs / probs.sum()


def keep(probs, *, top_k=-1, top_p=1.0, min_p=0.0):
  """Which ids may be drawn, by the definitions."""
  order = np.argsort(-probs)
  kept = np.zeros(len(probs), bool)
  mass = 0.0
  for rank, i in enumerate(order):
    if top_k > 0 and rank >= top_k or mass > top_p:
      break
    mass += probs[i]
    kept[i] = probs[i] >= min_p * probs[order[0]]
  return kept


@pytest.mark.parametrize("values", [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.5},
    {"top_p": 0.9, "temperature": 1.3},
    {"min_p": 0.1},
    {"top_k": 8, "top_p": 0.8, "min_p": 0.05, "temperature": 1.2},
])
def test_frequencies_and_logprobs(logits, values):
  ids, logprobs = draw(logits, **values)
  filters = {k: v for k, v in values.items() if k != "temperature"}
  probs = softmax(logits, values.get("temperature", 1.0))
  kept = keep(probs, **filters)
  counts = np.bincount(ids, minlength=_NUM_IDS)
  assert len(counts) == _NUM_IDS  # no padding of the head
  assert not counts[~kept].any()
  expected = probs * kept / probs[kept].sum() * _NUM_DRAWS
  common = expected > 5
  if common.sum() > 1:
    rest = [counts[~common].sum()], [expected[~common].sum() + 1e-9]
    observed, wanted = (np.append(x[common], r) for x, r in zip(
        (counts, expected), rest, strict=True))
    if wanted[-1] < 1:
      observed, wanted = observed[:-1], wanted[:-1]
      wanted *= observed.sum() / wanted.sum()
    assert stats.chisquare(observed, wanted).pvalue > 1e-4
  # Of the whole distribution, whatever was cut from it.
  np.testing.assert_allclose(logprobs, np.log(probs)[ids], atol=1e-5)


def test_greedy(logits):
  ids, logprobs = draw(logits, temperature=0.0)
  best = int(logits[:_NUM_IDS].argmax())
  assert (ids == best).all()
  np.testing.assert_allclose(logprobs, np.log(softmax(logits)[best]),
                             atol=1e-5)


def test_equal_logits_are_equally_likely():
  ids, _ = draw(np.zeros(_NUM_IDS, np.float32))
  assert stats.chisquare(np.bincount(ids, minlength=_NUM_IDS)).pvalue > 1e-4
  ids, _ = draw(np.zeros(_NUM_IDS, np.float32), temperature=0.0)
  assert (ids == 0).all()  # the first of equals, as argmax


def test_noise_is_exponential_and_has_no_pattern():
  seeds = np.arange(200, dtype=np.uint32)
  positions = np.arange(200, dtype=np.int32)
  noise = jax.jit(sampling.exponential_noise, static_argnums=2)
  by_seed = np.asarray(noise(seeds, np.full(200, 3, np.int32), 200))
  by_position = np.asarray(noise(np.full(200, 3, np.uint32), positions, 200))
  together = np.asarray(noise(seeds, positions, 200))
  for values in (by_seed, by_position, together):
    assert (values > 0).all() and np.isfinite(values).all()
    uniform = np.exp(-values.astype(np.float64))
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-4
    assert len(np.unique(values)) > 0.99 * values.size
    for shifted in (np.roll(uniform, 1, 0), np.roll(uniform, 1, 1)):
      correlation = np.corrcoef(uniform.ravel(), shifted.ravel())[0, 1]
      assert abs(correlation) < 5 / np.sqrt(uniform.size)


def test_noise_depends_on_seed_and_position_alone():
  noise = jax.jit(sampling.exponential_noise, static_argnums=2)
  seeds = np.array([5, 9, 5, 5], np.uint32)
  positions = np.array([2, 2, 3, 2], np.int32)
  first = np.asarray(noise(seeds, positions, 64))
  np.testing.assert_array_equal(first[0], first[3])
  assert (first[0] != first[1]).all() and (first[0] != first[2]).all()
  alone = np.asarray(noise(seeds[:1], positions[:1], 64))
  np.testing.assert_array_equal(first[:1], alone)
