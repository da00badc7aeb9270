"""Attention over packed rows and over a cache, in plain XLA.

Softmax runs in float32 whatever the compute dtype. Rows longer than a block
are taken a block of queries at a time and rematerialized, so that memory grows
with T * block instead of T * T.
"""

import jax
import jax.numpy as jnp

_QUERY_BLOCK = 512


def packed(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array
) -> jax.Array:
  """Causal attention within the segments of packed rows.

  Args:
    q: [R, T, H, D].
    k: [R, T, Hk, D], Hk divides H; v alike.
    segment_ids: int32 [R, T]; tokens see earlier tokens of their own segment.

  Returns:
    [R, T, H, D] in the dtype of `q`.
  """
  length = q.shape[1]
  index = jnp.arange(length)
  if length <= _QUERY_BLOCK or length % _QUERY_BLOCK:
    return _masked(q, k, v, _visible(segment_ids, segment_ids, index, index))

  @jax.checkpoint
  def one_block(start: jax.Array) -> jax.Array:
    def cut(x):
      return jax.lax.dynamic_slice_in_dim(x, start, _QUERY_BLOCK, axis=1)
    queries = start + jnp.arange(_QUERY_BLOCK)
    mask = _visible(cut(segment_ids), segment_ids, queries, index)
    return _masked(cut(q), k, v, mask)

  blocks = jax.lax.map(one_block, jnp.arange(0, length, _QUERY_BLOCK))
  return jnp.moveaxis(blocks, 0, 1).reshape(q.shape)


def cached(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array
) -> jax.Array:
  """Attention of a chunk to a cache that already holds the chunk's keys.

  Args:
    q: [B, C, H, D].
    k: [B, S, Hk, D]; entry s is of position s; v alike.
    positions: int32 [B, C]; a query sees the entries up to its own.

  Returns:
    [B, C, H, D] in the dtype of `q`.
  """
  visible = jnp.arange(k.shape[1]) <= positions[..., None]
  return _masked(q, k, v, visible)


def _visible(
    query_segments: jax.Array, key_segments: jax.Array, queries: jax.Array,
    keys: jax.Array,
) -> jax.Array:
  """bool [R, Q, K]."""
  is_same = query_segments[:, :, None] == key_segments[:, None, :]
  return is_same & (keys[None, None, :] <= queries[None, :, None])


def _masked(
    q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array
) -> jax.Array:
  """Softmax attention with a mask [B, Q, K]; every query sees something."""
  batch, num_queries, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  q = q.reshape(batch, num_queries, num_kv_heads, -1, width) * width**-0.5
  scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k,
                      preferred_element_type=jnp.float32)
  scores = jnp.where(visible[:, None, None], scores, -1e30)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)
  return mixed.reshape(batch, num_queries, num_heads, width)
