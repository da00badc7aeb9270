"""Flash attention by kernels that come with JAX, over packed rows of a device.

They are imported where they are used: importing Pallas takes seconds, and not
every platform has both.
"""

import jax
import jax.numpy as jnp

BLOCK = 128  # rows come in multiples of it
_MAX_SPLASH_BLOCK = 1024
_TRITON_BLOCK = 64


def splash(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *,
    interpret: bool = False,
) -> jax.Array:
  """Causal attention within segments on a TPU.

  Args:
    q: [R, T, H, D]; T a multiple of BLOCK.
    k: [R, T, Hk, D], Hk divides H; v alike.
    segment_ids: int32 [R, T].
    interpret: run the kernel as plain operations, for tests.

  Returns:
    [R, T, H, D] in the dtype of `q`.
  """
  # pylint: disable=g-import-not-at-top
  from jax.experimental.pallas.ops.tpu.splash_attention import (
      splash_attention_kernel as kernel_lib)
  from jax.experimental.pallas.ops.tpu.splash_attention import (
      splash_attention_mask as mask_lib)
  # pylint: enable=g-import-not-at-top
  length, num_heads, width = q.shape[1:]
  block = next(size for size in (_MAX_SPLASH_BLOCK, 512, 256, BLOCK)
               if not length % size)
  kernel = kernel_lib.make_splash_mha_single_device(
      mask_lib.MultiHeadMask(
          [mask_lib.CausalMask((length, length))] * num_heads),
      block_sizes=kernel_lib.BlockSizes(
          block_q=block, block_kv=block, block_kv_compute=min(block, 512),
          block_q_dkv=block, block_kv_dkv=block,
          block_kv_dkv_compute=min(block, 512), use_fused_bwd_kernel=True),
      interpret=interpret)

  def one_row(q, k, v, segments):
    return kernel(q, k, v, kernel_lib.SegmentIds(q=segments, kv=segments))

  q_first, k_first, v_first = (
      jnp.swapaxes(x, 1, 2) for x in (q * width**-0.5, k, v))
  mixed = jax.vmap(one_row)(q_first, k_first, v_first, segment_ids)
  return jnp.swapaxes(mixed, 1, 2).astype(q.dtype)


def triton(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *,
    interpret: bool = False,
) -> jax.Array:
  """Likewise on a GPU."""
  from jax.experimental.pallas.ops.gpu import attention  # pylint: disable=g-import-not-at-top
  group = q.shape[2] // k.shape[2]
  sizes = dict.fromkeys(
      ("block_q", "block_k", "block_q_dkv", "block_kv_dkv", "block_q_dq",
       "block_kv_dq"), _TRITON_BLOCK)
  return attention.mha(
      q, jnp.repeat(k, group, axis=2), jnp.repeat(v, group, axis=2),
      segment_ids, q.shape[3]**-0.5, True,
      attention.BlockSizes(**sizes), interpret=interpret)
