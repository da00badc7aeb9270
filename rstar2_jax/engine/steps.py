"""The compiled steps of the engine: prefill, decode and score. Pure functions.

Letters: N slots, R rows of a dispatch, C chunk, T steps of a dispatch,
L layers, H/Hk query and KV heads, D head width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rstar2_jax.engine import attention
from rstar2_jax.engine import cache as cache_lib
from rstar2_jax.engine import requests
from rstar2_jax.engine import sampling
from rstar2_jax.policy import model

# A position beyond every cache: the entry is dropped.
NOWHERE = np.int32(2**30)

# Columns of the controls, int32 [R, NUM_CONTROLS]: one transfer a dispatch.
# Floats and the unsigned seed travel as their bits.
ID = 0  # last known id, input of the first step
POSITION = 1  # its position, which is also the number of cached entries
LEFT = 2  # ids that may still be sampled; 0: the slot is not decoding
SEED = 3
TOP_K = 4
TEMPERATURE = 5
TOP_P = 6
MIN_P = 7
STOP_IDS = 8  # MAX_STOP_IDS columns, -1 where unused
NUM_CONTROLS = STOP_IDS + requests.MAX_STOP_IDS


class Rich(NamedTuple):
  """Log-probabilities beside those of the sampled ids."""

  top_logprobs: jax.Array  # float32 [T, R, K], descending
  top_ids: jax.Array  # int32 [T, R, K]
  chosen_logprobs: jax.Array  # float32 [T, R, M]


class Sampled(NamedTuple):
  """What a decode dispatch sampled; host arrays."""

  ids: np.ndarray  # int32 [T, R]
  logprobs: np.ndarray  # float32 [T, R]
  counts: np.ndarray  # int32 [R], steps that were sampled
  is_stopped: np.ndarray  # bool [R], whether the last id is a stop id
  rich: Rich | None


class PromptLogprobs(NamedTuple):
  """About each id of a prompt given those before; entry 0 says nothing."""

  logprobs: Any  # float32 [n]; on device, then on the host
  top_logprobs: Any  # float32 [n, K]
  top_ids: Any  # int32 [n, K]
  chosen_logprobs: Any  # float32 [n, M]


class _Carry(NamedTuple):
  step: jax.Array  # int32 scalar
  ids: jax.Array  # int32 [R], input of this step
  left: jax.Array  # int32 [R]
  counts: jax.Array  # int32 [R]
  is_stopped: jax.Array  # bool [R]
  k: tuple[jax.Array, ...]  # [R, Hk, T, D] of each layer
  v: tuple[jax.Array, ...]  # [R, Hk, T, D] of each layer
  sampled: jax.Array  # int32 [T, R]
  logprobs: jax.Array  # float32 [T, R]
  rich: Rich | None


def prefill(
    params: Any, *, cache: cache_lib.Cache, slots: jax.Array, ids: jax.Array,
    positions: jax.Array, model_config: model.ModelConfig,
) -> cache_lib.Cache:
  """Computes keys and values of one chunk of each of R prompts.

  Args:
    params: the weights.
    cache: the cache.
    slots: int32 [R]; rows out of range are padding.
    ids: int32 [R, C].
    positions: int32 [R, C], NOWHERE at padding.
    model_config: the model's configuration.
  """
  k, v = cache_lib.take_rows(cache, slots)
  _, rows = model.extend(
      params, model_config, ids, positions, model.KVCache(k, v))
  return cache_lib.put_rows(cache, slots, rows.k, rows.v)


def decode(
    params: Any, *, cache: cache_lib.Cache, slots: jax.Array | None,
    controls: jax.Array, chosen: jax.Array | None, is_filtered: bool,
    num_steps: int, model_config: model.ModelConfig, num_ids: int,
) -> tuple[cache_lib.Cache, jax.Array, Rich | None]:
  """Samples up to `num_steps` ids in every row that is decoding.

  Args:
    params: the weights.
    cache: the cache; slots that do not decode keep their valid entries.
    slots: int32 [R], those of the rows, out of range at padding; None: row n
      is slot n.
    controls: int32 [R, NUM_CONTROLS].
    chosen: int32 [R, M] ids of wanted log-probabilities, or None.
    is_filtered: see sampling.sample.
    num_steps: T.
    model_config: the model's configuration.
    num_ids: ids that may be sampled.

  Returns:
    The cache, int32 [2 T + 2, R] for `unpack`, and the rich part if `chosen`
    was given.
  """
  rows = cache if slots is None else cache_lib.gather(cache, slots)
  starts = controls[:, POSITION]
  stop_ids = controls[:, STOP_IDS:]
  params_of = sampling.SamplingParams(
      temperature=_floats(controls[:, TEMPERATURE]),
      top_p=_floats(controls[:, TOP_P]), min_p=_floats(controls[:, MIN_P]),
      top_k=controls[:, TOP_K],
      seed=jax.lax.bitcast_convert_type(controls[:, SEED], jnp.uint32))

  # Outside of the loop, which would cut them out again in every step.
  layers = [jax.tree.map(lambda p, i=i: p[i], params["layers"])
            for i in range(model_config.num_layers)]

  def one_step(carry: _Carry) -> _Carry:
    is_active = carry.left > 0
    positions = starts + carry.step
    hidden, k, v = _forward(
        params, layers, model_config, carry, rows, positions=positions,
        starts=starts)
    logits = model.logits(params, model_config, hidden).astype(jnp.float32)
    ids, logprobs = sampling.sample(
        logits, positions + 1, params_of, num_ids=num_ids,
        is_filtered=is_filtered)
    is_stop = is_active & jnp.any(ids[:, None] == stop_ids, axis=-1)
    rich = carry.rich
    if rich is not None and chosen is not None:
      scaled = sampling.scale(logits, params_of.temperature, num_ids=num_ids)
      rich = _put_rich(rich, carry.step, scaled, chosen)
    return _Carry(
        step=carry.step + 1,
        ids=jnp.where(is_active, ids, carry.ids),
        left=jnp.where(is_stop, 0, jnp.maximum(carry.left - 1, 0)),
        counts=carry.counts + is_active,
        is_stopped=carry.is_stopped | is_stop,
        k=k, v=v,
        sampled=carry.sampled.at[carry.step].set(ids),
        logprobs=carry.logprobs.at[carry.step].set(logprobs),
        rich=rich)

  carry = jax.lax.while_loop(
      lambda c: (c.step < num_steps) & jnp.any(c.left > 0), one_step,
      _start(controls, rows, num_steps, chosen))
  if slots is None:
    slots = jnp.arange(controls.shape[0])
  cache = cache_lib.append(cache, slots, carry.k, carry.v, starts)
  packed = jnp.concatenate([
      carry.sampled,
      jax.lax.bitcast_convert_type(carry.logprobs, jnp.int32),
      carry.counts[None], carry.is_stopped[None].astype(jnp.int32)])
  return cache, packed, carry.rich


def score(
    params: Any, *, ids: jax.Array, temperature: jax.Array,
    chosen: jax.Array, model_config: model.ModelConfig, num_ids: int,
) -> PromptLogprobs:
  """Log-probabilities of a given sequence.

  Args:
    params: the weights.
    ids: int32 [n], padded behind.
    temperature: float32 scalar; 0 counts as 1.
    chosen: int32 [M], ids of wanted log-probabilities.
    model_config: the model's configuration.
    num_ids: ids that may be sampled.

  Returns:
    Entry t speaks about ids[t] given those before; entry 0 is 0.
  """
  n = ids.shape[0]
  positions = jnp.arange(n)
  hidden = model.hidden(params, model_config, ids[None], positions[None],
                        jnp.ones((1, n), jnp.int32))[0]
  logits = model.logits(params, model_config, hidden)
  scaled = sampling.scale(
      logits, jnp.broadcast_to(temperature, (n,)), num_ids=num_ids)
  # The state at t - 1 speaks about id t.
  scaled = jnp.roll(scaled, 1, axis=0)
  top, top_ids = _top(scaled)
  is_known = (positions > 0)[:, None]
  logprobs = sampling.logprobs_at(scaled, ids[:, None])
  wanted = sampling.logprobs_at(
      scaled, jnp.broadcast_to(chosen, (n, chosen.shape[0])))
  return PromptLogprobs(
      logprobs=jnp.where(is_known, logprobs, 0.0)[:, 0],
      top_logprobs=jnp.where(is_known, top, 0.0), top_ids=top_ids,
      chosen_logprobs=jnp.where(is_known, wanted, 0.0))


def unpack(packed: np.ndarray, rich: Rich | None, rows: np.ndarray) -> Sampled:
  """Reads what `decode` has packed into one array, at some of its rows."""
  packed = packed[:, rows]
  num_steps = (len(packed) - 2) // 2
  if rich is not None:
    rich = Rich(*(x[:, rows] for x in rich))
  return Sampled(
      ids=packed[:num_steps],
      logprobs=packed[num_steps:2 * num_steps].view(np.float32),
      counts=packed[-2], is_stopped=packed[-1].astype(bool), rich=rich)


def _forward(
    params: Any, layers: Sequence[Any], model_config: model.ModelConfig,
    carry: _Carry, rows: cache_lib.Cache, *, positions: jax.Array,
    starts: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
  """One id per row: hidden [R, D], and k and v with this step's entries."""
  def put(recent: jax.Array, new: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(
        recent, new.astype(recent.dtype)[:, :, None], carry.step, axis=2)

  x = model.embed(params, model_config, carry.ids)
  ks, vs = [], []
  for i, layer_params in enumerate(layers):
    layer = model.layer(layer_params, model_config)
    q, k_new, v_new = layer.project(x, positions)
    k, v = put(carry.k[i], k_new), put(carry.v[i], v_new)
    mixed = attention.attend(
        q, rows.k[i], rows.v[i], k, v, starts, carry.step)
    x = layer.finish(x, mixed)
    ks.append(k)
    vs.append(v)
  return model.final_norm(params, model_config, x), tuple(ks), tuple(vs)


def _start(
    controls: jax.Array, rows: cache_lib.Cache, num_steps: int,
    chosen: jax.Array | None,
) -> _Carry:
  num_rows, num_kv_heads, width, _ = rows.k[0].shape
  recent = tuple(
      jnp.zeros((num_rows, num_kv_heads, num_steps, width), k.dtype)
      for k in rows.k)
  rich = None
  if chosen is not None:
    k = requests.MAX_TOP_LOGPROBS
    rich = Rich(
        top_logprobs=jnp.zeros((num_steps, num_rows, k), jnp.float32),
        top_ids=jnp.zeros((num_steps, num_rows, k), jnp.int32),
        chosen_logprobs=jnp.zeros(
            (num_steps, num_rows, chosen.shape[1]), jnp.float32))
  return _Carry(
      step=jnp.int32(0), ids=controls[:, ID], left=controls[:, LEFT],
      counts=jnp.zeros(num_rows, jnp.int32),
      is_stopped=jnp.zeros(num_rows, bool),
      k=recent, v=recent,
      sampled=jnp.zeros((num_steps, num_rows), jnp.int32),
      logprobs=jnp.zeros((num_steps, num_rows), jnp.float32), rich=rich)


def _put_rich(
    rich: Rich, step: jax.Array, scaled: jax.Array, chosen: jax.Array
) -> Rich:
  top, top_ids = _top(scaled)
  return Rich(
      top_logprobs=rich.top_logprobs.at[step].set(top),
      top_ids=rich.top_ids.at[step].set(top_ids),
      chosen_logprobs=rich.chosen_logprobs.at[step].set(
          sampling.logprobs_at(scaled, chosen)))


def _top(scaled: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The likeliest MAX_TOP_LOGPROBS of [..., V]: log-probabilities and ids."""
  logits, ids = jax.lax.top_k(
      scaled, min(requests.MAX_TOP_LOGPROBS, scaled.shape[-1]))
  return (logits - jax.nn.logsumexp(scaled, axis=-1, keepdims=True),
          ids.astype(jnp.int32))


def _floats(bits: jax.Array) -> jax.Array:
  """float32 of the bits in an int32 array."""
  return jax.lax.bitcast_convert_type(bits, jnp.float32)
