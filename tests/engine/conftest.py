"""A small random policy and an engine that samples from it."""

import asyncio
import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.policy import model

MODEL = model.ModelConfig(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_layers=2,
    num_heads=4, num_kv_heads=2, head_dim=16, rope_theta=1000.0)
SHAPES = config.EngineConfig(
    num_slots=16, max_seq_len=200, prefill_rows=4, prefill_chunk=8,
    decode_steps=4)
NUM_IDS = 90  # the head is padded beyond the tokenizer


class Policy:
  """Random weights, and what the learner's own forward pass says of them."""

  config = MODEL
  num_ids = NUM_IDS

  def __init__(self, seed: int):
    # Larger than a fresh model's, so that tokens differ in likelihood.
    self.params = jax.tree.map(
        lambda x: x * 6 if x.ndim > 2 else x, model.init(MODEL, seed))
    self._logits = jax.jit(self._forward)

  def logits(self, ids) -> np.ndarray:
    """float32 [n, NUM_IDS]: what follows each of `ids`."""
    padded = np.zeros(SHAPES.max_seq_len, np.int32)
    padded[:len(ids)] = ids
    return np.asarray(self._logits(padded))[:len(ids), :NUM_IDS]

  def logprobs(self, ids, temperature: float = 1.0) -> np.ndarray:
    """float64 [n - 1]: of each id but the first, given those before."""
    logits = self.logits(ids)[:-1].astype(np.float64) / temperature
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(ids) - 1), np.asarray(ids)[1:]]

  def _forward(self, ids):
    positions = jnp.arange(len(ids))
    hidden = model.hidden(self.params, MODEL, ids[None], positions[None],
                          jnp.ones((1, len(ids)), jnp.int32))
    return model.logits(self.params, MODEL, hidden)[0]


@pytest.fixture(scope="session")
def policy() -> Policy:
  return Policy(0)


@pytest.fixture(scope="session")
def other_policy() -> Policy:
  return Policy(1)


@pytest.fixture(scope="session")
def make_engine(policy):
  """Makes engines of `policy`; they are closed when tests end."""
  with contextlib.ExitStack() as stack:
    def make(**shapes) -> engine_lib.Engine:
      cfg = config.EngineConfig(**(vars(SHAPES) | shapes))
      return stack.enter_context(contextlib.closing(engine_lib.Engine(
          policy.params, MODEL, cfg, num_ids=NUM_IDS)))
    yield make


@pytest.fixture(scope="session")
def shared_engine(make_engine) -> engine_lib.Engine:
  return make_engine()


@pytest.fixture
def engine(shared_engine, policy) -> engine_lib.Engine:
  """The shared engine, with nothing cached and the weights of `policy`."""
  shared_engine.set_params(policy.params, 0)
  return shared_engine


@pytest.fixture(scope="session")
def requests_of():
  """Makes requests with prompts of random ids."""
  def make(num: int, *, seed: int = 0, prompt_len=(2, 40), new=(1, 60),
           **values) -> list[types.SampleRequest]:
    rng = np.random.default_rng(seed)
    return [
        types.SampleRequest(**({
            "rid": f"{seed:04d}-{i:04d}",
            "input_ids": rng.integers(
                0, NUM_IDS, rng.integers(*prompt_len)).tolist(),
            "max_new_tokens": int(rng.integers(*new)),
            "seed": int(rng.integers(2**31))} | values))
        for i in range(num)]
  return make


@pytest.fixture(scope="session")
def sample():
  """Samples requests at once; results in their order."""
  def run(engine, requests) -> list[types.SampleResult]:
    async def gather():
      return await asyncio.gather(*map(engine.generate, requests))
    return asyncio.run(gather())
  return run
