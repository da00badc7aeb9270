"""Which axis of which array lies on which axis of the mesh: one table.

Mesh axes:
  data    replicas of everything; each takes part of the rows.
  fsdp    parameters and optimizer state are cut, and gathered for use; rows
          are cut here too.
  tensor  heads and MLP columns are cut, and stay cut while they are used.
"""

from typing import Any

import jax
import numpy as np

from rstar2_jax import config

P = jax.sharding.PartitionSpec

AXES = ("data", "fsdp", "tensor")
ROWS = P(("data", "fsdp"))  # packed batches [R, ...]

# By the module that holds a parameter; layers have a leading axis.
_PARAMETERS = {
    "embed_tokens": P("tensor", "fsdp"),  # [V, D]
    "lm_head": P("fsdp", "tensor"),  # [D, V]
    "q_proj": P(None, "fsdp", "tensor"),  # [L, D, H * d]
    "k_proj": P(None, "fsdp", "tensor"),
    "v_proj": P(None, "fsdp", "tensor"),
    "o_proj": P(None, "tensor", "fsdp"),  # [L, H * d, D]
    "gate_proj": P(None, "fsdp", "tensor"),  # [L, D, F]
    "up_proj": P(None, "fsdp", "tensor"),
    "down_proj": P(None, "tensor", "fsdp"),  # [L, F, D]
}
_BIAS = P(None, "tensor")  # [L, H * d], of q_proj, k_proj and v_proj


def make_mesh(mesh_config: config.MeshConfig) -> jax.sharding.Mesh:
  """The mesh over all devices.

  Raises:
    ValueError: the axes do not multiply to the number of devices.
  """
  sizes = [mesh_config.data, mesh_config.fsdp, mesh_config.tensor]
  num_devices = jax.device_count()
  known = int(np.prod([s for s in sizes if s != -1]))
  sizes = [num_devices // known if s == -1 else s for s in sizes]
  if int(np.prod(sizes)) != num_devices:
    flags = " ".join(f"--mesh.{a}={getattr(mesh_config, a)}" for a in AXES)
    raise ValueError(f"{flags}: must multiply to the number of devices,"
                     f" {num_devices}")
  return jax.make_mesh(
      sizes, AXES,
      axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


def of_params(params: Any, mesh: jax.sharding.Mesh) -> Any:
  """NamedShardings like `params`, arrays or shapes."""
  def one(path, unused_leaf):
    names = [k.key for k in path]
    if names[-1] == "bias":
      return jax.sharding.NamedSharding(mesh, _BIAS)
    spec = next((_PARAMETERS[n] for n in names if n in _PARAMETERS), P())
    return jax.sharding.NamedSharding(mesh, spec)
  return jax.tree_util.tree_map_with_path(one, params)


def of_rows(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
  """Of arrays whose leading axis are packed rows."""
  return jax.sharding.NamedSharding(mesh, ROWS)


def replicated(mesh: jax.sharding.Mesh) -> jax.sharding.NamedSharding:
  """Of what every device holds whole."""
  return jax.sharding.NamedSharding(mesh, P())
