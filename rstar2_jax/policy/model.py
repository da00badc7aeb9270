"""The policy: a decoder of the Qwen3, Qwen2 or Llama family in Flax NNX.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied
head. Qwen3 has norms on queries and keys, Qwen2 biases on their projections,
Llama (SmolLM2) neither. The modules declare parameters and say what a layer
does; what the rest of the code calls are pure functions over the parameters, a
nested dict of arrays in which layers are stacked:

    {"embed_tokens": {"embedding": [V, D]}, "norm": {"scale": [D]},
     "layers": {"self_attn": {"q_proj": {"kernel": [L, D, H * d]}, ...}, ...},
     "lm_head": {"kernel": [D, V]}}            # absent where tied

Parameters are float32; matrix products run in `ModelConfig.dtype`; norms,
softmax and logits in float32.

Letters: R rows, T tokens, B sequences, C chunk, S cache entries, L layers, D
hidden size, H and Hk query and key/value heads, d head width, V vocabulary.
"""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

from flax import nnx
import jax
import jax.numpy as jnp

from rstar2_jax.policy import attention as attention_lib
from rstar2_jax.policy import rope

Params = Mapping[str, Any]

# model_type: name of the class, norms on queries and keys, biases.
_FAMILIES = {
    "qwen3": ("Qwen3ForCausalLM", True, False),
    "qwen2": ("Qwen2ForCausalLM", False, True),
    "llama": ("LlamaForCausalLM", False, False),
}

# Layers up to this number are unrolled: faster to run, slower to compile.
_MAX_UNROLLED_LAYERS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """Architecture, in the terms of Hugging Face's config.json."""

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  rope_theta: float = 10_000.0
  rope_scaling: rope.Scaling = rope.Scaling()
  rms_norm_eps: float = 1e-6
  tie_word_embeddings: bool = True
  qk_norm: bool = True  # Qwen3
  attention_bias: bool = False  # Qwen2: on queries, keys and values
  max_position_embeddings: int = 32_768
  dtype: str = "float32"  # of matrix products
  remat: bool = False  # recompute layers in the backward pass
  attention: attention_lib.Kind = "auto"  # over packed rows, see attention.Kind

  @classmethod
  def from_hf(cls, values: Mapping[str, Any], *, dtype: str = "float32",
              remat: bool = False) -> "ModelConfig":
    """Reads a config.json.

    Args:
      values: its content.
      dtype: compute dtype.
      remat: recompute layers in the backward pass.

    Raises:
      ValueError: an architecture or option that this model does not have.
    """
    kind = values.get("model_type")
    if kind not in _FAMILIES:
      raise ValueError(f"model_type {kind!r}: only {', '.join(_FAMILIES)} are"
                       " known")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
      if values.get(name):
        raise ValueError(f"config.json sets {name}, which is not supported")
    parameters = values.get("rope_parameters") or {}
    if values.get("hidden_act", "silu") != "silu":
      raise ValueError(f"hidden_act {values['hidden_act']!r}: only silu")
    num_heads = values["num_attention_heads"]
    return cls(
        vocab_size=values["vocab_size"], hidden_size=values["hidden_size"],
        intermediate_size=values["intermediate_size"],
        num_layers=values["num_hidden_layers"], num_heads=num_heads,
        num_kv_heads=values.get("num_key_value_heads") or num_heads,
        head_dim=values.get("head_dim") or values["hidden_size"] // num_heads,
        rope_theta=float(values.get("rope_theta")
                         or parameters.get("rope_theta", 10_000.0)),
        rope_scaling=rope.Scaling.from_hf(values),
        rms_norm_eps=values.get("rms_norm_eps", 1e-6),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
        qk_norm=_FAMILIES[kind][1], attention_bias=_FAMILIES[kind][2],
        max_position_embeddings=values.get("max_position_embeddings", 32_768),
        dtype=dtype, remat=remat)

  def to_hf(self) -> dict[str, Any]:
    """The content of a config.json that transformers and SGLang read."""
    kind, name = next(
        (kind, name) for kind, (name, *parts) in _FAMILIES.items()
        if parts == [self.qk_norm, self.attention_bias])
    values = {
        "architectures": [name], "model_type": kind,
        "vocab_size": self.vocab_size, "hidden_size": self.hidden_size,
        "intermediate_size": self.intermediate_size,
        "num_hidden_layers": self.num_layers,
        "num_attention_heads": self.num_heads,
        "num_key_value_heads": self.num_kv_heads, "head_dim": self.head_dim,
        "hidden_act": "silu", "rope_theta": self.rope_theta,
        "rms_norm_eps": self.rms_norm_eps,
        "tie_word_embeddings": self.tie_word_embeddings,
        "max_position_embeddings": self.max_position_embeddings,
        "torch_dtype": "float32",
    }
    if self.rope_scaling.rope_type != "default":
      values["rope_scaling"] = self.rope_scaling.to_hf()
    # Qwen2's biases are part of the family; the field would be read as Llama's.
    return values if self.attention_bias else values | {"attention_bias": False}


