"""Checkpoints: what is saved comes back, and what is damaged is named."""

import shutil

import jax
import numpy as np
import pytest

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax.learner import checkpoints
from rstar2_jax.learner import optimizer as optimizer_lib
from rstar2_jax.learner import train_state
from rstar2_jax.policy import model
from rstar2_jax.policy import sharding

CONFIG = model.ModelConfig(
    vocab_size=20, hidden_size=16, intermediate_size=24, num_layers=2,
    num_heads=2, num_kv_heads=1, head_dim=8)
MESH = sharding.make_mesh(config.MeshConfig())


def make(name="adamw", model_config=CONFIG):
  """A state whose moments are not zero, and its optimizer."""
  optimizer = optimizer_lib.chain(
      name, lambda _: 0.1, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.0,
      max_grad_norm=1.0)
  params = model.init(model_config, 0)
  state = train_state.create(params, optimizer, MESH)
  _, opt_state = optimizer.update(params, state.opt_state, params)
  return state._replace(
      step=jax.numpy.int32(7), opt_state=opt_state), optimizer


def restore(opened, step, state, optimizer):
  return opened.restore(
      step, state, train_state.shardings(state.params, optimizer, MESH))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_what_is_saved_comes_back_with_its_data(tmp_path, name):
  state, optimizer = make(name)
  opened = checkpoints.Checkpoints(str(tmp_path), keep=2)
  assert opened.latest_step() is None
  opened.save(3, state, {"next_step": 3})
  opened.close()
  opened = checkpoints.Checkpoints(str(tmp_path), keep=2)
  restored, data = restore(opened, opened.latest_step(), state, optimizer)
  assert data == {"next_step": 3}
  assert jax.tree.structure(restored) == jax.tree.structure(state)
  jax.tree.map(np.testing.assert_array_equal, restored, state)
  opened.close()


def test_only_the_newest_are_kept_and_none_is_saved_twice(tmp_path):
  state, _ = make()
  opened = checkpoints.Checkpoints(str(tmp_path), keep=2)
  for step in (1, 2, 2, 3):
    opened.save(step, state, {"next_step": step})
  opened.close()
  assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["2", "3"]


def test_another_policy_and_damage_are_one_line(tmp_path):
  state, optimizer = make()
  opened = checkpoints.Checkpoints(str(tmp_path), keep=2)
  opened.save(1, state, {"next_step": 1})
  other, _ = make(model_config=model.ModelConfig(
      vocab_size=20, hidden_size=32, intermediate_size=24, num_layers=2,
      num_heads=2, num_kv_heads=1, head_dim=8))
  with pytest.raises(errors.UserError, match=(
      r"checkpoint 1 .* cannot be read .*\(20, 16\) there and \(20, 32\)")):
    restore(opened, 1, other, optimizer)
  shutil.rmtree(tmp_path / "1" / "state")
  with pytest.raises(errors.UserError, match="checkpoint 1 .* cannot be read"):
    restore(opened, 1, state, optimizer)
  opened.close()
