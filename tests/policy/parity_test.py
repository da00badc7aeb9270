"""Log-probabilities and gradients are those of transformers, by family."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax.grpo import losses
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model
from rstar2_jax.policy import rope

_QWEN3 = model.ModelConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2,
    num_heads=4, num_kv_heads=2, head_dim=16, max_position_embeddings=64)
_QWEN2 = dataclasses.replace(
    _QWEN3, qk_norm=False, attention_bias=True, head_dim=8,
    tie_word_embeddings=False, rope_theta=1e6)
_LLAMA = dataclasses.replace(
    _QWEN3, qk_norm=False, head_dim=8, rms_norm_eps=1e-5, num_kv_heads=1)


def _scaled(config, **options):
  return dataclasses.replace(
      config, rope_scaling=rope.Scaling.from_hf({
          "rope_scaling": options, "max_position_embeddings": 64}))


_CASES = {
    "qwen3": _QWEN3, "qwen2": _QWEN2, "llama": _LLAMA,
    "linear": _scaled(_QWEN3, type="linear", factor=3.0),
    "llama3": _scaled(
        _LLAMA, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=16),
    "yarn": _scaled(
        _QWEN2, rope_type="yarn", factor=4.0,
        original_max_position_embeddings=16),
    "yarn_with_options": _scaled(
        _QWEN3, rope_type="yarn", factor=4.0, beta_fast=8.0, beta_slow=2.0,
        original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=0.5),
    "yarn_attention_factor": _scaled(
        _LLAMA, rope_type="yarn", factor=2.0, attention_factor=1.3,
        original_max_position_embeddings=32),
}


def _random(config):
  """Parameters of which each matters: biases and norms are no constants."""
  params = model.init(config, 0)
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(1), len(leaves))
  return jax.tree.unflatten(tree, [
      x + 0.15 * jax.random.normal(key, x.shape)
      for x, key in zip(leaves, keys, strict=True)])


@pytest.mark.parametrize("name", _CASES)
def test_logprobs_and_gradients_equal_transformers(name, tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  config = _CASES[name]
  params = _random(config)
  hf_weights.save(tmp_path / "policy", config, params)
  assert hf_weights.read_config(tmp_path / "policy") == config
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "policy", dtype=torch.float32)
  tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 40))

  logits = theirs(torch.tensor(tokens)).logits[:, :-1]
  expected = torch.log_softmax(logits, -1).gather(
      -1, torch.tensor(tokens[:, 1:, None]))[..., 0]
  expected.mean().backward()

  @jax.jit
  def score(params):
    ids = jnp.asarray(tokens)
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    segments = jnp.ones_like(ids)
    return losses.token_logprobs(
        model.hidden(params, config, ids, positions, segments), ids, segments,
        lambda states: model.logits(params, config, states),
        chunk_tokens=16).logprobs[:, 1:]

  np.testing.assert_allclose(
      score(params), expected.detach().numpy(), atol=1e-4)
  gradients = jax.grad(lambda params: jnp.mean(score(params)))(params)
  hf_weights.save(tmp_path / "gradients", config, gradients)
  ours = dict(hf_weights._tensors(tmp_path / "gradients"))  # pylint: disable=protected-access
  for key, parameter in theirs.named_parameters():
    assert np.abs(ours[key]).max() > 0, key
    np.testing.assert_allclose(
        ours[key], parameter.grad.numpy(), atol=1e-5, rtol=1e-3, err_msg=key)


def test_every_type_turns_differently():
  def table(name):
    return rope.frequencies(
        _CASES[name].rope_scaling, theta=1e4, head_dim=16)
  plain, factor = table("qwen3")
  np.testing.assert_allclose(plain, 10.0**(-np.arange(8) / 2), rtol=1e-6)
  assert factor == 1
  np.testing.assert_allclose(table("linear")[0], plain / 3, rtol=1e-6)
  for name in ("llama3", "yarn"):
    assert not np.allclose(table(name)[0], plain)
  # Mild sharpening: 0.1 ln 4 + 1.
  assert table("yarn")[1] == pytest.approx(1.138629)


def test_a_folder_of_theirs_with_scaling_is_read(tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  theirs = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
      vocab_size=50, hidden_size=32, intermediate_size=48,
      num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
      max_position_embeddings=128, rope_parameters={
          "rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4,
          "original_max_position_embeddings": 32})).eval()
  theirs.save_pretrained(tmp_path)
  config, params = hf_weights.load(tmp_path)
  assert config.attention_bias and config.rope_scaling.rope_type == "yarn"
  tokens = jnp.arange(40)[None]
  states = model.hidden(params, config, tokens, tokens, jnp.ones_like(tokens))
  with torch.no_grad():
    expected = theirs(torch.arange(40)[None]).logits.numpy()
  np.testing.assert_allclose(
      model.logits(params, config, states), expected, atol=1e-4)
