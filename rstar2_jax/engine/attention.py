"""Attention of one decode step: cached keys, then those of this dispatch.

A dispatch takes several steps. The big cache is read only meanwhile; keys and
values of the steps so far wait in a small buffer, written at the step's index,
so that no step scatters into the cache.

Sums over keys run in blocks of fixed size, so that the number of masked keys
behind a sequence (the bucket, chosen by the longest neighbor) does not change
a sequence's result.
"""

import jax
import jax.numpy as jnp

# Buckets are multiples of this; with other sizes XLA's CPU kernels add up keys
# in an order that depends on their number.
KEY_BLOCK = 64
_SUM_BLOCK = 16


def attend(
    q: jax.Array,
    k_cache: jax.Array,
    v_cache: jax.Array,
    k_recent: jax.Array,
    v_recent: jax.Array,
    cached: jax.Array,
    step: jax.Array,
) -> jax.Array:
  """One query per sequence against its keys.

  Args:
    q: [B, H, D], one query per head.
    k_cache: [B, Hk, D, S]; S is a multiple of KEY_BLOCK.
    v_cache: [B, Hk, S, D].
    k_recent: [B, Hk, T, D], entry t is of step t; v_recent alike.
    cached: int32 [B], cached keys that belong to the sequence.
    step: int32 scalar, index of this step; its own key is in `k_recent`.

  Returns:
    [B, H, D] in the dtype of `q`; softmax in float32.
  """
  batch, num_heads, width = q.shape
  num_kv_heads = k_cache.shape[1]
  q = q.reshape(batch, num_kv_heads, num_heads // num_kv_heads, width)
  scale = width**-0.5
  old = jnp.einsum("bhgd,bhds->bhgs", q, k_cache,
                   preferred_element_type=jnp.float32) * scale
  new = jnp.einsum("bhgd,bhtd->bhgt", q, k_recent,
                   preferred_element_type=jnp.float32) * scale
  is_old = jnp.arange(k_cache.shape[3]) < cached[:, None, None, None]
  is_new = jnp.arange(k_recent.shape[2]) <= step
  old = jnp.where(is_old, old, -jnp.inf)
  new = jnp.where(is_new, new, -jnp.inf)
  # The step's own key is never masked, so the maximum is finite.
  highest = jnp.maximum(jnp.max(old, axis=-1, keepdims=True),
                        jnp.max(new, axis=-1, keepdims=True))
  old = jnp.exp(old - highest)
  new = jnp.exp(new - highest)
  blocks = old.reshape(*old.shape[:-1], -1, _SUM_BLOCK)
  total = jnp.sum(jnp.sum(blocks, axis=-2), axis=-1) + jnp.sum(new, axis=-1)
  mixed = jnp.einsum("bhgs,bhsd->bhgd", old.astype(v_cache.dtype), v_cache,
                     preferred_element_type=jnp.float32)
  mixed += jnp.einsum("bhgt,bhtd->bhgd", new.astype(v_recent.dtype), v_recent,
                      preferred_element_type=jnp.float32)
  mixed /= total[..., None]
  return mixed.reshape(batch, num_heads, width).astype(q.dtype)
