"""An update on four devices is the update on one, however they are laid out.

Devices are CPU devices of a process of its own, since their number is fixed
when JAX starts.
"""

import json
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import json, sys
import jax, numpy as np, optax
from rstar2_jax import config, types
from rstar2_jax.learner import optimizer, train_state, update
from rstar2_jax.policy import model, sharding

data, fsdp, tensor = json.loads(sys.argv[1])
model_config = model.ModelConfig(
    vocab_size=32, hidden_size=32, intermediate_size=48, num_layers=2,
    num_heads=4, num_kv_heads=2, head_dim=8)
mesh = sharding.make_mesh(
    config.MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
learner = update.Learner(
    model_config, optimizer.for_rl(config.OptimizerConfig(
        learning_rate=1e-2), 10),
    update.Knobs(loss=config.LossConfig(), temperature=1.0, num_ids=32,
                 max_response_tokens=16),
    mesh=mesh, rows_per_micro_batch=4)
state = train_state.create(model.init(model_config, 0), learner.optimizer, mesh)
rng = np.random.default_rng(0)
shape = (6, 16)
mask = rng.random(shape) < 0.5
mask[:, 0] = False
batch = types.PackedBatch(
    tokens=rng.integers(0, 32, shape).astype(np.int32),
    positions=np.tile(np.arange(16, dtype=np.int32), (6, 1)),
    segment_ids=np.ones(shape, np.int32), loss_mask=mask,
    advantages=np.where(mask, rng.normal(size=(6, 1)), 0).astype(np.float32),
    rollout_logprobs=np.zeros(shape, np.float32))
for _ in range(2):
  state, metrics = learner.update(state, batch)
kernel = state.params["layers"]["mlp"]["up_proj"]["kernel"]
moment = [x for x in jax.tree.leaves(state.opt_state)
          if x.shape == kernel.shape][0]
print(json.dumps({
    "loss": metrics["loss"], "grad_norm": metrics["grad_norm"],
    "sum": float(sum(np.abs(x).sum() for x in jax.tree.leaves(
        jax.device_get(state.params)))),
    "logprobs": learner.scores(state.params, batch).logprobs.tolist(),
    "shard": list(kernel.addressable_shards[0].data.shape),
    "moment": list(moment.addressable_shards[0].data.shape)}))
"""


def run(data, fsdp, tensor):
  """The result on data * fsdp * tensor devices."""
  devices = data * fsdp * tensor
  env = os.environ | {
      "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
      "JAX_PLATFORMS": "cpu"}
  done = subprocess.run(
      [sys.executable, "-c", _PROGRAM, json.dumps([data, fsdp, tensor])],
      env=env, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(name="alone", scope="module")
def _alone():
  return run(1, 1, 1)


@pytest.mark.parametrize("layout, shard", [
    ((4, 1, 1), [2, 32, 48]), ((1, 4, 1), [2, 8, 48]),
    ((1, 2, 2), [2, 16, 24])], ids=str)
def test_layouts_change_nothing_but_rounding(alone, layout, shard):
  result = run(*layout)
  assert result["shard"] == result["moment"] == shard
  for name in ("loss", "grad_norm", "sum"):
    assert result[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)
  for ours, theirs in zip(result["logprobs"], alone["logprobs"], strict=True):
    assert ours == pytest.approx(theirs, abs=1e-4)
