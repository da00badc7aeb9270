"""Hugging Face folders: round trip, and what is refused."""

import json

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model

CONFIG = model.ModelConfig(
    vocab_size=31, hidden_size=16, intermediate_size=24, num_layers=2,
    num_heads=2, num_kv_heads=1, head_dim=8, tie_word_embeddings=False)


@pytest.fixture(name="folder")
def _folder(tmp_path):
  hf_weights.save(tmp_path / "policy", CONFIG, model.init(CONFIG, 0))
  return tmp_path / "policy"


def test_what_is_saved_is_loaded(folder):
  config, params = hf_weights.load(folder)
  assert config == CONFIG
  expected = model.init(CONFIG, 0)
  assert jax.tree.structure(params) == jax.tree.structure(expected)
  jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_a_second_save_replaces_the_folder_and_leaves_nothing_beside(folder):
  hf_weights.save(folder, CONFIG, model.init(CONFIG, 1))
  _, params = hf_weights.load(folder)
  np.testing.assert_array_equal(
      params["lm_head"]["kernel"], model.init(CONFIG, 1)["lm_head"]["kernel"])
  assert [p.name for p in folder.parent.iterdir()] == ["policy"]


def test_matrices_are_stored_out_by_in(folder):
  tensors = safetensors_numpy.load_file(folder / "model.safetensors")
  assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (16, 24)
  assert tensors["lm_head.weight"].shape == (31, 16)


def _edit(folder, change):
  path = folder / "model.safetensors"
  tensors = safetensors_numpy.load_file(path)
  change(tensors)
  safetensors_numpy.save_file(tensors, path)


@pytest.mark.parametrize("change, message", [
    (lambda t: t.pop("model.norm.weight"), "model.norm.weight is missing"),
    (lambda t: t.update(extra=np.zeros(2, np.float32)), "unexpected .* extra"),
    (lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}),
     r"model.norm.weight has shape \[3\]"),
])
def test_weights_that_do_not_fit_are_named(folder, change, message):
  _edit(folder, change)
  with pytest.raises(ValueError, match=message):
    hf_weights.load(folder)


def test_missing_and_damaged_files_are_named(folder, tmp_path):
  with pytest.raises(ValueError, match="config.json: no such file"):
    hf_weights.load(tmp_path)
  (folder / "model.safetensors").write_bytes(b"not tensors at all")
  with pytest.raises(ValueError, match="not a safetensors file"):
    hf_weights.load(folder)
  (folder / "model.safetensors").unlink()
  with pytest.raises(ValueError, match="model.safetensors: no such file"):
    hf_weights.load(folder)
  (folder / "config.json").write_text("{")
  with pytest.raises(ValueError, match="not JSON"):
    hf_weights.load(folder)
  (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
  with pytest.raises(ValueError, match="is missing"):
    hf_weights.load(folder)
