"""The policy against transformers, and against itself with a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model

QWEN3 = model.ModelConfig(
    vocab_size=97, hidden_size=48, intermediate_size=80, num_layers=3,
    num_heads=4, num_kv_heads=2, head_dim=16, rope_theta=1e4,
    rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=128)
UNTIED = dataclasses.replace(
    QWEN3, tie_word_embeddings=False, rope_theta=1e6, num_kv_heads=4)
LLAMA = dataclasses.replace(QWEN3, qk_norm=False, rms_norm_eps=1e-5)


def random_params(config, seed=0):
  """Weights large enough that every part matters, norms included."""
  params = model.init(config, seed)
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
  return jax.tree.unflatten(tree, [
      x + 0.15 * jax.random.normal(k, x.shape)
      for x, k in zip(leaves, keys, strict=True)])


def forward(params, config, tokens):
  tokens = jnp.asarray(tokens)
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  states = model.hidden(
      params, config, tokens, positions, jnp.ones_like(tokens))
  return np.asarray(model.logits(params, config, states))


@pytest.mark.parametrize("config", [QWEN3, UNTIED, LLAMA],
                         ids=["qwen3", "untied", "llama"])
def test_logits_equal_transformers(config, tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  params = random_params(config)
  hf_weights.save(tmp_path / "policy", config, params)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      tmp_path / "policy", dtype=torch.float32)
  tokens = np.random.default_rng(0).integers(0, config.vocab_size, (2, 40))
  with torch.no_grad():
    expected = theirs(torch.tensor(tokens)).logits.numpy()
  np.testing.assert_allclose(
      forward(params, config, tokens), expected, atol=2e-4, rtol=1e-4)


def test_a_folder_that_transformers_wrote_is_read_in_its_dtype(tmp_path):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  theirs = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
      **{k: v for k, v in UNTIED.to_hf().items()
         if k not in ("architectures", "model_type", "torch_dtype")}))
  theirs = theirs.to(torch.bfloat16)
  theirs.save_pretrained(tmp_path, max_shard_size="40KB")
  assert len(list(tmp_path.glob("*.safetensors"))) > 1
  config, params = hf_weights.load(tmp_path)
  tokens = np.arange(20)[None]
  with torch.no_grad():
    expected = theirs.float()(torch.tensor(tokens)).logits.numpy()
  np.testing.assert_allclose(
      forward(params, config, tokens), expected, atol=2e-4, rtol=1e-4)


def test_packed_rows_equal_rows_of_their_own():
  params = random_params(QWEN3)
  rng = np.random.default_rng(1)
  a, b = rng.integers(0, 97, 9), rng.integers(0, 97, 14)
  tokens = np.concatenate([a, b, np.zeros(5, int)])[None]
  positions = np.concatenate([np.arange(9), np.arange(14), np.zeros(5, int)])
  segments = np.array([1] * 9 + [2] * 14 + [0] * 5)
  packed = np.asarray(model.hidden(
      params, QWEN3, jnp.asarray(tokens), jnp.asarray(positions[None]),
      jnp.asarray(segments[None])))
  packed = np.asarray(model.logits(params, QWEN3, packed))[0]
  np.testing.assert_allclose(
      packed[:9], forward(params, QWEN3, a[None])[0], atol=1e-5)
  np.testing.assert_allclose(
      packed[9:23], forward(params, QWEN3, b[None])[0], atol=1e-5)
  assert np.isfinite(packed).all()  # padding says nothing, but no NaN


@pytest.mark.parametrize("chunks", [(20,), (7, 13), (1,) * 20])
def test_chunks_with_a_cache_equal_one_pass(chunks):
  params = random_params(QWEN3)
  tokens = np.random.default_rng(2).integers(0, 97, (3, 20))
  cache, start, parts = _empty_cache(QWEN3, 3, 32), 0, []
  for size in chunks:
    positions = np.broadcast_to(np.arange(start, start + size), (3, size))
    states, cache = model.extend(
        params, QWEN3, jnp.asarray(tokens[:, start:start + size]),
        jnp.asarray(positions), cache)
    parts.append(model.logits(params, QWEN3, states))
    start += size
  np.testing.assert_allclose(
      np.concatenate(parts, axis=1), forward(params, QWEN3, tokens), atol=1e-5)


def test_padding_of_a_chunk_writes_nothing():
  params = random_params(QWEN3)
  empty = _empty_cache(QWEN3, 1, 8)
  _, cache = model.extend(
      params, QWEN3, jnp.array([[5, 6, 7]]), jnp.array([[0, 8, 2**30]]), empty)
  assert np.abs(np.asarray(cache.k[:, 0, 0])).min() > 0
  np.testing.assert_array_equal(np.asarray(cache.k[:, :, 1:]), 0)


def test_long_rows_in_blocks_equal_dense_attention(monkeypatch):
  from rstar2_jax.policy import attention  # pylint: disable=g-import-not-at-top
  rng = np.random.default_rng(3)
  q, k, v = (jnp.asarray(rng.normal(size=(2, 24, h, 8)), jnp.float32)
             for h in (4, 2, 2))
  segments = jnp.asarray(np.repeat([[1, 2, 0]], 2, axis=0).repeat(8, axis=1))
  dense = attention.packed(q, k, v, segments)
  monkeypatch.setattr(attention, "_QUERY_BLOCK", 6)
  blocks = attention.packed(q, k, v, segments)
  np.testing.assert_allclose(blocks, dense, atol=1e-6)


def test_rematerialized_layers_have_the_same_gradients():
  params = random_params(QWEN3)
  tokens = jnp.arange(12)[None]

  def loss(params, config):
    states = model.hidden(
        params, config, tokens, tokens, jnp.ones_like(tokens))
    return jnp.sum(model.logits(params, config, states)**2)

  plain = jax.grad(loss)(params, QWEN3)
  remat = jax.grad(loss)(params, dataclasses.replace(QWEN3, remat=True))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, rtol=1e-4, atol=1e-3), plain, remat)


def test_scanned_layers_equal_unrolled_ones(monkeypatch):
  params = random_params(QWEN3)
  tokens = np.arange(12)[None]
  unrolled = forward(params, QWEN3, tokens)
  monkeypatch.setattr(model, "_MAX_UNROLLED_LAYERS", 0)
  np.testing.assert_allclose(
      forward(params, QWEN3, tokens), unrolled, atol=1e-5)


def test_bfloat16_stays_near_float32():
  params = random_params(QWEN3)
  tokens = np.arange(16)[None]
  low = forward(params, dataclasses.replace(QWEN3, dtype="bfloat16"), tokens)
  assert low.dtype == np.float32
  high = forward(params, QWEN3, tokens)
  assert 0 < np.abs(low - high).max() < 0.05 * np.abs(high).max()


@pytest.mark.parametrize("change, message", [
    ({"model_type": "gpt2"}, "only qwen3, qwen2, llama"),
    ({"attention_bias": True}, "attention_bias"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}},
     "rope_type 'dynamic': only default, linear, llama3, yarn"),
    ({"rope_parameters": {"rope_type": "longrope"}},
     "rope_parameters has rope_type 'longrope'"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "not a number"),
    ({"rope_scaling": {"type": "yarn", "factor": 2, "speed": 1}},
     "'yarn': speed is unknown"),
    ({"hidden_act": "gelu"}, "hidden_act"),
])
def test_other_architectures_are_refused_by_name(change, message):
  with pytest.raises(ValueError, match=message):
    model.ModelConfig.from_hf(QWEN3.to_hf() | change)


def _empty_cache(config, batch, length):
  shape = (config.num_layers, batch, length, config.num_kv_heads,
           config.head_dim)
  return model.KVCache(jnp.zeros(shape), jnp.zeros(shape))
