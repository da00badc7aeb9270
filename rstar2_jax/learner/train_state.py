"""What the learner carries from step to step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rstar2_jax.policy import sharding

# Keys with which optax.partition tells its parts.
_LABELS = ("muon", "adam")


class TrainState(NamedTuple):
  """A pytree; updates donate it, so use a state once."""

  step: jax.Array  # int32 scalar, updates done with this optimizer state
  params: Any  # as policy.model has them, float32
  opt_state: Any


def create(
    params: Any, optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> TrainState:
  """A state at step 0.

  Args:
    params: arrays on host or device; copied.
    optimizer: gives the optimizer state.
    mesh: where everything lies.
  """
  where = shardings(params, optimizer, mesh)
  params = jax.tree.map(jnp.array, jax.device_put(params, where.params))
  opt_state = jax.jit(optimizer.init, out_shardings=where.opt_state)(params)
  step = jax.device_put(jnp.int32(0), where.step)
  return TrainState(step=step, params=params, opt_state=opt_state)


def shardings(
    params: Any, optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
) -> TrainState:
  """A TrainState of NamedShardings; moments lie like their parameters."""
  of_params = sharding.of_params(params, mesh)
  replicated = sharding.replicated(mesh)
  by_name = {_names(path): where for path, where
             in jax.tree_util.tree_leaves_with_path(of_params)}

  def one(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    # A moment sits under its parameter's names, whatever wraps them.
    return replicated if not leaf.shape else by_name.get(
        _names(path), replicated)

  where: Any = replicated  # a sharding in the place of its array
  return TrainState(
      step=where, params=of_params,
      opt_state=jax.tree_util.tree_map_with_path(
          one, jax.eval_shape(optimizer.init, params)))


def _names(path: Any) -> tuple[str, ...]:
  """The dictionary keys on a path: those of a parameter."""
  return tuple(k.key for k in path
               if isinstance(k, jax.tree_util.DictKey) and k.key not in _LABELS)

