"""Losses over packed rows: arrays in, sums out. Nothing here sees a model.

Every [R, T] array is aligned to `tokens`: entry t speaks about token t given
those before it in its segment. That shift exists once, in `token_logprobs`.

A loss is a sum over the tokens given, divided by a denominator that the caller
counts over the *global* batch. So micro-batches, packing, padding and devices
change nothing but rounding. Metrics are (sum, count) pairs for the same reason.
"""

from collections.abc import Callable
import functools
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Normalization = Literal["token", "sequence", "dr_grpo"]
Metrics = dict[str, tuple[jax.Array, jax.Array]]  # (sum, count), float32


class Scores(NamedTuple):
  """What the policy says about given tokens."""

  logprobs: jax.Array  # float32 [R, T]; 0 at the first token of a segment
  entropy: jax.Array  # float32 [R, T], nats; likewise


def token_logprobs(
    hidden: jax.Array,
    tokens: jax.Array,
    segment_ids: jax.Array,
    logits_of: Callable[[jax.Array], jax.Array],
    *,
    temperature: float = 1.0,
    num_ids: int | None = None,
    chunk_tokens: int = 1024,
) -> Scores:
  """log p(tokens[:, t] | tokens before t in its segment), and its entropy.

  Args:
    hidden: [R, T, D], final hidden states.
    tokens: int32 [R, T].
    segment_ids: int32 [R, T]; 0 is padding.
    logits_of: float32 [n, V] of hidden states [n, D].
    temperature: logits are divided by it, as the server's were in sampling.
    num_ids: ids from here on are padding of the head and have no mass (P05);
      None: all are real.
    chunk_tokens: logits are made for about so many tokens at a time, the same
      positions of every row so that rows may lie on different devices, and
      made again in the backward pass: [R, T, V] never exists (P16).

  Returns:
    Scores; exactly 0 at padding and at the first token of each segment, about
    which nothing is said.
  """
  num_rows, length = tokens.shape
  is_scored = _has_predecessor(segment_ids)
  # The state at t - 1 predicts token t: shift right, filling position 0.
  before = jnp.concatenate([hidden[:, :1], hidden[:, :-1]], axis=1)
  score = jax.checkpoint(functools.partial(
      _score, logits_of=logits_of, temperature=temperature, num_ids=num_ids))
  width = max(chunk_tokens // num_rows, 1)
  if width >= length:
    scores = score(before, tokens)
  else:
    chunks = jax.lax.map(
        lambda x: score(*x), (_cut(before, width), _cut(tokens, width)))
    scores = Scores(*(_join(x, length) for x in chunks))
  return Scores(*(jnp.where(is_scored, x, 0.0) for x in scores))


def _score(
    states: jax.Array, ids: jax.Array, *,
    logits_of: Callable[[jax.Array], jax.Array], temperature: float,
    num_ids: int | None,
) -> Scores:
  """Scores [R, c] of ids [R, c] given the states [R, c, D] before them."""
  flat = states.reshape(-1, states.shape[-1])
  logits = logits_of(flat).reshape(*ids.shape, -1) / temperature
  if num_ids is not None and num_ids < logits.shape[-1]:
    is_real = jnp.arange(logits.shape[-1]) < num_ids
    logits = jnp.where(is_real, logits, -1e30)
  return Scores(*_of_logits(logits, ids))


@jax.custom_vjp
def _of_logits(
    logits: jax.Array, ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """log p(ids) and entropy [R, c] of logits [R, c, V].

  The derivative is written out. Derived line by line, it would hold three
  arrays as large as the logits where one is enough.
  """
  return _of_logits_forward(logits, ids)[0]


def _of_logits_forward(logits, ids):
  shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
  weights = jnp.exp(shifted)
  total = jnp.sum(weights, axis=-1)
  log_total = jnp.log(total)
  # Chosen by selection: a gather would fetch the whole of a vocabulary that is
  # cut over devices.
  chosen = jnp.sum(jnp.where(_is_id(logits, ids), shifted, 0.0), axis=-1)
  entropy = log_total - jnp.sum(weights * shifted, axis=-1) / total
  log_norm = jnp.max(logits, axis=-1) + log_total
  return (chosen - log_total, entropy), (logits, ids, log_norm, entropy)


def _of_logits_backward(residuals, cotangents):
  """d log p_i / d x_j = [i = j] - p_j; d H / d x_j = -p_j (log p_j + H)."""
  logits, ids, log_norm, entropy = residuals
  of_chosen, of_entropy = (x[..., None] for x in cotangents)
  logprobs = logits - log_norm[..., None]
  slope = of_chosen + of_entropy * (logprobs + entropy[..., None])
  gradient = (jnp.where(_is_id(logits, ids), of_chosen, 0.0)
              - jnp.exp(logprobs) * slope)
  return gradient, None


_of_logits.defvjp(_of_logits_forward, _of_logits_backward)


def _is_id(logits: jax.Array, ids: jax.Array) -> jax.Array:
  """bool, like the logits: which of them is of the token's id."""
  return jnp.arange(logits.shape[-1]) == ids[..., None]


def _cut(x: jax.Array, width: int) -> jax.Array:
  """[n, R, width, ...] of [R, T, ...], the last piece filled with zeros."""
  missing = -x.shape[1] % width
  x = jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
  x = x.reshape(x.shape[0], -1, width, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)


def _join(x: jax.Array, length: int) -> jax.Array:
  """[R, length] of pieces [n, R, width]."""
  return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1)[:, :length]


def cross_entropy(
    logprobs: jax.Array, loss_mask: jax.Array, *, num_tokens: jax.Array
) -> tuple[jax.Array, Metrics]:
  """Mean negative log-probability of trained tokens (SFT).

  Args:
    logprobs: float32 [R, T].
    loss_mask: bool [R, T].
    num_tokens: float32 scalar, trained tokens of the global batch.

  Returns:
    This part's share of the loss, and metrics.
  """
  mask = loss_mask.astype(jnp.float32)
  # Masked by selection: a logprob off the mask may be anything, even NaN.
  total = -jnp.sum(jnp.where(loss_mask, logprobs, 0.0))
  return total / num_tokens, {"loss": (total, jnp.sum(mask))}


def grpo(
    logprobs: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    loss_mask: jax.Array,
    weights: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    entropy: jax.Array | None = None,
    entropy_coef: float = 0.0,
    reference_logprobs: jax.Array | None = None,
    kl_coef: float = 0.0,
    rollout_logprobs: jax.Array | None = None,
    importance_cap: float | None = None,
) -> tuple[jax.Array, Metrics]:
  """Clipped surrogate of GRPO (paper, Eq. 6), as a weighted sum over tokens.

      -sum_t w_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t),
      r_t = exp(logprobs - old_logprobs)

  Args:
    logprobs: float32 [R, T], of the policy that is trained.
    old_logprobs: float32 [R, T], the learner's own at the start of the step.
    advantages: float32 [R, T], the trajectory's, on every token of it.
    loss_mask: bool [R, T], True on sampled tokens.
    weights: float32 [R, T], see `token_weights`; they hold the normalization
      over the global batch.
    clip_low: ratios are clipped below at 1 - clip_low ...
    clip_high: ... and above at 1 + clip_high (clip-higher, DAPO).
    dual_clip: for negative advantages the loss is at most dual_clip * |A|
      (arXiv 1912.09729); None: unbounded.
    entropy: float32 [R, T]; needed for its bonus and metric.
    entropy_coef: weight of the entropy bonus.
    reference_logprobs: float32 [R, T], of the policy to stay near.
    kl_coef: weight of the KL estimate exp(x) - x - 1, x = ref - logprobs (k3).
    rollout_logprobs: float32 [R, T], what the server reported at sampling.
    importance_cap: if given, tokens are weighted by min(cap, exp(old -
      rollout)), the truncated importance weight for the gap between learner
      and server.

  Returns:
    This part's share of the loss, and metrics.
  """
  def on_mask(x):
    return jnp.where(loss_mask, x, 0.0)

  mask = loss_mask.astype(jnp.float32)
  log_ratio = on_mask(logprobs - old_logprobs)
  ratio = jnp.exp(log_ratio)
  advantages = on_mask(advantages)
  clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
  plain_loss = -ratio * advantages
  clipped_loss = -clipped * advantages
  per_token = jnp.maximum(plain_loss, clipped_loss)
  if dual_clip is not None:
    per_token = jnp.where(
        advantages < 0, jnp.minimum(per_token, -dual_clip * advantages),
        per_token)
  metrics = {
      "clipped": (jnp.sum(mask * (clipped_loss > plain_loss)), jnp.sum(mask)),
      "approx_kl": (jnp.sum(ratio - 1 - log_ratio), jnp.sum(mask)),
  }
  if rollout_logprobs is not None:
    gap = jax.lax.stop_gradient(on_mask(old_logprobs - rollout_logprobs))
    metrics["rollout_gap"] = (jnp.sum(jnp.abs(gap)), jnp.sum(mask))
    # KL(rollout || learner) as estimated from its samples, per token (k3).
    metrics["rollout_kl"] = (
        jnp.sum(mask * (jnp.exp(gap) - 1 - gap)), jnp.sum(mask))
    if importance_cap is not None:
      importance = jnp.minimum(jnp.exp(gap), importance_cap)
      per_token = per_token * importance
      metrics["importance"] = (jnp.sum(mask * importance), jnp.sum(mask))
  if reference_logprobs is not None:
    x = on_mask(reference_logprobs - logprobs)
    kl = jnp.exp(x) - x - 1
    per_token = per_token + kl_coef * kl
    metrics["reference_kl"] = (jnp.sum(kl), jnp.sum(mask))
  if entropy is not None:
    entropy = on_mask(entropy)
    per_token = per_token - entropy_coef * entropy
    metrics["entropy"] = (
        jax.lax.stop_gradient(jnp.sum(entropy)), jnp.sum(mask))
  loss = jnp.sum(on_mask(weights * per_token))
  metrics["loss"] = (jax.lax.stop_gradient(loss), jnp.float32(1))
  return loss, metrics


def token_weights(
    loss_mask: jax.Array,
    segment_ids: jax.Array,
    *,
    normalization: Normalization,
    num_tokens: jax.Array,
    num_sequences: jax.Array,
    max_tokens: int,
) -> jax.Array:
  """Weight of each token in the loss of the global batch.

  Args:
    loss_mask: bool [R, T].
    segment_ids: int32 [R, T].
    normalization: "token": 1 / trained tokens of the batch (Eq. 6);
      "sequence": mean of each trajectory's mean (GRPO as first published);
      "dr_grpo": 1 / (trajectories * max_tokens) (arXiv 2503.20783).
    num_tokens: float32 scalar, trained tokens of the global batch.
    num_sequences: float32 scalar, trajectories of the global batch.
    max_tokens: the constant length of "dr_grpo".

  Returns:
    float32 [R, T], 0 off the mask.
  """
  mask = loss_mask.astype(jnp.float32)
  if normalization == "token":
    return mask / num_tokens
  if normalization == "dr_grpo":
    return mask / (num_sequences * max_tokens)
  # Trained tokens of the segment that each token is in.
  size = segment_ids.shape[1] + 1
  def lengths(mask_T, segments_T):  # pylint: disable=invalid-name
    return jax.ops.segment_sum(mask_T, segments_T, size)[segments_T]
  in_segment = jax.vmap(lengths)(mask, segment_ids)
  return mask / jnp.maximum(in_segment, 1.0) / num_sequences


def _has_predecessor(segment_ids: jax.Array) -> jax.Array:
  """bool [R, T]: whether the token before is of the same, real segment."""
  same = segment_ids[:, 1:] == segment_ids[:, :-1]
  first = jnp.zeros_like(segment_ids[:, :1], bool)
  return jnp.concatenate([first, same], axis=1) & (segment_ids > 0)
