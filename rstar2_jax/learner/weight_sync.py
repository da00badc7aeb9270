"""New weights to rollout servers, with proof that they have arrived.

After every push the server scores a fixed probe sequence, and its logprobs
must be those that the learner computes from the weights that it sent. Silent
staleness is the failure that this prevents (P22): a server that kept old
weights, old prefix KV or another dtype's rounding is named before it samples.
"""

from collections.abc import Sequence
import concurrent.futures
import functools
import json
import os
import shutil
from typing import Any, Protocol
import urllib.error
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np

from rstar2_jax import errors
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.grpo import losses
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model

_NUM_PROBE_IDS = 24
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}  # nats, mean of differences
_TIMEOUT_S = 600.0


class WeightSync(Protocol):
  """Gives weights to every rollout server of a run."""

  def push(self, params: Any, policy_version: int) -> None:
    """Returns when every server samples from `params`, and not before.

    Raises:
      ConnectionError: a server does not answer.
      RuntimeError: a server's probe differs from the learner's.
    """


class InProcessSync:
  """WeightSync of the engine in this process, which shares the arrays."""

  def __init__(self, engine: engine_lib.Engine):
    """Does not own the engine."""
    self._engine = engine
    self._probe = Probe(engine.model_config, engine.num_ids)

  def push(self, params: Any, policy_version: int) -> None:
    """See WeightSync."""
    self._engine.set_params(params, policy_version)
    self._probe.check(
        params, self._engine.score(self._probe.ids.tolist()),
        f"the engine, version {policy_version}")


class DiskSync:
  """WeightSync of servers that load a folder they share with this process."""

  def __init__(
      self, urls: Sequence[str], *, folder: str,
      model_config: model.ModelConfig, tokenizer: Any,
  ):
    """Sends nothing yet.

    Args:
      urls: of servers that speak SGLang's API.
      folder: where snapshots are written; a tmpfs is fastest.
      model_config: the architecture.
      tokenizer: written into each snapshot.
    """
    self._urls = [url.rstrip("/") for url in urls]
    self._folder = folder
    self._config = model_config
    self._tokenizer = tokenizer
    self._probe = Probe(model_config, tokenizer.vocab_size)

  def push(self, params: Any, policy_version: int) -> None:
    """See WeightSync."""
    snapshot = os.path.abspath(
        os.path.join(self._folder, f"snapshot-{policy_version:06d}"))
    hf_weights.save(
        snapshot, self._config, params, tokenizer=self._tokenizer)
    def load(url: str) -> np.ndarray:
      self._load(url, snapshot, policy_version)
      return self._score(url)

    try:
      with concurrent.futures.ThreadPoolExecutor(len(self._urls)) as pool:
        scored = list(pool.map(load, self._urls))
      for url, scores in zip(self._urls, scored, strict=True):
        self._probe.check(params, scores, f"{url}, version {policy_version}")
    finally:
      shutil.rmtree(snapshot, ignore_errors=True)

  def _load(self, url: str, snapshot: str, policy_version: int) -> None:
    answer = _post(f"{url}/update_weights_from_disk", {
        "model_path": snapshot, "weight_version": str(policy_version),
        "flush_cache": True, "abort_all_requests": False})
    if not answer.get("success"):
      raise RuntimeError(f"{url} did not load version {policy_version}:"
                         f" {answer.get('message', answer)}")

  def _score(self, url: str) -> np.ndarray:
    answer = _post(f"{url}/generate", {
        "input_ids": self._probe.ids.tolist(),
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True, "logprob_start_len": 0})
    pairs = answer["meta_info"]["input_token_logprobs"]
    # Nothing is said about the first id: SGLang answers null there.
    return np.array([p[0] or 0.0 for p in pairs], np.float32)


class Probe:
  """A fixed sequence, and what it scores under given weights."""

  def __init__(self, model_config: model.ModelConfig, num_ids: int):
    rng = np.random.default_rng(0)
    self.ids = rng.integers(0, num_ids, _NUM_PROBE_IDS).astype(np.int32)
    self._tolerance = _TOLERANCE[model_config.dtype]
    self._score = jax.jit(functools.partial(
        _score, model_config=model_config, num_ids=num_ids))

  def check(self, params: Any, scored: np.ndarray, who: str) -> None:
    """Compares a server's scores with the learner's.

    Args:
      params: the weights that the server should have.
      scored: float32 [n], its logprobs of `ids`; the first is not compared.
      who: the server and version, for the message.

    Raises:
      RuntimeError: they differ.
    """
    expected = np.asarray(self._score(params, ids=self.ids))
    gap = float(np.abs(scored - expected)[1:].mean())
    if not gap <= self._tolerance:
      raise RuntimeError(
          f"weight sync: {who} scores the probe {gap:.2g} nats per token off"
          f" the learner (allowed: {self._tolerance}); it has other weights")


def _score(params, *, ids, model_config, num_ids) -> jax.Array:
  tokens = jnp.asarray(ids)[None]
  segments = jnp.ones_like(tokens)
  positions = jnp.arange(tokens.shape[1])[None]
  hidden = model.hidden(params, model_config, tokens, positions, segments)
  return losses.token_logprobs(
      hidden, tokens, segments,
      lambda states: model.logits(params, model_config, states),
      num_ids=num_ids).logprobs[0]


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
  request = urllib.request.Request(
      url, json.dumps(body).encode(), {"Content-Type": "application/json"})
  try:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
      return json.load(response)
  except urllib.error.HTTPError as e:
    text = e.read().decode(errors="replace")[:300]
    raise RuntimeError(f"{url}: status {e.code}: {text}") from e
  except (OSError, ValueError) as e:
    raise errors.UserError(
        f"rollout server {url} does not answer ({e})") from e
