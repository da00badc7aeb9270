"""What the engine samples, and what it says about it."""

import asyncio
import dataclasses
import time

import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.engine import requests as requests_lib


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_logprobs_are_the_learners(
    engine, policy, requests_of, sample, temperature):
  requests = requests_of(24, temperature=temperature)
  for request, result in zip(requests, sample(engine, requests), strict=True):
    ids = [*request.input_ids, *result.output_ids]
    expected = policy.logprobs(ids, temperature)[len(request.input_ids) - 1:]
    np.testing.assert_allclose(result.logprobs, expected, atol=1e-5)
    assert len(result.output_ids) == request.max_new_tokens
    assert result.finish_reason == "length"


def test_scores_are_the_learners(engine, policy):
  ids = np.random.default_rng(0).integers(0, policy.num_ids, 150)
  for temperature in (0.6, 1.0):
    scores = engine.score(ids, temperature)
    assert scores[0] == 0
    np.testing.assert_allclose(
        scores[1:], policy.logprobs(ids, temperature), atol=1e-5)


def test_padding_of_the_head_is_never_sampled(engine, requests_of, sample):
  results = sample(engine, requests_of(40, temperature=5.0, new=(50, 60)))
  assert max(i for r in results for i in r.output_ids) < 90


class TestBatchInvariance:
  """A request gives the same, whatever else the engine does."""

  @pytest.fixture
  def cases(self, requests_of):
    return requests_of(3, seed=5, prompt_len=(20, 30), new=(50, 60))

  @pytest.fixture
  def alone(self, engine, cases, sample):
    results = []
    for case in cases:
      results += sample(engine, [case])
      engine.flush_cache().result()
    return [_content(r) for r in results]

  @pytest.mark.parametrize("num_others, place", [(100, 0), (100, 50), (7, 7)])
  def test_neighbors(
      self, engine, cases, alone, requests_of, sample, num_others, place):
    others = requests_of(num_others, seed=num_others + place)
    # Longer sequences make the cache grow meanwhile.
    others += requests_of(3, seed=9, prompt_len=(60, 80), new=(90, 100))
    mixed = others[:place] + cases + others[place:]
    results = sample(engine, mixed)[place:place + len(cases)]
    assert [_content(r) for r in results] == alone

  def test_order(self, engine, cases, alone, sample):
    results = sample(engine, cases[::-1])[::-1]
    assert [_content(r) for r in results] == alone

  def test_cached_prefix(self, engine, cases, alone, sample):
    """In place after the same prompt, and copied from a running neighbor."""
    again = [dataclasses.replace(c, seed=c.seed + 1) for c in cases]
    sample(engine, again)
    assert [_content(r) for r in sample(engine, cases)] == alone
    engine.flush_cache().result()
    group = [dataclasses.replace(cases[0], seed=i) for i in range(15)]
    results = sample(engine, [*group, cases[0]])
    assert results[-1].cached_tokens == len(cases[0].input_ids) - 1
    assert _content(results[-1]) == alone[0]

  def test_next_turn_continues_in_place(self, engine, cases, sample):
    first, = sample(engine, cases[:1])
    ids = [*cases[0].input_ids, *first.output_ids, 1, 2, 3]
    turn = types.SampleRequest(rid="turn", input_ids=ids, max_new_tokens=30)
    cached, = sample(engine, [turn])
    assert cached.cached_tokens == len(ids) - 4  # the last id had no KV yet
    engine.flush_cache().result()
    computed, = sample(engine, [turn])
    assert computed.cached_tokens == 0
    # Decode steps and prefill round differently.
    assert cached.output_ids == computed.output_ids
    np.testing.assert_allclose(cached.logprobs, computed.logprobs, atol=1e-5)


def test_same_seed_same_tokens_other_seed_others(engine, sample):
  request = types.SampleRequest(
      rid="a", input_ids=[1, 2, 3], max_new_tokens=30, seed=1)
  first, again, other = sample(
      engine, [request, request, dataclasses.replace(request, seed=2)])
  assert first.output_ids == again.output_ids != other.output_ids


def test_greedy_is_argmax(engine, policy, requests_of, sample):
  for request, result in zip(
      requests := requests_of(8, temperature=0.0), sample(engine, requests),
      strict=True):
    ids = [*request.input_ids, *result.output_ids]
    best = policy.logits(ids).argmax(-1)[len(request.input_ids) - 1:-1]
    assert result.output_ids == tuple(best)
    np.testing.assert_allclose(
        result.logprobs, policy.logprobs(ids)[len(request.input_ids) - 1:],
        atol=1e-5)


def test_stop_ids_end_a_request_and_are_returned(engine, requests_of, sample):
  free = requests_of(20, new=(59, 60))
  stops = (7, 11, 50)
  stopped = [dataclasses.replace(r, stop_token_ids=stops) for r in free]
  num_stopped = 0
  for long, short in zip(
      sample(engine, free), sample(engine, stopped), strict=True):
    expected = []
    for i in long.output_ids:
      expected.append(i)
      if i in stops:
        break
    assert short.output_ids == tuple(expected)
    assert short.logprobs == long.logprobs[:len(expected)]
    is_stopped = expected[-1] in stops
    assert short.finish_reason == ("stop" if is_stopped else "length")
    num_stopped += is_stopped
  assert 0 < num_stopped


