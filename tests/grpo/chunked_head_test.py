"""The head in chunks: the numbers of the whole, without its memory."""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax.grpo import losses

_VOCABULARY = 151_936  # of Qwen3
_NUM_IDS = 151_669  # of its tokenizer: the rest is padding of the head


def _naive(states, head, tokens, segments, temperature, num_ids):
  """Scores from logits of the whole batch, without any shared code."""
  logits = (states @ head)[:, :-1, :num_ids] / temperature
  probs = jnp.exp(logits) / jnp.sum(jnp.exp(logits), -1, keepdims=True)
  chosen = jnp.take_along_axis(probs, tokens[:, 1:, None], -1)[..., 0]
  entropy = -jnp.sum(probs * jnp.log(probs), -1)
  is_inside = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
  return (jnp.where(is_inside, jnp.log(chosen), 0.0),
          jnp.where(is_inside, entropy, 0.0))


class TestValues:

  @hypothesis.settings(max_examples=12, deadline=None)
  @hypothesis.given(
      num_rows=st.integers(1, 3), length=st.integers(2, 13),
      chunk=st.integers(1, 45), temperature=st.sampled_from([0.6, 1.0, 1.3]),
      padding=st.integers(0, 3), scale=st.sampled_from([1.0, 8.0]),
      seed=st.integers(0, 9))
  def test_values_and_gradients_are_those_of_the_naive_form(
      self, num_rows, length, chunk, temperature, padding, scale, seed):
    """P05, P08, P09: whatever the chunk, temperature and head padding."""
    rng = np.random.default_rng(seed)
    num_ids = 11 - padding
    states, head = rng.normal(size=(num_rows, length, 5)), rng.normal(
        size=(5, 11)) * scale
    tokens = jnp.asarray(rng.integers(0, num_ids, (num_rows, length)))
    segments = jnp.asarray(
        np.sort(rng.integers(0, 3, (num_rows, length)), axis=1))
    weights = rng.normal(size=(2, num_rows, length - 1))

    def chunked(states, head):
      scores = losses.token_logprobs(
          states, tokens, segments, lambda x: x @ head,
          temperature=temperature, num_ids=num_ids, chunk_tokens=chunk)
      return scores.logprobs[:, 1:], scores.entropy[:, 1:]

    def naive(states, head):
      return _naive(states, head, tokens, segments, temperature, num_ids)

    @functools.partial(jax.jit, static_argnums=0)
    def both(of, *inputs):
      def total(*inputs):
        scores = of(*inputs)
        return sum(jnp.sum(a * b)
                   for a, b in zip(scores, weights, strict=True)), scores
      slopes, scores = jax.grad(total, (0, 1), has_aux=True)(*inputs)
      return (*scores, *slopes)

    with jax.enable_x64(True):
      states, head = jnp.asarray(states), jnp.asarray(head)
      for a, b in zip(both(chunked, states, head), both(naive, states, head),
                      strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)

  def test_logits_far_apart_stay_finite(self):
    states = jnp.array([[[1e4], [-1e4], [0.0]]])
    def total(states):
      scores = losses.token_logprobs(
          states, jnp.array([[0, 1, 0]]), jnp.ones((1, 3), int),
          lambda x: x * jnp.array([1.0, 0.0, -1.0]))
      return jnp.sum(scores.entropy) + jnp.sum(scores.logprobs), scores
    gradient, scores = jax.grad(total, has_aux=True)(states)
    # State 1e4 says id 0 for certain; token 1 is then e^-1e4.
    np.testing.assert_allclose(scores.logprobs, [[0, -1e4, -2e4]], rtol=1e-6)
    np.testing.assert_array_equal(scores.entropy, 0)
    # d(x_1 - x_0)/ds = -1; d(x_0 - x_2)/ds = 2; the last predicts nothing.
    np.testing.assert_allclose(gradient[0, :, 0], [-1, 2, 0], atol=1e-6)

  def test_the_padding_of_the_head_gets_no_gradient(self):
    head = jnp.asarray(np.random.default_rng(0).normal(size=(4, 9)))
    states = jnp.ones((1, 6, 4))
    gradient = jax.grad(lambda head: jnp.sum(losses.token_logprobs(
        states, jnp.zeros((1, 6), int), jnp.ones((1, 6), int),
        lambda x: x @ head, num_ids=7, chunk_tokens=2).logprobs))(head)
    np.testing.assert_array_equal(gradient[:, 7:], 0)
    assert np.abs(np.asarray(gradient[:, :7])).min() > 0


def _temp_bytes(length, chunk, dtype):
  """Temporary memory of the compiled gradient; nothing is run."""
  def loss(states, head, tokens, segments):
    scores = losses.token_logprobs(
        states, tokens, segments,
        lambda x: jnp.matmul(x, head.astype(dtype),
                             preferred_element_type=jnp.float32),
        num_ids=_NUM_IDS, chunk_tokens=chunk)
    return jnp.sum(scores.logprobs) + jnp.sum(scores.entropy)

  ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
  compiled = jax.jit(jax.grad(loss, (0, 1))).lower(
      jax.ShapeDtypeStruct((1, length, 64), dtype),
      jax.ShapeDtypeStruct((64, _VOCABULARY), jnp.float32), ids, ids).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
class TestMemory:
  """P16, at the vocabulary of Qwen3."""

  def test_at_32k_tokens_it_is_a_tenth_of_the_logits_at_most(self, dtype):
    # Naive: the logits whole, of which at least one array must exist.
    logits_bytes = 4 * 32_768 * _VOCABULARY
    naive = _temp_bytes(32_768, 32_768, dtype)
    chunked = _temp_bytes(32_768, 1024, dtype)
    assert naive >= logits_bytes
    assert chunked <= 0.1 * logits_bytes
    assert chunked <= 0.1 * naive

  def test_it_grows_with_the_chunk_and_not_with_the_length(self, dtype):
    by_chunk = [_temp_bytes(16_384, chunk, dtype) for chunk in (512, 2048)]
    assert by_chunk[1] > 2.5 * by_chunk[0]
    by_length = [_temp_bytes(n, 512, dtype) for n in (4096, 32_768)]
    assert by_length[1] < 1.1 * by_length[0]
