"""One protocol, two servers: the embedded engine, and SGLang itself.

The same requests go to both. What is expected comes from a third place: the
learner's own forward pass over the weights that both serve. SGLang's part runs
by `./test.sh --sglang` alone, since it needs an environment of 2.2 GB.
"""

import asyncio
import concurrent.futures
import contextlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.chat import vocabulary
from rstar2_jax.learner import weight_sync
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model
from rstar2_jax.rollout import sampler_client
from tests.engine import server_process
from tests.sglang_cpu import server as sglang

_LENGTH = 256
_PROMPT = [1, 75, 76, 77, 198, 80, 81, 82, 83, 84]


class Policy:
  """Random weights in a folder, and what the learner says of them."""

  def __init__(self, folder, seed: int):
    self.folder = folder
    self.tokenizer = vocabulary.build(512)
    self.config = model.ModelConfig(
        vocab_size=self.tokenizer.vocab_size, hidden_size=64,
        intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
        head_dim=16)
    # Larger than a fresh model's, so that tokens differ in likelihood.
    self.params = jax.tree.map(
        lambda x: x * 4 if x.ndim > 2 else x, model.init(self.config, seed))
    hf_weights.save(folder, self.config, self.params, tokenizer=self.tokenizer)
    self._logits = jax.jit(self._forward)

  def logits(self, ids) -> np.ndarray:
    """float32 [n, V]: what follows each of `ids`."""
    padded = np.zeros(_LENGTH, np.int32)
    padded[:len(ids)] = ids
    return np.asarray(self._logits(padded))[:len(ids)]

  def logprobs(self, ids, temperature: float) -> np.ndarray:
    """float64 [n - 1]: of each id but the first, given those before."""
    logits = self.logits(ids)[:-1].astype(np.float64) / temperature
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(ids) - 1), np.asarray(ids)[1:]]

  def greedy(self, ids, num: int) -> list[int]:
    """The likeliest continuation."""
    ids = list(ids)
    for _ in range(num):
      ids.append(int(self.logits(ids)[-1].argmax()))
    return ids[-num:]

  def _forward(self, ids):
    positions = jnp.arange(len(ids))
    hidden = model.hidden(self.params, self.config, ids[None],
                          positions[None], jnp.ones((1, len(ids)), jnp.int32))
    return model.logits(self.params, self.config, hidden)[0]


@pytest.fixture(scope="module", name="policy")
def _policy(tmp_path_factory):
  return Policy(tmp_path_factory.mktemp("policy") / "a", 0)


@pytest.fixture(scope="module", name="other_policy")
def _other_policy(tmp_path_factory):
  return Policy(tmp_path_factory.mktemp("policy") / "b", 1)


@pytest.fixture(scope="module", name="url", params=[
    "embedded", pytest.param("sglang", marks=pytest.mark.sglang)])
def _url(request, policy):
  if request.param == "sglang" and not sglang.environment():
    pytest.skip("SGLang: run ./test.sh --sglang, which installs it (2.2 GB)")
  running = (server_process.running(policy.folder)
             if request.param == "embedded"
             else sglang.running(policy.folder, f"--context-length={_LENGTH}"))
  with running as (_, url):
    yield url


@pytest.fixture(name="weights")
def _weights(url, policy):
  """Whatever a test has loaded, the first weights come back."""
  yield
  server_process.call(url, "/update_weights_from_disk", {
      "model_path": str(policy.folder), "weight_version": "0"})


def _generate(url, **request):
  """A turn, asked for as rollouts do."""
  async def ask():
    client = sampler_client.HttpClient(url, timeout_s=120)
    try:
      return await client.generate(types.SampleRequest(**({
          "rid": "protocol-0000", "input_ids": _PROMPT, "max_new_tokens": 24,
          "temperature": 1.0, "seed": 3} | request)))
    finally:
      await client.close()
  return asyncio.run(ask())


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_logprobs_are_the_learners(url, policy, temperature):
  """P07, P08: at the sampling temperature, to 1e-4."""
  result = _generate(url, temperature=temperature)
  # A model's own end id ends a turn, too.
  assert result.finish_reason == (
      "length" if len(result.output_ids) == 24 else "stop")
  expected = policy.logprobs([*_PROMPT, *result.output_ids], temperature)
  np.testing.assert_allclose(
      result.logprobs, expected[len(_PROMPT) - 1:], atol=1e-4)


def test_greedy_tokens_are_the_likeliest(url, policy):
  result = _generate(url, temperature=0.0)
  assert list(result.output_ids) == policy.greedy(_PROMPT, 24)


def test_a_stop_id_ends_the_turn_and_is_its_last(url, policy):
  ids = policy.greedy(_PROMPT, 24)
  result = _generate(url, temperature=0.0, stop_token_ids=(ids[5],))
  first = ids.index(ids[5])
  assert list(result.output_ids) == ids[:first + 1]
  assert result.finish_reason == "stop"


def test_a_second_turn_finds_its_prefix_cached(url):
  server_process.call(url, "/flush_cache", {})
  first = _generate(url, temperature=0.0)
  assert first.cached_tokens == 0
  longer = [*_PROMPT, *first.output_ids, 5, 6]
  assert _generate(url, input_ids=longer).cached_tokens >= len(_PROMPT)


