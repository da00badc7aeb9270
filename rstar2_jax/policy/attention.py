"""Attention over packed rows, by a table of ways, and over a cache.

  xla      plain; a block of queries against all keys.
  chunked  online softmax over blocks of keys, those that nobody sees left out.
  splash   Pallas kernel for TPUs (jax.experimental.pallas).
  triton   Pallas kernel for NVIDIA and AMD GPUs (likewise).

All give the same numbers but for rounding. Softmax runs in float32 whatever
the compute dtype, and none makes a [T, T] mask: memory grows with T * block.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rstar2_jax.policy import kernels

Kind = Literal["auto", "xla", "chunked", "splash", "triton"]

_QUERY_BLOCK = 512
_KEY_BLOCK = 512
_MASKED = -1e30  # finite, so that a difference of two is no NaN
_KERNEL_OF: dict[str, Kind] = {"tpu": "splash", "gpu": "triton"}
P = jax.sharding.PartitionSpec
_WHERE = P(("data", "fsdp"), None, "tensor", None)  # [R, T, heads, D]


def packed(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *,
    kind: Kind = "auto", mesh: jax.sharding.Mesh | None = None,
) -> jax.Array:
  """Causal attention within the segments of packed rows.

  Args:
    q: [R, T, H, D].
    k: [R, T, Hk, D], Hk divides H; v alike.
    segment_ids: int32 [R, T]; tokens see earlier tokens of their own segment.
    kind: see the module; "auto" takes the backend's kernel where rows fit its
      blocks, else "xla", or "chunked" for rows of many blocks.
    mesh: over which rows and heads are cut; the compiler cannot cut a kernel
      by itself. None: one device.

  Returns:
    [R, T, H, D] in the dtype of `q`.

  Raises:
    ValueError: rows or heads do not fit the kernel or the mesh.
  """
  if kind == "auto":
    kind = _automatic(q.shape[1], jax.default_backend())
  if kind == "xla":
    return _xla(q, k, v, segment_ids)
  if kind == "chunked":
    return _chunked(q, k, v, segment_ids)
  if kind not in _KERNEL_OF.values():
    raise ValueError(f"attention {kind!r}: must be auto, xla, chunked,"
                     " splash or triton")
  if q.shape[1] % kernels.BLOCK:
    raise ValueError(
        f"attention {kind!r} needs --batch.row_tokens in multiples of"
        f" {kernels.BLOCK}, not {q.shape[1]}")
  kernel = kernels.splash if kind == "splash" else kernels.triton
  if mesh is None or mesh.size == 1:
    return kernel(q, k, v, segment_ids)
  if k.shape[2] % mesh.shape["tensor"]:
    raise ValueError(f"--mesh.tensor={mesh.shape['tensor']}: must divide the"
                     f" {k.shape[2]} key/value heads")
  return jax.shard_map(
      kernel, mesh=mesh, in_specs=(_WHERE,) * 3 + (P(*_WHERE[:2]),),
      out_specs=_WHERE, check_vma=False)(q, k, v, segment_ids)


def check(kind: Kind, row_tokens: int, backend: str) -> None:
  """Whether rows of a length can have a kind of attention on a backend.

  Args:
    kind: of attention.
    row_tokens: T.
    backend: as `jax.default_backend` names it.

  Raises:
    ValueError: they cannot; it names the flags.
  """
  if kind in _KERNEL_OF.values() and _KERNEL_OF.get(backend) != kind:
    where = next(b for b, k in _KERNEL_OF.items() if k == kind)
    raise ValueError(f"--policy.attention={kind}: needs a {where.upper()}, and"
                     f" JAX runs on {backend}; auto takes what fits")
  if kind in _KERNEL_OF.values() and row_tokens % kernels.BLOCK:
    raise ValueError(
        f"--policy.attention={kind}: needs --batch.row_tokens in multiples of"
        f" {kernels.BLOCK}, not {row_tokens}")


def _automatic(length: int, backend: str) -> Kind:
  if backend in _KERNEL_OF and not length % kernels.BLOCK:
    return _KERNEL_OF[backend]
  return "xla" if length <= 2 * _QUERY_BLOCK else "chunked"


def _xla(q, k, v, segment_ids):
  """Scores of a block of queries and all keys at a time, made twice."""
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


def _chunked(q, k, v, segment_ids):
  """Online softmax (arXiv 2112.05682) over blocks of keys, of any length."""
  rows, length, num_heads, width = q.shape
  # Padding at the end is a segment of its own, which nobody else sees.
  q, k, v, segments = (
      _in_blocks(x, min(_KEY_BLOCK, length))
      for x in (q * width**-0.5, k, v, segment_ids + 1))
  size = q.shape[2]
  q = q.reshape(*q.shape[:3], k.shape[3], -1, width)
  starts = jnp.arange(q.shape[0]) * size
  keys = starts, k, v, segments

  @jax.checkpoint
  def one_block(queries):
    start, q, q_segments = queries
    index = start + jnp.arange(size)

    def step(carry, block):
      k_start, k, v, k_segments = block
      visible = _visible(
          q_segments, k_segments, index, k_start + jnp.arange(size))
      return jax.lax.cond(
          jnp.any(visible), _attend_more, lambda carry, *_: carry,
          carry, q, k, v, visible), None

    shape = rows, *q.shape[2:4], size  # [R, Hk, G, q]
    carry = (jnp.full(shape, _MASKED, jnp.float32),
             jnp.zeros(shape, jnp.float32),
             jnp.zeros((*shape, width), jnp.float32))
    (_, total, mixed), _ = jax.lax.scan(step, carry, keys)
    return jnp.moveaxis(mixed / total[..., None], 3, 1).astype(q.dtype)

  blocks = jax.lax.map(one_block, (starts, q, segments))
  return jnp.moveaxis(blocks, 0, 1).reshape(
      rows, -1, num_heads, width)[:, :length]


@jax.checkpoint
def _attend_more(carry, q, k, v, visible):
  """Running maximum, sum and mixture after one more block of keys."""
  maximum, total, mixed = carry
  scores = jnp.einsum("rqhgd,rkhd->rhgqk", q, k,
                      preferred_element_type=jnp.float32)
  visible = visible[:, None, None]
  scores = jnp.where(visible, scores, _MASKED)
  larger = jnp.maximum(maximum, jnp.max(scores, axis=-1))
  # A query that sees none of the keys yet would weigh all of them by e^0.
  weights = jnp.where(visible, jnp.exp(scores - larger[..., None]), 0.0)
  shrink = jnp.exp(maximum - larger)
  more = jnp.einsum("rhgqk,rkhd->rhgqd", weights.astype(v.dtype), v,
                    preferred_element_type=jnp.float32)
  return (larger, total * shrink + jnp.sum(weights, axis=-1),
          mixed * shrink[..., None] + more)


def _in_blocks(x: jax.Array, size: int) -> jax.Array:
  """[n, R, size, ...] of [R, T, ...], filled with zeros at the end."""
  missing = -x.shape[1] % size
  x = jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
  return jnp.moveaxis(
      x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


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
  scores = jnp.where(visible[:, None, None], scores, _MASKED)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)
  return mixed.reshape(batch, num_queries, num_heads, width)
