"""Losses by hand, and what must not change them.

Numbers are worked out in the comments; logits are chosen so that every
probability is a simple fraction.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax.grpo import losses

LOG2 = math.log(2)


def grpo(logprobs, old, advantages, mask, weights=None, **knobs):
  logprobs, old, advantages = (
      jnp.asarray(x, jnp.float32) for x in (logprobs, old, advantages))
  mask = jnp.asarray(mask, bool)
  if weights is None:
    weights = mask / max(int(mask.sum()), 1)
  knobs = {"clip_low": 0.2, "clip_high": 0.28} | knobs
  return losses.grpo(logprobs, old, advantages, mask, weights, **knobs)


def ratio_of(metrics, name):
  total, count = metrics[name]
  return float(total / count)


class TestTokenLogprobs:

  # Logits of state s: log(1), log(2), log(5) rolled by s; the sum is 8.
  def logits_of(self, states):
    table = jnp.log(jnp.array([[1.0, 2, 5], [5, 1, 2], [2, 5, 1]]))
    return table[states[:, 0].astype(int)]

  def score(self, states, tokens, segments, **knobs):
    return losses.token_logprobs(
        jnp.asarray(states, jnp.float32)[..., None], jnp.asarray(tokens),
        jnp.asarray(segments), self.logits_of, **knobs)

  def test_entry_t_is_said_by_the_state_before_t(self):
    scores = self.score([[0, 1, 2, 0]], [[2, 2, 0, 1]], [[1, 1, 1, 1]])
    # t=1: state 0 of id 2: 5/8. t=2: state 1 of id 0: 5/8. t=3: state 2 of
    # id 1: 5/8. Nothing is said about t=0.
    np.testing.assert_allclose(
        scores.logprobs, [[0, math.log(5 / 8)] + [math.log(5 / 8)] * 2],
        atol=1e-6)
    entropy = -sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))
    np.testing.assert_allclose(
        scores.entropy, [[0, entropy, entropy, entropy]], atol=1e-6)

  def test_the_first_token_of_each_segment_and_padding_are_exactly_zero(self):
    scores = self.score(
        [[0, 1, 2, 0, 1, 1]], [[1, 1, 1, 1, 1, 1]], [[1, 1, 2, 2, 0, 0]])
    np.testing.assert_array_equal(
        np.asarray(scores.logprobs) != 0, [[0, 1, 0, 1, 0, 0]])

  def test_temperature_divides_the_logits(self):
    scores = self.score([[0, 0]], [[0, 2]], [[1, 1]], temperature=0.5)
    # Squares of 1, 2, 5: 25 of 30.
    np.testing.assert_allclose(
        scores.logprobs[0, 1], math.log(25 / 30), atol=1e-6)

  def test_padding_of_the_head_has_no_mass(self):
    scores = self.score([[0, 0]], [[0, 1]], [[1, 1]], num_ids=2)
    np.testing.assert_allclose(
        scores.logprobs[0, 1], math.log(2 / 3), atol=1e-6)

  def test_chunks_change_neither_values_nor_gradients(self):
    rng = np.random.default_rng(0)
    head = jnp.asarray(rng.normal(size=(5, 11)), jnp.float32)
    tokens = jnp.asarray(rng.integers(0, 11, (3, 8)))
    segments = jnp.ones_like(tokens)
    states = jnp.asarray(rng.normal(size=(3, 8, 5)), jnp.float32)

    def total(states, head, chunk):
      scores = losses.token_logprobs(
          states, tokens, segments, lambda s: s @ head, chunk_tokens=chunk)
      return jnp.sum(scores.logprobs * jnp.arange(8)) + jnp.sum(scores.entropy)

    whole = jax.value_and_grad(total, (0, 1))(states, head, 24)
    parts = jax.value_and_grad(total, (0, 1))(states, head, 6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        whole, parts)


class TestGrpo:

  def test_on_policy_the_loss_is_minus_the_mean_advantage(self):
    loss, _ = grpo([[-1.0, -2, -3]], [[-1.0, -2, -3]], [[1.0, 1, -0.5]],
                   [[1, 1, 1]])
    assert float(loss) == pytest.approx(-(1 + 1 - 0.5) / 3)

  def test_on_policy_the_gradient_is_minus_the_weighted_advantage(self):
    logprobs = jnp.array([[-1.0, -2.0, -3.0]])
    gradient = jax.grad(
        lambda x: grpo(x, logprobs, [[1.0, 2, -3]], [[1, 1, 1]])[0])(logprobs)
    np.testing.assert_allclose(gradient, [[-1 / 3, -2 / 3, 1.0]], rtol=1e-6)

  @pytest.mark.parametrize("ratio, advantage, expected", [
      (1.5, 1.0, -1.28),  # up-clipped at 1.28
      (1.5, -1.0, 1.5),  # a rising bad token is never clipped from above
      (0.5, 1.0, -0.5),  # a falling good token is not clipped from below
      (0.5, -1.0, 0.8),  # down-clipped at 0.8
      (1.1, 1.0, -1.1),  # inside
  ])
  def test_clipping_takes_the_worse_side(self, ratio, advantage, expected):
    loss, metrics = grpo([[math.log(ratio)]], [[0.0]], [[advantage]], [[1]])
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    is_clipped = abs(expected) in (1.28, 0.8)
    assert ratio_of(metrics, "clipped") == is_clipped

  def test_clipped_tokens_have_no_gradient(self):
    gradient = jax.grad(lambda x: grpo(
        x, [[0.0, 0.0]], [[1.0, -1.0]], [[1, 1]])[0])(
            jnp.log(jnp.array([[1.5, 0.5]])))
    np.testing.assert_array_equal(gradient, [[0, 0]])

  def test_dual_clip_bounds_the_loss_of_bad_tokens(self):
    loss, _ = grpo([[math.log(10.0)]], [[0.0]], [[-1.0]], [[1]], dual_clip=3.0)
    assert float(loss) == pytest.approx(3.0)
    loss, _ = grpo([[math.log(10.0)]], [[0.0]], [[1.0]], [[1]], dual_clip=3.0)
    assert float(loss) == pytest.approx(-1.28)  # good ones as before

  def test_importance_weights_are_capped(self):
    # Learner over rollout: e^1 capped at 2, and e^-1 as it is.
    loss, metrics = grpo(
        [[-1.0, -2.0]], [[-1.0, -2.0]], [[1.0, 1.0]], [[1, 1]],
        rollout_logprobs=jnp.array([[-2.0, -1.0]]), importance_cap=2.0)
    assert float(loss) == pytest.approx(-(2 + math.exp(-1)) / 2)
    assert ratio_of(metrics, "rollout_gap") == pytest.approx(1.0)

  def test_kl_is_k3_and_its_gradient_pulls_to_the_reference(self):
    loss, metrics = grpo(
        [[-LOG2]], [[-LOG2]], [[0.0]], [[1]],
        reference_logprobs=jnp.array([[0.0]]), kl_coef=0.1)
    # x = log 2: e^x - x - 1 = 1 - log 2.
    assert ratio_of(metrics, "reference_kl") == pytest.approx(1 - LOG2)
    assert float(loss) == pytest.approx(0.1 * (1 - LOG2))
    gradient = jax.grad(lambda x: grpo(
        x, x, [[0.0]], [[1]], reference_logprobs=jnp.array([[0.0]]),
        kl_coef=0.1)[0])(jnp.array([[-LOG2]]))
    assert float(gradient[0, 0]) == pytest.approx(0.1 * (1 - 2))

  def test_the_entropy_bonus_lowers_the_loss(self):
    loss, metrics = grpo(
        [[-1.0]], [[-1.0]], [[0.0]], [[1]], entropy=jnp.array([[1.5]]),
        entropy_coef=0.01)
    assert float(loss) == pytest.approx(-0.015)
    assert ratio_of(metrics, "entropy") == pytest.approx(1.5)

  def test_masked_entries_may_hold_anything(self):
    bad = jnp.array([[-1.0, jnp.nan, jnp.inf, -jnp.inf]])
    def loss_of(x):
      return grpo(
          x, bad, bad, [[1, 0, 0, 0]], jnp.array([[1.0, 0, 0, 0]]),
          entropy=bad, rollout_logprobs=bad, importance_cap=2.0,
          reference_logprobs=bad, kl_coef=1.0)[0]
    loss, gradient = jax.value_and_grad(loss_of)(bad)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[0, 1:], 0)

  def test_a_batch_without_trained_tokens_has_loss_zero(self):
    loss, metrics = grpo([[-1.0]], [[-1.0]], [[1.0]], [[0]])
    assert float(loss) == 0
    assert float(metrics["clipped"][1]) == 0


class TestCrossEntropy:

  def test_mean_over_the_given_number_of_tokens(self):
    loss, _ = losses.cross_entropy(
        jnp.array([[-1.0, -2.0, jnp.nan]]), jnp.array([[True, True, False]]),
        num_tokens=jnp.float32(4))
    assert float(loss) == pytest.approx(3 / 4)


class TestTokenWeights:

  # Row 0: segment 1 with two trained tokens, segment 2 with one. Row 1: one
  # segment with three.
  MASK = jnp.array([[0, 1, 1, 0, 1, 0], [0, 1, 1, 1, 0, 0]], bool)
  SEGMENTS = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]])

  def weights(self, normalization):
    return np.asarray(losses.token_weights(
        self.MASK, self.SEGMENTS, normalization=normalization,
        num_tokens=jnp.float32(6), num_sequences=jnp.float32(3),
        max_tokens=10))

  def test_token(self):
    np.testing.assert_allclose(
        self.weights("token"), np.asarray(self.MASK) / 6, rtol=1e-6)

  def test_sequence_gives_every_trajectory_the_same_say(self):
    np.testing.assert_allclose(
        self.weights("sequence"),
        [[0, 1 / 6, 1 / 6, 0, 1 / 3, 0], [0, 1 / 9, 1 / 9, 1 / 9, 0, 0]],
        rtol=1e-6)

  def test_dr_grpo_divides_by_a_constant(self):
    np.testing.assert_allclose(
        self.weights("dr_grpo"), np.asarray(self.MASK) / 30, rtol=1e-6)
