"""What lives on the device: weights, cache, and the compiled steps over them.

Every shape is fixed but for the cache's length, which takes a few values; so
the number of compilations is bounded (P33). Calls come from one thread.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rstar2_jax import config as config_lib
from rstar2_jax.engine import cache as cache_lib
from rstar2_jax.engine import requests
from rstar2_jax.engine import slots as slots_lib
from rstar2_jax.engine import steps
from rstar2_jax.policy import model


# At most one of so many slots at work: decode those alone. With fewer rows
# XLA's CPU kernels no longer round as with all.
_FEW = 2


class Device:
  """Weights and cache of one engine.

  Attributes:
    config: the shapes.
    model_config: the model's configuration.
    params: the weights in use.
    version: their name.
    num_compiled: compilations so far, by kind of step.
  """

  def __init__(
      self,
      params: Any,
      model_config: model.ModelConfig,
      config: config_lib.EngineConfig,
      *,
      version: str,
      num_ids: int,
  ):
    self.config = config
    self.model_config = model_config
    self.params = self._place(params)
    self.version = version
    self._lengths = cache_lib.lengths(config.max_seq_len)
    # With few sequences left, a dispatch over some rows costs less.
    self._row_counts = sorted({
        max(1, config.num_slots // _FEW), config.num_slots})
    self._cache = self._empty_cache()
    shapes: dict[str, Any] = {
        "model_config": model_config, "num_ids": num_ids}
    self._prefill = jax.jit(
        functools.partial(steps.prefill, model_config=model_config),
        donate_argnames="cache")
    self._decode = jax.jit(
        functools.partial(
            steps.decode, num_steps=config.decode_steps, **shapes),
        donate_argnames="cache", static_argnames="is_filtered")
    self._copy = jax.jit(cache_lib.copy_rows, donate_argnames="cache")
    self._grow = jax.jit(cache_lib.grow, static_argnames="length")
    self._score = jax.jit(functools.partial(steps.score, **shapes))

  @property
  def num_compiled(self) -> dict[str, int]:
    """Compiled shapes of each kind of step."""
    return {
        "prefill": _num_compiled(self._prefill),
        "decode": _num_compiled(self._decode),
        "copy": _num_compiled(self._copy),
        "grow": _num_compiled(self._grow),
        "score": _num_compiled(self._score),
    }

  @property
  def max_compiled(self) -> dict[str, int]:
    """Bounds of `num_compiled`."""
    n = len(self._lengths)
    # Forms of decode: with or without sorting, with or without top
    # log-probabilities; the plain one is enough for training.
    num_decode = 4 * n * len(self._row_counts)
    return {"prefill": n, "decode": num_decode, "copy": n, "grow": n,
            "score": n}

  def check_params(self, params: Any) -> None:
    """Raises ValueError where `params` cannot stand for the present ones."""
    old = jax.tree_util.tree_leaves_with_path(self.params)
    new = dict(jax.tree_util.tree_leaves_with_path(params))
    if len(new) != len(old) or any(path not in new for path, _ in old):
      raise ValueError("the new parameters have other names than those in use")
    for path, leaf in old:
      x = new[path]
      if x.shape != leaf.shape or x.dtype != leaf.dtype:
        raise ValueError(
            f"parameter {jax.tree_util.keystr(path)} is {x.dtype}"
            f"{list(x.shape)}, in use is {leaf.dtype}{list(leaf.shape)}")

  def set_params(self, params: Any, version: str) -> None:
    """Replaces the weights; the caller decides what becomes of the KV."""
    self.params = self._place(params)
    self.version = version

  def clear(self) -> None:
    """Drops all KV and falls back to the smallest cache."""
    self._cache = self._empty_cache()

  def copy_prefixes(self, copies: Sequence[slots_lib.Copy]) -> None:
    """Copies KV between slots."""
    rows = self.config.prefill_rows
    for start in range(0, len(copies), rows):
      some = copies[start:start + rows]
      sources = self._pad([c.source for c in some], rows)
      destinations = self._pad([c.destination for c in some], rows)
      self._cache = self._copy(self._cache, sources, destinations)

  def prefill(
      self, slots: np.ndarray, ids: np.ndarray, starts: np.ndarray,
      counts: np.ndarray,
  ) -> None:
    """Computes KV of a chunk of each of some prompts.

    Args:
      slots: int [n], n at most `prefill_rows`.
      ids: int32 [N, S], known ids of all slots.
      starts: int32 [n], first position of each chunk.
      counts: int32 [n], ids in it, at most `prefill_chunk`.
    """
    self._make_room(int((starts + counts).max()))
    offsets = np.arange(self.config.prefill_chunk)
    positions = starts[:, None] + offsets
    inside = offsets < counts[:, None]
    tokens = np.zeros((self.config.prefill_rows, len(offsets)), np.int32)
    where = np.full_like(tokens, steps.NOWHERE)
    columns = np.minimum(positions, ids.shape[1] - 1)
    tokens[:len(slots)] = np.where(inside, ids[slots[:, None], columns], 0)
    where[:len(slots)] = np.where(inside, positions, steps.NOWHERE)
    self._cache = self._prefill(
        self.params, cache=self._cache,
        slots=self._pad(slots, self.config.prefill_rows), ids=tokens,
        positions=where)

  def decode(
      self, slots: np.ndarray, controls: np.ndarray,
      chosen: np.ndarray | None, *, num_positions: int,
  ) -> steps.Sampled:
    """Samples up to `decode_steps` ids in each of some slots.

    Args:
      slots: int [n], ascending.
      controls: int32 [n, NUM_CONTROLS], see `steps`.
      chosen: int32 [n, M], ids whose log-probabilities are wanted; None: no
        request wants those or top log-probabilities.
      num_positions: cache entries that the longest slot may need.

    Returns:
      Host arrays whose rows are those of `slots`.
    """
    self._make_room(num_positions)
    num_rows = next(n for n in self._row_counts if n >= len(slots))
    is_whole = num_rows == self.config.num_slots
    # All slots: each in its own row. Some: packed to the front.
    rows = slots if is_whole else np.arange(len(slots))

    def place(values: np.ndarray) -> np.ndarray:
      result = np.zeros((num_rows, values.shape[1]), values.dtype)
      result[rows] = values
      return result

    placed = place(controls)
    # Rows of others must not write into the KV of their slots.
    placed[np.setdiff1d(np.arange(num_rows), rows), steps.POSITION] = (
        steps.NOWHERE)
    self._cache, packed, rich = self._decode(
        self.params, cache=self._cache,
        slots=None if is_whole else self._pad(slots, num_rows),
        controls=placed,
        chosen=None if chosen is None else place(chosen),
        is_filtered=_is_filtered(controls))
    return steps.unpack(np.asarray(packed), jax.device_get(rich), rows)

  def score(self, ids: np.ndarray, temperature: float) -> np.ndarray:
    """float32 [n]: log-probabilities of `ids`, 0 at the first."""
    return self.score_rich(ids, temperature, requests.Extras()).logprobs

  def score_rich(
      self, ids: np.ndarray, temperature: float, extras: requests.Extras
  ) -> steps.PromptLogprobs:
    """`score` with top and chosen log-probabilities; see there."""
    length = next(n for n in self._lengths if n >= len(ids))
    padded = np.zeros(length, np.int32)
    padded[:len(ids)] = ids
    chosen = np.zeros(requests.MAX_CHOSEN_IDS, np.int32)
    chosen[:len(extras.chosen_ids)] = extras.chosen_ids
    out = self._score(
        self.params, ids=padded, temperature=np.float32(temperature),
        chosen=chosen)
    out = jax.tree.map(lambda x: np.asarray(x)[:len(ids)], out)
    k = extras.num_top_logprobs
    return out._replace(
        top_logprobs=out.top_logprobs[:, :k], top_ids=out.top_ids[:, :k],
        chosen_logprobs=out.chosen_logprobs[:, :len(extras.chosen_ids)])

  def warm_up(self) -> None:
    """Compiles all steps for all lengths of the cache."""
    one = np.zeros(1, np.int32)
    for length in self._lengths:
      self._make_room(length)
      self.copy_prefixes([slots_lib.Copy(0, 0, 0)])
      self.prefill(one, np.zeros((self.config.num_slots, 1), np.int32), one,
                   one + 1)
      for num_rows in self._row_counts:
        self.decode(
            np.arange(num_rows),
            np.zeros((num_rows, steps.NUM_CONTROLS), np.int32), None,
            num_positions=length)
    self.clear()

  def _place(self, params: Any) -> Any:
    """On the device, so that every dispatch finds arrays of one sharding."""
    # The learner's arrays name a mesh and those of a file are numpy's; jit
    # would compile once more for each. Arrays already here are not copied.
    return jax.device_put(
        params, jax.sharding.SingleDeviceSharding(jax.devices()[0]))

  def _pad(
      self, slots: Sequence[int] | np.ndarray, num_rows: int
  ) -> np.ndarray:
    """int32 [num_rows]; the rest names no slot."""
    result = np.full(num_rows, self.config.num_slots, np.int32)
    result[:len(slots)] = slots
    return result

  def _make_room(self, num_positions: int) -> None:
    num_positions = min(num_positions, self._lengths[-1])
    if num_positions > self._cache.length:
      length = next(n for n in self._lengths if n >= num_positions)
      self._cache = self._grow(self._cache, length=length)

  def _empty_cache(self) -> cache_lib.Cache:
    c = self.model_config
    return cache_lib.empty(
        num_layers=c.num_layers, num_slots=self.config.num_slots,
        length=self._lengths[0], num_kv_heads=c.num_kv_heads,
        head_dim=c.head_dim, dtype=jnp.dtype(c.dtype), sharding=None)


def _is_filtered(controls: np.ndarray) -> bool:
  """Whether any row asks for top-k, top-p or min-p."""
  def floats(column: int) -> np.ndarray:
    return controls[:, column].view(np.float32)
  return bool(np.any(
      (controls[:, steps.TOP_K] > 0) | (floats(steps.TOP_P) < 1)
      | (floats(steps.MIN_P) > 0)))


def _num_compiled(function: Any) -> int:
  """Shapes that a jitted function was compiled for; JAX has no public name."""
  return function._cache_size()
