"""Optimizers: gradient clipping, then AdamW or Muon with warm-up."""

from typing import Any, Literal

import jax
import optax
from optax import contrib

from rstar2_jax import config


def for_rl(cfg: config.OptimizerConfig, num_steps: int) -> (
    optax.GradientTransformation):
  """The optimizer of an RL stage (paper, section 5.1).

  Args:
    cfg: what the flags say.
    num_steps: updates of the stage, the length of a cosine schedule.
  """
  if cfg.schedule == "cosine":
    schedule = cosine(cfg.learning_rate, cfg.warmup_steps, num_steps)
  else:
    schedule = constant(cfg.learning_rate, cfg.warmup_steps)
  return chain(
      "adamw", schedule, b1=cfg.b1, b2=cfg.b2, eps=cfg.eps,
      weight_decay=cfg.weight_decay, max_grad_norm=cfg.max_grad_norm)


def for_sft(cfg: config.SftConfig, num_updates: int) -> (
    optax.GradientTransformation):
  """The optimizer of SFT: cosine to zero after a warm-up (section 4.1).

  Args:
    cfg: what the flags say.
    num_updates: updates of all epochs.
  """
  warmup = round(cfg.warmup_ratio * num_updates)
  return chain(
      cfg.optimizer, cosine(cfg.learning_rate, warmup, num_updates), b1=0.9,
      b2=0.95, eps=1e-8, weight_decay=cfg.weight_decay, max_grad_norm=1.0)


def constant(peak: float, warmup_steps: int) -> optax.Schedule:
  """Linear warm-up from peak / (warmup_steps + 1), then constant.

  The first update already moves: a rate of zero would waste a step's rollouts.
  """
  return lambda step: peak * jax.numpy.minimum(
      1.0, (step + 1) / (warmup_steps + 1))


def cosine(peak: float, warmup_steps: int, num_steps: int) -> optax.Schedule:
  """Linear warm-up like `constant`, then a half cosine to zero."""
  def schedule(step):
    decay_steps = max(num_steps - warmup_steps, 1)
    progress = jax.numpy.clip((step - warmup_steps) / decay_steps, 0, 1)
    decay = 0.5 * (1 + jax.numpy.cos(jax.numpy.pi * progress))
    return constant(peak, warmup_steps)(step) * decay
  return schedule


def chain(
    name: Literal["adamw", "muon"],
    schedule: optax.Schedule,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    max_grad_norm: float,
) -> optax.GradientTransformation:
  """Clipping by global norm, then the named optimizer.

  Args:
    name: "adamw", or "muon" for the layers' matrices with AdamW for the rest.
    schedule: learning rate by update.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to its root.
    weight_decay: decoupled; matrices only.
    max_grad_norm: global norm above which gradients are scaled down.
  """
  if name == "muon":
    # Muon's own rate acts on orthogonal updates; Adam's parts (embedding,
    # norms) get a rate of their own scale, 0.3 of it.
    body = contrib.muon(
        schedule, ns_steps=5, beta=0.95, eps=eps, weight_decay=weight_decay,
        weight_decay_mask=_is_matrix, adam_b1=b1, adam_b2=b2,
        adam_learning_rate=lambda step: 0.3 * schedule(step),
        muon_weight_dimension_numbers=_muon_dimensions)
  else:
    body = optax.adamw(
        schedule, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay,
        mask=_is_matrix)
  return optax.chain(optax.clip_by_global_norm(max_grad_norm), body)


def _is_matrix(params: Any) -> Any:
  """Like `params`: whether weight decay applies."""
  return jax.tree_util.tree_map_with_path(
      lambda path, _: path[-1].key not in ("scale", "bias"), params)


def _muon_dimensions(params: Any) -> Any:
  """Like `params`: input and output axes of stacked layer matrices."""
  def one(path, unused_leaf):
    if path[0].key == "layers" and path[-1].key == "kernel":
      return contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    return None
  return jax.tree_util.tree_map_with_path(one, params)
