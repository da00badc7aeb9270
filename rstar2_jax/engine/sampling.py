"""From logits to a sampled id and its log-probability, on device.

The reported log-probability is log_softmax(logits / temperature) at the id,
without renormalizing over top-k, top-p or min-p, as SGLang reports it; so the
learner finds the same number by dividing its own logits by the temperature.
Temperature 0 is greedy, and its log-probabilities are those at temperature 1.

The noise of a token depends on (seed of its request, position) alone, so that
a request gives the same tokens whatever else is in the batch (P24).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_GOLDEN = np.uint32(0x9E3779B9)



class SamplingParams(NamedTuple):
  """How each row is sampled; arrays of shape [B]."""

  temperature: jax.Array  # float32, 0: greedy
  top_p: jax.Array  # float32 in (0, 1]
  min_p: jax.Array  # float32 in [0, 1)
  top_k: jax.Array  # int32, <= 0: all
  seed: jax.Array  # uint32


def sample(
    logits: jax.Array,
    positions: jax.Array,
    params: SamplingParams,
    *,
    num_ids: int,
    is_filtered: bool,
) -> tuple[jax.Array, jax.Array]:
  """Draws one id per row.

  Args:
    logits: float32 [B, V].
    positions: int32 [B], index of the sampled token in its sequence.
    params: how each row is sampled.
    num_ids: ids from here to V are padding of the head: never sampled (P05).
    is_filtered: whether top_k, top_p and min_p are looked at, which takes a
      sort; hardly any request asks for it.

  Returns:
    ids int32 [B] and their log-probabilities float32 [B].
  """
  scaled = scale(logits, params.temperature, num_ids=num_ids)
  candidates = _keep_likely(scaled, params) if is_filtered else scaled
  # The race of exponential clocks: the first to ring is id i with probability
  # p_i. It takes one logarithm where the Gumbel trick takes two.
  highest = jnp.max(scaled, axis=-1, keepdims=True)
  speed = jnp.exp(candidates - highest)
  clocks = exponential_noise(params.seed, positions, logits.shape[-1])
  is_greedy = params.temperature <= 0
  ids = _argmax(jnp.where(is_greedy[:, None], scaled, speed / clocks))
  return ids, logprobs_at(scaled, ids[:, None])[:, 0]


def scale(
    logits: jax.Array, temperature: jax.Array, *, num_ids: int
) -> jax.Array:
  """logits / temperature [..., V] with -inf at padding ids; 0 counts as 1."""
  divisor = jnp.where(temperature <= 0, 1.0, temperature)
  scaled = logits.astype(jnp.float32) / divisor[..., None]
  is_padding = jnp.arange(logits.shape[-1]) >= num_ids
  return jnp.where(is_padding, -jnp.inf, scaled)


def logprobs_at(scaled: jax.Array, ids: jax.Array) -> jax.Array:
  """log_softmax of `scaled` [..., V] at `ids` [..., M]; float32 [..., M]."""
  highest = jnp.max(scaled, axis=-1, keepdims=True)
  log_sum = jnp.log(jnp.sum(jnp.exp(scaled - highest), axis=-1, keepdims=True))
  return jnp.take_along_axis(scaled, ids, axis=-1) - highest - log_sum


def exponential_noise(
    seeds: jax.Array, positions: jax.Array, num_ids: int
) -> jax.Array:
  """Unit exponential draws that depend on (seed, position, id) alone.

  A keyed integer hash of the id: jax.random's default generator took as long
  as half of the decode step of a small model on CPU.

  Args:
    seeds: uint32 [B].
    positions: int32 [B].
    num_ids: V.

  Returns:
    float32 [B, V], over 0.
  """
  positions = positions.astype(jnp.uint32)
  outer = _hash(seeds ^ _hash(positions + _GOLDEN))
  inner = _hash(outer + positions)
  ids = jnp.arange(num_ids, dtype=jnp.uint32) * _GOLDEN
  bits = _hash(_hash(ids + outer[:, None]) ^ inner[:, None])
  # 23 bits, so that the sum is exact and never 0 or 1.
  uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
  return -jnp.log(uniform)


def _argmax(x: jax.Array) -> jax.Array:
  """jnp.argmax over the last axis, int32, by two reductions.

  XLA's CPU compiler draws what is computed before an argmax into its loop,
  where it is no longer vectorized.
  """
  highest = jnp.max(x, axis=-1, keepdims=True)
  ids = jnp.arange(x.shape[-1], dtype=jnp.int32)
  return jnp.min(jnp.where(x == highest, ids, ids[-1]), axis=-1)


def _hash(x: jax.Array) -> jax.Array:
  """A bijection of uint32 in which every input bit moves every output bit."""
  # The constants are of C. Wellons' search for a finalizer with low bias.
  x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
  return x ^ (x >> 16)


def _keep_likely(scaled: jax.Array, params: SamplingParams) -> jax.Array:
  """`scaled` [B, V] with -inf outside top-k, top-p and min-p.

  The three are judged on the whole distribution and all must hold, as in
  SGLang's sampler; the likeliest id always stays.
  """
  descending = -jnp.sort(-scaled, axis=-1)
  probs = jax.nn.softmax(descending, axis=-1)
  rank = jnp.arange(scaled.shape[-1])
  mass_before = jnp.cumsum(probs, axis=-1) - probs
  keep = mass_before <= params.top_p[:, None]
  keep &= (rank < params.top_k[:, None]) | (params.top_k <= 0)[:, None]
  keep &= probs >= params.min_p[:, None] * probs[:, :1]
  keep |= rank == 0
  lowest = jnp.min(jnp.where(keep, descending, jnp.inf), axis=-1)
  return jnp.where(scaled >= lowest[:, None], scaled, -jnp.inf)
