"""The KV cache: one array per layer, a row per slot, a length that grows.

All rows have the same length, one of a few buckets. It starts at the smallest,
grows when a sequence needs more and falls back when the cache is flushed, so
that short sequences pay neither for the longest one possible nor for slicing.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rstar2_jax.engine import attention

_SMALLEST = 128
_GROWTH = 1.5


class Cache(NamedTuple):
  """Keys and values; tuples over layers of [N, S, Hk, D]."""

  k: tuple[jax.Array, ...]
  v: tuple[jax.Array, ...]

  @property
  def length(self) -> int:
    """S, entries per slot."""
    return self.k[0].shape[1]


def lengths(max_seq_len: int) -> tuple[int, ...]:
  """The buckets: multiples of KEY_BLOCK, the last holds `max_seq_len`."""
  def round_up(n: float) -> int:
    return -int(-n // attention.KEY_BLOCK) * attention.KEY_BLOCK

  buckets = [min(_SMALLEST, round_up(max_seq_len))]
  while buckets[-1] < max_seq_len:
    buckets.append(min(round_up(_GROWTH * buckets[-1]),
                       round_up(max_seq_len)))
  return tuple(buckets)


def empty(
    *, num_layers: int, num_slots: int, length: int, num_kv_heads: int,
    head_dim: int, dtype: jnp.dtype, sharding: jax.sharding.Sharding | None,
) -> Cache:
  """A cache of zeros."""
  shape = (num_slots, length, num_kv_heads, head_dim)
  def zeros() -> tuple[jax.Array, ...]:
    return tuple(jnp.zeros(shape, dtype, device=sharding)
                 for _ in range(num_layers))
  return Cache(zeros(), zeros())


def grow(cache: Cache, length: int) -> Cache:
  """The same entries with room for `length`."""
  padding = [(0, 0), (0, length - cache.length), (0, 0), (0, 0)]
  return jax.tree.map(lambda x: jnp.pad(x, padding), cache)


def take_rows(cache: Cache, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Rows of some slots, stacked over layers: k and v [L, R, S, Hk, D]."""
  # Rows of padding name no slot; what they compute is dropped on the way back.
  def take(layers):
    return jnp.stack([x.at[slots].get(mode="clip") for x in layers])
  return take(cache.k), take(cache.v)


def put_rows(
    cache: Cache, slots: jax.Array, k: jax.Array, v: jax.Array
) -> Cache:
  """Writes rows back; slots out of range are dropped."""
  def put(layers, rows):
    return tuple(x.at[slots].set(row, mode="drop")
                 for x, row in zip(layers, rows, strict=True))
  return Cache(put(cache.k, k), put(cache.v, v))


def copy_rows(
    cache: Cache, sources: jax.Array, destinations: jax.Array
) -> Cache:
  """Copies whole rows; destinations out of range are dropped.

  Entries past a common prefix come along and are never read: a query sees the
  positions up to its own, each of which is written before it is seen.
  """
  def copy(x):
    return x.at[destinations].set(
        x.at[sources].get(mode="clip"), mode="drop")
  return jax.tree.map(copy, cache)


def append(
    cache: Cache, k: jax.Array, v: jax.Array, starts: jax.Array
) -> Cache:
  """Writes the entries of one decode dispatch.

  Args:
    cache: the cache.
    k: [L, T, N, Hk, D], entries of T steps; v alike.
    starts: int32 [N], position of the first; those past the end are dropped.
  """
  positions = starts[:, None] + jnp.arange(k.shape[1])
  slots = jnp.arange(k.shape[2])[:, None]
  def put(layers, new):
    return tuple(
        x.at[slots, positions].set(jnp.swapaxes(entries, 0, 1), mode="drop")
        for x, entries in zip(layers, new, strict=True))
  return Cache(put(cache.k, k), put(cache.v, v))