def test_sequences_are_scored(url, policy):
  """What the proof of weights and `experiments.record` ask for."""
  ids = [*_PROMPT, *policy.greedy(_PROMPT, 30)]

  async def ask():
    client = sampler_client.HttpClient(url, timeout_s=120)
    try:
      return await client.score(ids, num_top=5)
    finally:
      await client.close()

  scores = asyncio.run(ask())
  np.testing.assert_allclose([s.logprob for s in scores],
                             policy.logprobs(ids, 1.0), atol=1e-4)
  top = np.sort(policy.logits(ids).astype(np.float64), axis=-1)[:-1, ::-1]
  top -= np.log(np.exp(top).sum(-1, keepdims=True))
  np.testing.assert_allclose([s.top for s in scores], top[:, :5], atol=1e-4)


def test_new_weights_are_proven(url, policy, other_policy, tmp_path, weights):
  """P26, P27: no token and no cached prefix of the old weights is left."""
  _generate(url, temperature=0.0)  # its prefix is cached now
  sync = weight_sync.DiskSync(
      [url], folder=str(tmp_path), model_config=policy.config,
      tokenizer=policy.tokenizer)
  sync.push(other_policy.params, 7)
  result = _generate(url, temperature=0.0)
  assert list(result.output_ids) == other_policy.greedy(_PROMPT, 24)
  assert list(result.output_ids) != policy.greedy(_PROMPT, 24)
  assert (result.policy_version, result.cached_tokens) == (7, 0)
  assert not list(tmp_path.iterdir())  # the snapshot is gone


def test_weights_that_are_not_there_change_nothing(url, policy, tmp_path):
  status, body = server_process.call(url, "/update_weights_from_disk", {
      "model_path": str(tmp_path / "none"), "weight_version": "9"})
  assert (status, body["success"]) == (400, False)
  result = _generate(url, temperature=0.0)
  assert list(result.output_ids) == policy.greedy(_PROMPT, 24)


def test_other_weights_than_said_are_caught(
    url, policy, other_policy, tmp_path, weights):
  """A server that holds something else fails the probe."""
  class Wrong(weight_sync.DiskSync):
    """Sends one policy's weights for another's."""

    def _load(self, url, snapshot, policy_version):
      super()._load(url, str(other_policy.folder), policy_version)

  sync = Wrong([url], folder=str(tmp_path), model_config=policy.config,
               tokenizer=policy.tokenizer)
  with pytest.raises(RuntimeError, match="other weights"):
    sync.push(policy.params, 8)


def test_an_abort_ends_the_turn_with_what_it_has(url):
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = pool.submit(
        _generate, url, rid="abort-0001", max_new_tokens=240)
    _until(lambda: _num_running(url) == 1)
    server_process.call(url, "/abort_request", {"rid": "abort-0001"})
    result = answer.result(timeout=60)
  assert result.finish_reason == "abort"
  assert len(result.output_ids) < 240
  assert len(result.logprobs) == len(result.output_ids)


def test_a_pause_keeps_a_turn_and_continues_it(url, policy):
  with concurrent.futures.ThreadPoolExecutor() as pool:
    answer = pool.submit(_generate, url, max_new_tokens=200)
    _until(lambda: _num_running(url) == 1)
    assert server_process.call(
        url, "/pause_generation", {"mode": "retract"})[0] == 200
    time.sleep(0.3)
    assert not answer.done()
    assert server_process.call(url, "/continue_generation", {})[0] == 200
    result = answer.result(timeout=60)
  assert result.finish_reason in ("length", "stop")
  expected = policy.logprobs([*_PROMPT, *result.output_ids], 1.0)
  np.testing.assert_allclose(
      result.logprobs, expected[len(_PROMPT) - 1:], atol=1e-4)


def test_what_cannot_fit_is_refused(url):
  with pytest.raises(sampler_client.ServerError) as error:
    _generate(url, input_ids=[5] * (_LENGTH + 100), max_new_tokens=1)
  assert error.value.status == 400
  assert _generate(url).output_ids  # and the server goes on


def test_many_at_once_are_each_their_own(url, policy):
  """A batch of prompts of several lengths: logprobs are those of one alone."""
  rng = np.random.default_rng(0)
  prompts = [rng.integers(0, 400, n).tolist() for n in range(3, 35)]

  async def ask():
    client = sampler_client.HttpClient(url, timeout_s=120)
    try:
      return await asyncio.gather(*(client.generate(types.SampleRequest(
          rid=f"many-{i:04d}", input_ids=p, max_new_tokens=16, seed=i))
                                    for i, p in enumerate(prompts)))
    finally:
      await client.close()

  for prompt, result in zip(prompts, asyncio.run(ask()), strict=True):
    expected = policy.logprobs([*prompt, *result.output_ids], 1.0)
    np.testing.assert_allclose(
        result.logprobs, expected[len(prompt) - 1:], atol=1e-4)


def test_the_server_says_what_it_holds(url):
  status, info = server_process.call(url, "/server_info")
  assert status == 200
  assert int(info["max_total_num_tokens"]) > 0
  assert server_process.call(url, "/health")[0] == 200


def _num_running(url):
  return server_process.load_of(url)["num_running_reqs"]


def _until(condition):
  with contextlib.suppress(KeyError):
    server_process.until(condition)