class KVCache(NamedTuple):
  """Keys and values by position."""

  k: jax.Array  # [L, B, S, Hk, d]
  v: jax.Array  # [L, B, S, Hk, d]


class SelfAttention(nnx.Module):
  """Projections and norms around an attention that the caller chooses."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    linear = functools.partial(
        _linear, config=config, rngs=rngs, use_bias=config.attention_bias)
    width, kv_width = (n * config.head_dim
                       for n in (config.num_heads, config.num_kv_heads))
    self.q_proj = linear(config.hidden_size, width)
    self.k_proj = linear(config.hidden_size, kv_width)
    self.v_proj = linear(config.hidden_size, kv_width)
    self.o_proj = _linear(
        width, config.hidden_size, config=config, rngs=rngs)
    if config.qk_norm:
      self.q_norm = _norm(config.head_dim, config, rngs)
      self.k_norm = _norm(config.head_dim, config, rngs)
    self.config = config

  def project(
      self, x: jax.Array, positions: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q [..., H, d], k and v [..., Hk, d] of x [..., D]; q and k rotated."""
    q, k, v = (
        proj(x).reshape(*x.shape[:-1], -1, self.config.head_dim)
        for proj in (self.q_proj, self.k_proj, self.v_proj))
    if self.config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    cos, sin = rope.rotary(
        positions, self.config.rope_scaling, theta=self.config.rope_theta,
        head_dim=self.config.head_dim)
    return rope.rotate(q, cos, sin), rope.rotate(k, cos, sin), v


class Mlp(nnx.Module):
  """SwiGLU."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    linear = functools.partial(_linear, config=config, rngs=rngs)
    self.gate_proj = linear(config.hidden_size, config.intermediate_size)
    self.up_proj = linear(config.hidden_size, config.intermediate_size)
    self.down_proj = linear(config.intermediate_size, config.hidden_size)

  def __call__(self, x: jax.Array) -> jax.Array:
    return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nnx.Module):
  """Pre-norm attention and MLP, each added to the stream."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    self.input_layernorm = _norm(config.hidden_size, config, rngs)
    self.self_attn = SelfAttention(config, rngs)
    self.post_attention_layernorm = _norm(config.hidden_size, config, rngs)
    self.mlp = Mlp(config, rngs)

  def project(self, x, positions):
    """See SelfAttention.project, after the layer's norm."""
    return self.self_attn.project(self.input_layernorm(x), positions)

  def finish(self, x: jax.Array, mixed: jax.Array) -> jax.Array:
    """x [..., D] after attention gave `mixed` [..., H, d]."""
    x = x + self.self_attn.o_proj(mixed.reshape(*mixed.shape[:-2], -1))
    return x + self.mlp(self.post_attention_layernorm(x))


class Policy(nnx.Module):
  """All parameters; layers are stacked along a leading axis."""

  def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
    normal = nnx.initializers.normal(0.02)
    self.embed_tokens = nnx.Embed(
        config.vocab_size, config.hidden_size, embedding_init=normal,
        rngs=rngs)
    self.norm = _norm(config.hidden_size, config, rngs)
    if not config.tie_word_embeddings:
      self.lm_head = _linear(
          config.hidden_size, config.vocab_size, config=config, rngs=rngs)

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def stack(rngs: nnx.Rngs) -> DecoderLayer:
      return DecoderLayer(config, rngs)

    self.layers = stack(rngs)


def init(config: ModelConfig, seed: int) -> Params:
  """Fresh parameters: normal(0.02), norms 1, as Qwen3 is initialized.

  Args:
    config: the architecture.
    seed: of the draws.

  Returns:
    Nested dict of float32 arrays; see the module's docstring.
  """
  model = Policy(config, nnx.Rngs(seed))
  return nnx.to_pure_dict(nnx.state(model, nnx.Param))


@functools.lru_cache(maxsize=16)
def _layer_graph(config: ModelConfig) -> nnx.GraphDef:
  layer = nnx.eval_shape(lambda: DecoderLayer(config, nnx.Rngs(0)))
  return nnx.split(layer)[0]


