"""The KV cache: one array per layer, a row per slot, a length that grows.

All rows have the same length, one of a few buckets. It starts at the smallest,
grows when a sequence needs more and falls back when the cache is flushed, so
that short sequences pay neither for the longest one possible nor for slicing.

Keys lie with their positions last, values with their width last: the layouts
in which one query against all keys of a sequence is a row of long vectors (on
CPU several times faster than position-major ones).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rstar2_jax.engine import attention

_SMALLEST = 128
_GROWTH = 1.5


class Cache(NamedTuple):
  """Keys and values; tuples over layers."""

  k: tuple[jax.Array, ...]  # [N, Hk, D, S]
  v: tuple[jax.Array, ...]  # [N, Hk, S, D]

  @property
  def length(self) -> int:
    """S, entries per slot."""
    return self.k[0].shape[3]


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
  def zeros(*shape: int) -> tuple[jax.Array, ...]:
    return tuple(
        jnp.zeros((num_slots, num_kv_heads, *shape), dtype, device=sharding)
        for _ in range(num_layers))
  return Cache(zeros(head_dim, length), zeros(length, head_dim))


def grow(cache: Cache, length: int) -> Cache:
  """The same entries with room for `length`."""
  def pad(x: jax.Array, axis: int) -> jax.Array:
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, length - cache.length)
    return jnp.pad(x, padding)
  return Cache(tuple(pad(k, 3) for k in cache.k),
               tuple(pad(v, 2) for v in cache.v))


def take_rows(cache: Cache, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Rows of some slots, stacked over layers: k and v [L, R, S, Hk, D]."""
  # Rows of padding name no slot; what they compute is dropped on the way back.
  def take(layers: tuple[jax.Array, ...], axes: tuple[int, ...]) -> jax.Array:
    return jnp.stack([x.at[slots].get(mode="clip").transpose(axes)
                      for x in layers])
  return take(cache.k, (0, 3, 1, 2)), take(cache.v, (0, 2, 1, 3))


def put_rows(
    cache: Cache, slots: jax.Array, k: jax.Array, v: jax.Array
) -> Cache:
  """Writes rows back; slots out of range are dropped."""
  def put(layers, rows, axes):
    return tuple(x.at[slots].set(row.transpose(axes), mode="drop")
                 for x, row in zip(layers, rows, strict=True))
  return Cache(put(cache.k, k, (0, 2, 3, 1)), put(cache.v, v, (0, 2, 1, 3)))


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


def gather(cache: Cache, slots: jax.Array) -> Cache:
  """A cache of some slots; out of range: anything."""
  return jax.tree.map(lambda x: x.at[slots].get(mode="clip"), cache)


def append(
    cache: Cache, slots: jax.Array, k: tuple[jax.Array, ...],
    v: tuple[jax.Array, ...], starts: jax.Array,
) -> Cache:
  """Writes the entries of one decode dispatch.

  Args:
    cache: the cache.
    slots: int32 [R]; those out of range are dropped.
    k: [R, Hk, T, D] of each layer, entries of T steps; v alike.
    starts: int32 [R], position of the first; those past the end are dropped.
  """
  positions = starts[:, None] + jnp.arange(k[0].shape[2])
  slots = slots[:, None]
  def put_k(x: jax.Array, new: jax.Array) -> jax.Array:
    return x.at[slots, :, :, positions].set(
        new.transpose(0, 2, 1, 3), mode="drop")
  def put_v(x: jax.Array, new: jax.Array) -> jax.Array:
    return x.at[slots, :, positions].set(
        new.transpose(0, 2, 1, 3), mode="drop")
  return Cache(tuple(map(put_k, cache.k, k)), tuple(map(put_v, cache.v, v)))