def test_number_of_compilations_is_bounded(engine, requests_of, sample):
  sample(engine, requests_of(60, prompt_len=(1, 120), new=(1, 70)))
  sample(engine, requests_of(3, prompt_len=(1, 120), new=(1, 70), top_k=5))
  engine.score(list(range(70)))
  device = engine.batcher.device
  assert all(n <= device.max_compiled[kind]
             for kind, n in device.num_compiled.items())


@pytest.mark.parametrize("wrong, message", [
    (dict(input_ids=[]), "input_ids is empty"),
    (dict(input_ids=[90]), "input_ids holds id 90, outside the vocabulary"),
    (dict(input_ids=[-1]), "input_ids holds id -1"),
    (dict(input_ids=[1.5]), "flat list of integers"),
    (dict(stop_token_ids=(1000,)), "stop_token_ids holds id 1000"),
    (dict(max_new_tokens=-1), "max_new_tokens must be at least 0"),
    (dict(max_new_tokens=198), "Requested token count exceeds"),
    (dict(temperature=-0.1), "temperature must be"),
    (dict(temperature=float("nan")), "temperature must be"),
    (dict(top_p=0.0), "top_p must be"),
    (dict(top_k=0), "top_k must be"),
])
def test_impossible_requests_are_refused(engine, sample, wrong, message):
  values = dict(rid="a", input_ids=[1, 2, 3], max_new_tokens=4) | wrong
  with pytest.raises(ValueError, match=message):
    sample(engine, [types.SampleRequest(**values)])
  # And the engine goes on.
  ok = types.SampleRequest(rid="b", input_ids=[1, 2], max_new_tokens=3)
  assert len(sample(engine, [ok])[0].output_ids) == 3


def test_top_and_chosen_logprobs(engine, policy):
  extras = requests_lib.Extras(
      num_top_logprobs=3, chosen_ids=(4, 8), logprob_start=0)
  request = types.SampleRequest(
      rid="a", input_ids=[3, 1, 4, 1, 5], max_new_tokens=20, seed=2)
  done = asyncio.run(engine.run(request, extras))
  ids = [*request.input_ids, *done.output_ids]
  logits = policy.logits(ids)
  logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  best = np.argsort(-logprobs, axis=-1)[:, :3]
  for t in range(20):
    values, top_ids = zip(*done.top_logprobs[t], strict=True)
    assert list(top_ids) == best[4 + t].tolist()
    np.testing.assert_allclose(values, logprobs[4 + t, top_ids], atol=1e-5)
  np.testing.assert_allclose(
      done.chosen_logprobs, logprobs[4:-1, [4, 8]], atol=1e-5)
  prompt = done.prompt_logprobs
  np.testing.assert_allclose(
      prompt.logprobs[1:], policy.logprobs(request.input_ids), atol=1e-5)
  assert prompt.top_ids[1:].tolist() == best[:4].tolist()
  np.testing.assert_allclose(
      prompt.chosen_logprobs[1:], logprobs[:4, [4, 8]], atol=1e-5)


class TestAbort:
  """Requests that end before their time."""

  def test_by_prefix_of_the_id(self, make_engine, requests_of):
    engine = make_engine(num_slots=2)  # so that some still queue
    requests = [dataclasses.replace(r, rid=rid, max_new_tokens=150)
                for r, rid in zip(requests_of(4, prompt_len=(5, 6)),
                                  ("aa0", "ab0", "aa1", "b00"), strict=True)]

    async def run():
      tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
      while engine.batcher.counters.sampled_tokens < 8:
        await asyncio.sleep(0.001)
      engine.abort("aa")
      return await asyncio.gather(*tasks)

    results = asyncio.run(run())
    reasons = [r.finish_reason for r in results]
    assert reasons == ["abort", "length", "abort", "length"]
    assert 0 < len(results[0].output_ids) < 150  # what it had is returned
    assert len(results[0].logprobs) == len(results[0].output_ids)
    assert results[2].output_ids == ()  # it was in the queue

  def test_cancelled_caller_stops_sampling(self, engine, requests_of):
    request, = requests_of(1, new=(150, 151))

    async def run():
      task = asyncio.create_task(engine.generate(request))
      await asyncio.sleep(0)
      while not engine.batcher.slots.num_running:
        await asyncio.sleep(0.001)
      task.cancel()
      with pytest.raises(asyncio.CancelledError):
        await task

    before = engine.batcher.counters.aborted
    asyncio.run(run())
    engine.resume().result()  # a round trip through the engine's thread
    assert engine.batcher.counters.aborted == before + 1
    assert engine.batcher.slots.num_running == 0


def test_an_idle_engine_takes_no_cpu(engine):
  engine.resume().result()
  start = time.process_time()
  time.sleep(0.5)
  assert time.process_time() - start < 0.1


def _content(result: types.SampleResult):
  return result.output_ids, result.logprobs
