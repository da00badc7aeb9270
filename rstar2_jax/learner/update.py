"""The update: packed rows in, new parameters and metrics out.

1. Count trained tokens and trajectories of the whole batch on the host.
2. For each micro-batch of fixed shape: forward, loss, backward; gradients and
   metric sums are added up on device.
3. Clip, optimizer, new parameters.

The number of micro-batches may differ from step to step: it costs no
compilation. Only row length and rows per micro-batch do.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.grpo import losses
from rstar2_jax.learner import train_state
from rstar2_jax.policy import model
from rstar2_jax.policy import sharding


# Logits made at a time on a device: 256 MiB of float32, or of so many tokens.
_LOGITS = 1 << 26
_MIN_CHUNK_TOKENS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knobs:
  """Constants of the compiled steps."""

  loss: config.LossConfig
  temperature: float  # of sampling
  num_ids: int  # ids of the tokenizer
  max_response_tokens: int  # constant length of Dr.GRPO


class Learner:
  """Compiled updates of one policy.

  Attributes:
    optimizer: its transformation.
    mesh: devices.
  """

  def __init__(
      self,
      model_config: model.ModelConfig,
      optimizer: optax.GradientTransformation,
      knobs: Knobs,
      *,
      mesh: jax.sharding.Mesh,
      rows_per_micro_batch: int,
      reference_params: Any = None,
  ):
    """Compiles nothing yet.

    Args:
      model_config: the architecture.
      optimizer: what turns gradients into updates.
      knobs: loss and sampling constants.
      mesh: where the state lies.
      rows_per_micro_batch: rows of one forward and backward pass; a multiple
        of the row shards of the mesh.
      reference_params: policy of the KL term; needed if its weight is not 0.

    Raises:
      ValueError: the rows cannot be cut over the mesh.
    """
    num_shards = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows_per_micro_batch % num_shards:
      raise ValueError(
          f"--batch.rows_per_micro_batch={rows_per_micro_batch}: must be a"
          f" multiple of mesh.data * mesh.fsdp = {num_shards}")
    self.optimizer = optimizer
    self.mesh = mesh
    self._rows = rows_per_micro_batch
    self._reference = reference_params if knobs.loss.kl_coef else None
    shared = dict(
        model_config=model_config, knobs=knobs, mesh=mesh,
        chunk_tokens=num_shards * max(
            _LOGITS // model_config.vocab_size, _MIN_CHUNK_TOKENS))
    # Every output says where it lies. Otherwise the compiler chooses, calls it
    # another layout than the input's, and all is compiled a second time.
    where = train_state.shardings(
        jax.eval_shape(lambda: model.init(model_config, 0)), optimizer, mesh)
    replicated = sharding.replicated(mesh)
    summed: dict[str, Any] = {
        "donate_argnames": "sums",
        "out_shardings": (where.params, replicated)}
    self._grpo = jax.jit(
        functools.partial(_grpo_gradients, **shared), **summed)
    self._sft = jax.jit(functools.partial(_sft_gradients, **shared), **summed)
    self._score = jax.jit(functools.partial(_score, **shared))
    self._apply = jax.jit(
        functools.partial(_apply, optimizer=optimizer),
        donate_argnames="state", out_shardings=(where, replicated))
    self._zeros = jax.jit(lambda params: jax.tree.map(jnp.zeros_like, params),
                          out_shardings=where.params)

  def update(
      self, state: train_state.TrainState, batch: types.PackedBatch
  ) -> tuple[train_state.TrainState, dict[str, float]]:
    """One GRPO update on a batch of rollouts.

    There is exactly one update per batch (paper), so the policy before it is
    the old policy, and its logprobs are those of this very forward pass.

    Args:
      state: donated.
      batch: arrays [R, T]; R of any size.

    Returns:
      The new state and metrics by name.
    """
    counts = _counts(batch)
    def step(sums, rows):
      return self._grpo(state.params, self._reference, rows, sums=sums,
                        counts=counts)
    return self._update(state, batch, step)

  def sft_update(
      self, state: train_state.TrainState, batch: types.PackedBatch
  ) -> tuple[train_state.TrainState, dict[str, float]]:
    """One update of the cross entropy; see `update`."""
    counts = _counts(batch)
    def step(sums, rows):
      return self._sft(state.params, rows, sums=sums, counts=counts)
    return self._update(state, batch, step)

  def scores(self, params: Any, batch: types.PackedBatch) -> losses.Scores:
    """Logprobs and entropies at the sampling temperature, numpy [R, T]."""
    parts = jax.device_get([self._score(params, rows)
                            for rows in self._micro_batches(batch)])
    joined: list[Any] = [np.concatenate(part)[:len(batch.tokens)]
                         for part in zip(*parts, strict=True)]
    return losses.Scores(*joined)

  def _update(self, state, batch, step):
    sums: tuple[Any, Any] = self._zeros(state.params), None
    for rows in self._micro_batches(batch):
      gradients, metrics = step(sums[0], rows)
      sums = gradients, _add(sums[1], metrics)
    state, norms = self._apply(state=state, gradients=sums[0])
    metrics = {name: total / np.maximum(count, 1) for name, (total, count)
               in jax.device_get(sums[1]).items()}
    # A loss is already divided by its global denominator: its parts add up.
    metrics["loss"] = jax.device_get(sums[1]["loss"][0])
    metrics |= jax.device_get(norms)
    metrics |= {"trained_tokens": batch.loss_mask.sum(),
                "fill": np.mean(batch.segment_ids > 0)}
    return state, _checked({k: float(v) for k, v in metrics.items()})

  def _micro_batches(
      self, batch: types.PackedBatch
  ) -> Iterator[types.PackedBatch]:
    """Rows of fixed number, on device; the last ones are padding."""
    where = sharding.of_rows(self.mesh)
    for start in range(0, len(batch.tokens), self._rows):
      rows = [x[start:start + self._rows] for x in batch]
      missing = self._rows - len(rows[0])
      yield jax.device_put(
          types.PackedBatch(*(
              np.pad(x, ((0, missing), (0, 0))) for x in rows)), where)


def _counts(batch: types.PackedBatch) -> dict[str, np.float32]:
  """Denominators over the whole batch."""
  trained = batch.segment_ids * batch.loss_mask
  num_sequences = sum(len(np.unique(row[row > 0])) for row in trained)
  return {"num_tokens": np.float32(max(batch.loss_mask.sum(), 1)),
          "num_sequences": np.float32(max(num_sequences, 1))}


def _scores(
    params, batch: types.PackedBatch, *, model_config, knobs: Knobs,
    mesh: jax.sharding.Mesh, chunk_tokens: int, temperature: float,
) -> losses.Scores:
  tokens, positions, segment_ids = map(
      jnp.asarray, (batch.tokens, batch.positions, batch.segment_ids))
  hidden = model.hidden(
      params, model_config, tokens, positions, segment_ids, mesh=mesh)
  return losses.token_logprobs(
      hidden, tokens, segment_ids,
      lambda states: model.logits(params, model_config, states),
      temperature=temperature, num_ids=knobs.num_ids,
      chunk_tokens=chunk_tokens)


def _score(params, batch, *, knobs, **shared) -> losses.Scores:
  return _scores(params, batch, knobs=knobs, temperature=knobs.temperature,
                 **shared)


def _grpo_gradients(
    params, reference, batch, *, sums, counts, knobs: Knobs, **shared
):
  """Gradients added to `sums`, and metrics, of one micro-batch."""
  cfg = knobs.loss
  def scores_of(params):
    return _score(params, batch, knobs=knobs, **shared)

  reference_logprobs = (
      None if reference is None else scores_of(reference).logprobs)
  weights = losses.token_weights(
      batch.loss_mask, batch.segment_ids, normalization=cfg.normalization,
      max_tokens=knobs.max_response_tokens, **counts)

  def loss_of(params):
    scores = scores_of(params)
    return losses.grpo(
        scores.logprobs, jax.lax.stop_gradient(scores.logprobs),
        batch.advantages, batch.loss_mask, weights,
        clip_low=cfg.clip_low, clip_high=cfg.clip_high,
        dual_clip=cfg.dual_clip, entropy=scores.entropy,
        entropy_coef=cfg.entropy_coef, reference_logprobs=reference_logprobs,
        kl_coef=cfg.kl_coef, rollout_logprobs=batch.rollout_logprobs,
        importance_cap=cfg.importance_cap)

  gradients, metrics = jax.grad(loss_of, has_aux=True)(params)
  return jax.tree.map(jnp.add, sums, gradients), metrics


def _sft_gradients(
    params, batch, *, sums, counts, **shared
):
  """Likewise, of the cross entropy at temperature 1."""
  def loss_of(params):
    scores = _scores(params, batch, temperature=1.0, **shared)
    loss, _ = losses.cross_entropy(
        scores.logprobs, batch.loss_mask, num_tokens=counts["num_tokens"])
    return loss, {"loss": (loss, jnp.float32(1))}

  gradients, metrics = jax.grad(loss_of, has_aux=True)(params)
  return jax.tree.map(jnp.add, sums, gradients), metrics


def _apply(state: train_state.TrainState, gradients, *, optimizer):
  updates, opt_state = optimizer.update(
      gradients, state.opt_state, state.params)
  norms = {"grad_norm": optax.tree.norm(gradients),
           "update_norm": optax.tree.norm(updates)}
  return train_state.TrainState(
      step=state.step + 1, params=optax.apply_updates(state.params, updates),
      opt_state=opt_state), norms


def _add(sums: losses.Metrics | None, metrics: losses.Metrics):
  return metrics if sums is None else jax.tree.map(jnp.add, sums, metrics)


def _checked(metrics: Mapping[str, float]) -> dict[str, float]:
  """The metrics; a NaN in them ends the run before it is saved."""
  for name in ("loss", "grad_norm"):
    if not np.isfinite(metrics[name]):
      raise FloatingPointError(
          f"{name} is {metrics[name]}; the last checkpoint is good. Lower the"
          " learning rate, or look at the batch with JAX_DEBUG_NANS=1")
  return dict(metrics)
