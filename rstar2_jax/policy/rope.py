"""Rotary positions and the ways in which config.json stretches them.

  default  RoFormer (arXiv 2104.09864).
  linear   positions divided by a factor (arXiv 2306.15595).
  llama3   slow frequencies divided, fast ones kept, a ramp between (Llama 3.1).
  yarn     likewise with a ramp over dimensions, and sharper attention
           (arXiv 2309.00071).

"dynamic" and others depend on the length of each sequence, which a cache and
packed rows do not have; they are refused by name.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# By type: options that it needs, and those that it may have. The order of
# fields is that of config.json's documentation.
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor",
               "original_max_position_embeddings"),
    "yarn": ("factor",),
}
_OPTIONAL = {
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow",
             "attention_factor", "mscale", "mscale_all_dim", "truncate"),
}
_IGNORED = ("rope_type", "type", "rope_theta")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
  """How rotary positions are stretched, in the terms of config.json."""

  rope_type: str = "default"
  options: tuple[tuple[str, float], ...] = ()  # sorted by name

  @classmethod
  def from_hf(cls, values: Mapping[str, Any]) -> "Scaling":
    """Reads it from the content of a config.json.

    Args:
      values: with `rope_scaling`, `rope_parameters` or neither.

    Raises:
      ValueError: a type or option that is not known, or one is missing.
    """
    name = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    given = dict(values.get(name) or {})
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _NEEDED:
      raise ValueError(f"{name} has rope_type {kind!r}: only"
                       f" {', '.join(_NEEDED)} are known")
    options = {k: v for k, v in given.items()
               if k not in _IGNORED and v is not None}
    if kind == "yarn":
      options.setdefault("original_max_position_embeddings",
                         values.get("max_position_embeddings"))
    partial = options.pop("partial_rotary_factor", 1.0)
    if partial != 1.0:
      raise ValueError(f"{name} has partial_rotary_factor {partial}: only 1")
    for needed in _NEEDED[kind]:
      if needed not in options:
        raise ValueError(f"{name} of rope_type {kind!r}: {needed} is missing")
    known = _NEEDED[kind] + _OPTIONAL.get(kind, ())
    for option, value in options.items():
      # Old configurations name the original length for every type.
      if option not in known and option != "original_max_position_embeddings":
        raise ValueError(f"{name} of rope_type {kind!r}: {option} is unknown")
      if not isinstance(value, (int, float)):
        raise ValueError(f"{name}: {option} is {value!r}, not a number")
    return cls(rope_type=kind, options=tuple(sorted(
        (k, v) for k, v in options.items() if k in known)))

  def to_hf(self) -> dict[str, Any]:
    """What config.json says under `rope_scaling`."""
    return {"rope_type": self.rope_type, **dict(self.options)}


def frequencies(
    scaling: Scaling, *, theta: float, head_dim: int
) -> tuple[np.ndarray, float]:
  """Angles per position, and the factor on cosine and sine.

  Args:
    scaling: how positions are stretched.
    theta: base of the wavelengths.
    head_dim: width d of a head.

  Returns:
    float32 [d / 2] in radians per position, and the factor.
  """
  half = head_dim // 2
  plain = theta ** (-np.arange(half, dtype=np.float64) / half)
  options = dict(scaling.options)
  factor = options.get("factor", 1.0)
  if scaling.rope_type == "llama3":
    return _llama3(plain, options).astype(np.float32), 1.0
  if scaling.rope_type == "yarn":
    kept = _yarn_kept(options, theta, half)
    stretched = plain * kept + plain / factor * (1 - kept)
    return stretched.astype(np.float32), _yarn_factor(options)
  return (plain / factor).astype(np.float32), 1.0


def rotary(
    positions: jax.Array, scaling: Scaling, *, theta: float, head_dim: int
) -> tuple[jax.Array, jax.Array]:
  """cos and sin, float32 [..., 1, d / 2], of positions [...]."""
  table, factor = frequencies(scaling, theta=theta, head_dim=head_dim)
  angles = positions[..., None, None].astype(jnp.float32) * table
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
  """Rotates the two halves of each head of x [..., heads, d]."""
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate(
      [a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _llama3(plain: np.ndarray, options: Mapping[str, float]) -> np.ndarray:
  """How often a wave fits into the original length decides its stretch."""
  turns = options["original_max_position_embeddings"] * plain / (2 * math.pi)
  low, high = options["low_freq_factor"], options["high_freq_factor"]
  kept = np.clip((turns - low) / (high - low), 0, 1)
  return plain * kept + plain / options["factor"] * (1 - kept)


def _yarn_kept(
    options: Mapping[str, float], theta: float, half: int
) -> np.ndarray:
  """[half]: 1 where a dimension turns often and is kept, 0 where stretched."""
  length = options["original_max_position_embeddings"]

  def dimension(turns: float) -> float:
    """The one that turns so often within the original length."""
    return half * math.log(length / (turns * 2 * math.pi)) / math.log(theta)

  first = dimension(options.get("beta_fast") or 32)
  last = dimension(options.get("beta_slow") or 1)
  if options.get("truncate", True):
    first, last = math.floor(first), math.ceil(last)
  first, last = max(first, 0), min(last, 2 * half - 1)
  ramp = (np.arange(half) - first) / max(last - first, 1e-3)
  return 1 - np.clip(ramp, 0, 1)


def _yarn_factor(options: Mapping[str, float]) -> float:
  if options.get("attention_factor") is not None:
    return float(options["attention_factor"])

  def magnitude(scale: float) -> float:
    factor = options["factor"]
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

  scale, scale_all = options.get("mscale"), options.get("mscale_all_dim")
  if scale and scale_all:
    return magnitude(scale) / magnitude(scale_all)
  return magnitude(1.0)