def layer(params: Params, config: ModelConfig) -> DecoderLayer:
  """The module of one layer over its slice of `params["layers"]`."""
  graph = _layer_graph(config)
  return nnx.merge(graph, params)


def hidden(
    params: Params, config: ModelConfig, tokens: jax.Array,
    positions: jax.Array, segment_ids: jax.Array, *,
    mesh: jax.sharding.Mesh | None = None,
) -> jax.Array:
  """Final hidden states of packed rows.

  Args:
    params: the weights.
    config: the architecture.
    tokens: int32 [R, T].
    positions: int32 [R, T], from 0 within each segment.
    segment_ids: int32 [R, T]; 0 is padding, whose output means nothing.
    mesh: over which rows and heads are cut; None: one device.

  Returns:
    [R, T, D] in the compute dtype, after the last norm.
  """
  def one_layer(x, layer_params):
    block = layer(layer_params, config)
    q, k, v = block.project(x, positions)
    mixed = attention_lib.packed(
        q, k, v, segment_ids, kind=config.attention, mesh=mesh)
    return block.finish(x, mixed), None

  if config.remat:
    one_layer = jax.checkpoint(one_layer)
  x = embed(params, config, tokens)
  x, _ = jax.lax.scan(
      one_layer, x, params["layers"], unroll=_unroll(config))
  return final_norm(params, config, x)


def extend(
    params: Params, config: ModelConfig, tokens: jax.Array,
    positions: jax.Array, cache: KVCache,
) -> tuple[jax.Array, KVCache]:
  """Hidden states of the next tokens of sequences, and the longer cache.

  Args:
    params: the weights.
    config: the architecture.
    tokens: int32 [B, C].
    positions: int32 [B, C]; those at S and beyond are padding: nothing is
      written for them and their output means nothing.
    cache: entries of all earlier positions.

  Returns:
    [B, C, D] after the last norm, and the cache with the new entries.
  """
  rows = jnp.arange(tokens.shape[0])[:, None]

  def one_layer(x, xs):
    layer_params, k_cache, v_cache = xs
    block = layer(layer_params, config)
    q, k, v = block.project(x, positions)
    k_cache = k_cache.at[rows, positions].set(
        k.astype(k_cache.dtype), mode="drop")
    v_cache = v_cache.at[rows, positions].set(
        v.astype(v_cache.dtype), mode="drop")
    mixed = attention_lib.cached(q, k_cache, v_cache, positions)
    return block.finish(x, mixed), (k_cache, v_cache)

  x = embed(params, config, tokens)
  x, (k, v) = jax.lax.scan(
      one_layer, x, (params["layers"], cache.k, cache.v),
      unroll=_unroll(config))
  return final_norm(params, config, x), KVCache(k, v)


def logits(
    params: Params, config: ModelConfig, hidden_states: jax.Array
) -> jax.Array:
  """float32 [..., V] of hidden states [..., D]."""
  if config.tie_word_embeddings:
    kernel = params["embed_tokens"]["embedding"].T
  else:
    kernel = params["lm_head"]["kernel"]
  return jnp.matmul(hidden_states, kernel.astype(config.dtype),
                    preferred_element_type=jnp.float32)


def embed(params: Params, config: ModelConfig, tokens: jax.Array) -> jax.Array:
  """[..., D] of ids [...]."""
  return params["embed_tokens"]["embedding"].astype(config.dtype)[tokens]


def final_norm(
    params: Params, config: ModelConfig, x: jax.Array
) -> jax.Array:
  """The norm after the last layer."""
  x32 = x.astype(jnp.float32)
  variance = jnp.mean(jnp.square(x32), axis=-1, keepdims=True)
  x32 = x32 * jax.lax.rsqrt(variance + config.rms_norm_eps)
  return (x32 * params["norm"]["scale"]).astype(x.dtype)


def _unroll(config: ModelConfig) -> int:
  return (config.num_layers if config.num_layers <= _MAX_UNROLLED_LAYERS
          else 1)


def _linear(
    num_in: int, num_out: int, *, config: ModelConfig, rngs: nnx.Rngs,
    use_bias: bool = False,
) -> nnx.Linear:
  return nnx.Linear(
      num_in, num_out, use_bias=use_bias, dtype=jnp.dtype(config.dtype),
      kernel_init=nnx.initializers.normal(0.02), rngs=rngs)


def _norm(width: int, config: ModelConfig, rngs: nnx.Rngs) -> nnx.RMSNorm:
  return nnx.RMSNorm(
      width, epsilon=config.rms_norm_eps, dtype=jnp.dtype(config.dtype),
      rngs=rngs)
