"""Every way of attention gives the numbers of one written out in numpy."""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax.policy import attention
from rstar2_jax.policy import kernels

_LENGTH = 256
_WAYS = {
    "xla": functools.partial(attention.packed, kind="xla"),
    "chunked": functools.partial(attention.packed, kind="chunked"),
    "splash": functools.partial(kernels.splash, interpret=True),
    "triton": functools.partial(kernels.triton, interpret=True),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
  """Several blocks in a short row."""
  monkeypatch.setattr(attention, "_QUERY_BLOCK", 64)
  monkeypatch.setattr(attention, "_KEY_BLOCK", 64)


def _inputs(length=_LENGTH, seed=0, heads=(4, 2), width=16):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.normal(size=(2, length, h, width)), jnp.float32)
          for h in (heads[0], heads[1], heads[1])]


def _segments(length=_LENGTH):
  """Edges at, beside and far from those of blocks; padding; one long one."""
  index = np.arange(length)
  many = np.searchsorted([5, 64, 127, 128, 200], index, side="right") + 1
  return jnp.asarray(np.stack([
      np.where(index < length - 20, many, 0), np.ones(length)]), jnp.int32)


def _by_hand(q, k, v, segments):
  """[R, T, H, D] in float64, one query at a time."""
  q, k, v, segments = (
      np.asarray(x, np.float64) for x in (q, k, v, segments))
  k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
  out = np.zeros_like(q)
  for r, t in np.ndindex(q.shape[:2]):
    seen = np.flatnonzero(segments[r, :t + 1] == segments[r, t])
    scores = np.einsum("hd,khd->hk", q[r, t], k[r, seen]) / q.shape[-1]**0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out[r, t] = np.einsum("hk,khd->hd", weights, v[r, seen])
  return out


@pytest.mark.parametrize("way", _WAYS)
def test_values_are_those_written_out(way):
  q, k, v = _inputs()
  np.testing.assert_allclose(
      jax.jit(_WAYS[way])(q, k, v, _segments()),
      _by_hand(q, k, v, _segments()), atol=2e-6)


@pytest.mark.parametrize("way", ["chunked", "splash", "triton"])
def test_gradients_are_those_of_the_plain_way(way):
  inputs = _inputs()
  weights = jnp.asarray(
      np.random.default_rng(1).normal(size=inputs[0].shape), jnp.float32)

  def gradients(way):
    return jax.jit(jax.grad(
        lambda *x: jnp.sum(weights * _WAYS[way](*x, _segments())),
        (0, 1, 2)))(*inputs)

  for ours, plain in zip(gradients(way), gradients("xla"), strict=True):
    np.testing.assert_allclose(ours, plain, atol=1e-5)


@pytest.mark.parametrize("length", [1, 63, 130])
def test_rows_of_any_length_in_chunks(length):
  q, k, v = _inputs(length)
  segments = _segments(length)
  np.testing.assert_allclose(
      attention.packed(q, k, v, segments, kind="chunked"),
      _by_hand(q, k, v, segments), atol=2e-6)


def test_bfloat16_stays_near_float32():
  q, k, v = (x.astype(jnp.bfloat16) for x in _inputs())
  for way in ("xla", "chunked"):
    mixed = _WAYS[way](q, k, v, _segments())
    assert mixed.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        mixed.astype(jnp.float32), _by_hand(q, k, v, _segments()), atol=0.03)


class TestLeaks:
  """P13: what another segment holds changes not one bit."""

  @pytest.mark.parametrize("way", _WAYS)
  @hypothesis.settings(
      max_examples=6, deadline=None,
      suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
  @hypothesis.given(edge=st.integers(2, _LENGTH - 2), seed=st.integers(0, 99),
                    is_first_kept=st.booleans())
  def test_a_segment_knows_nothing_of_the_other(
      self, way, edge, seed, is_first_kept):
    segments = jnp.where(jnp.arange(_LENGTH) < edge, 1, 2)[None].repeat(2, 0)
    is_kept = (segments == 1) == is_first_kept
    def at_kept(inputs):
      run = _jitted(way)
      mixed, slopes = run(*inputs, segments, is_kept)
      return [np.asarray(x)[np.asarray(is_kept)] for x in (mixed, *slopes)]
    mine, other = _inputs(seed=seed), _inputs(seed=seed + 1)
    changed = [jnp.where(is_kept[..., None, None], a, 100 * b)
               for a, b in zip(mine, other, strict=True)]
    for before, after in zip(at_kept(mine), at_kept(changed), strict=True):
      assert np.abs(before).max() > 0
      np.testing.assert_array_equal(before, after)


@functools.cache
def _jitted(way):
  """Values, and slopes of a sum over the kept tokens."""
  def total(q, k, v, segments, is_kept):
    mixed = _WAYS[way](q, k, v, segments)
    return jnp.sum(jnp.where(is_kept[..., None, None], mixed**2, 0.0)), mixed

  def both(*inputs):
    slopes, mixed = jax.grad(total, (0, 1, 2), has_aux=True)(*inputs)
    return mixed, slopes
  return jax.jit(both)


def test_memory_in_chunks_grows_with_the_length_and_not_its_square(monkeypatch):
  monkeypatch.setattr(attention, "_KEY_BLOCK", 512)
  def temp_bytes(length):
    def shape(heads):
      return jax.ShapeDtypeStruct((1, length, heads, 64), jnp.float32)
    return jax.jit(jax.grad(lambda q, k, v, s: jnp.sum(attention.packed(
        q, k, v, s, kind="chunked")), (0, 1, 2))).lower(
            shape(4), shape(2), shape(2),
            jax.ShapeDtypeStruct((1, length), jnp.int32)
        ).compile().memory_analysis().temp_size_in_bytes
  short, long = temp_bytes(4096), temp_bytes(16_384)
  assert long < 4.5 * short
  assert long < 16_384**2  # one byte per pair, of one head


def test_the_backend_chooses():
  chosen = attention._automatic  # pylint: disable=protected-access
  assert chosen(14_336, "tpu") == "splash"
  assert chosen(14_336, "gpu") == "triton"
  assert chosen(100, "tpu") == "xla"  # no multiple of 128
  assert chosen(14_336, "cpu") == "chunked"


@pytest.mark.parametrize("kind, message", [
    ("splash", "row_tokens in multiples of 128, not 100"),
    ("flash9", "attention 'flash9': must be auto, xla"),
])
def test_what_cannot_be_is_one_line(kind, message):
  q, k, v = _inputs(100)
  with pytest.raises(ValueError, match=message):
    attention.packed(q, k, v, _segments(100), kind=kind)


@pytest.mark.parametrize("kind, row_tokens, backend, message", [
    ("auto", 100, "cpu", ""), ("xla", 100, "tpu", ""),
    ("splash", 256, "tpu", ""), ("triton", 256, "gpu", ""),
    ("splash", 256, "cpu", "TPU.*runs on cpu"),
    ("triton", 256, "tpu", "GPU.*runs on tpu"),
    ("splash", 100, "tpu", "--batch.row_tokens.*128, not 100")])
def test_what_a_backend_cannot_is_said_before_anything_starts(
    kind, row_tokens, backend, message):
  if not message:
    attention.check(kind, row_tokens, backend)
    return
  with pytest.raises(ValueError, match=message):
    attention.check(kind, row_tokens, backend)
