"""New weights in a running engine, and its end."""

import asyncio
import collections
import threading

import jax
import numpy as np
import pytest



class TestNewWeights:
  """Replacing weights while requests run."""

  def test_wait_lets_running_requests_end_with_the_old(
      self, engine, policy, other_policy, requests_of):
    requests = requests_of(40, new=(40, 60))  # some run, some queue

    async def run():
      tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
      start = engine.batcher.counters.sampled_tokens
      while engine.batcher.counters.sampled_tokens < start + 10:
        await asyncio.sleep(0.001)
      await asyncio.to_thread(engine.set_params, other_policy.params, 1)
      return await asyncio.gather(*tasks)

    results = asyncio.run(run())
    versions = collections.Counter(r.policy_version for r in results)
    assert versions.keys() == {0, 1}
    for request, result in zip(requests, results, strict=True):
      by = (policy, other_policy)[result.policy_version]
      ids = [*request.input_ids, *result.output_ids]
      np.testing.assert_allclose(
          result.logprobs, by.logprobs(ids)[len(request.input_ids) - 1:],
          atol=1e-5)

  def test_old_keys_and_values_are_forgotten(
      self, engine, other_policy, requests_of, sample):
    request, = requests_of(1, prompt_len=(30, 31), new=(20, 21))
    sample(engine, [request])
    engine.set_params(other_policy.params, 1)
    result, = sample(engine, [request])
    assert result.cached_tokens == 0
    ids = [*request.input_ids, *result.output_ids]
    np.testing.assert_allclose(
        result.logprobs, other_policy.logprobs(ids)[29:], atol=1e-5)

  @pytest.mark.parametrize("mode", ["retract", "in_place"])
  def test_pause_replace_resume(
      self, engine, policy, other_policy, requests_of, mode):
    request, = requests_of(1, prompt_len=(20, 21), new=(100, 101))

    async def run():
      task = asyncio.create_task(engine.run(request))
      while not engine.batcher.slots.num_known.max() > 25:
        await asyncio.sleep(0.001)
      await asyncio.wrap_future(engine.pause(mode))
      await asyncio.wrap_future(
          engine.replace_params(other_policy.params, 1))
      await asyncio.wrap_future(engine.resume())
      return await task

    done = asyncio.run(run())
    spans = done.version_spans()
    assert [s["version"] for s in spans] == ["0", "1"]
    assert spans[0]["end"] == spans[1]["start"] > 0
    assert spans[1]["end"] == len(done.output_ids) == 100
    assert done.num_retractions == (mode == "retract")
    ids = [*request.input_ids, *done.output_ids]
    for span, by in zip(spans, (policy, other_policy), strict=True):
      np.testing.assert_allclose(
          done.logprobs[span["start"]:span["end"]],
          by.logprobs(ids)[19 + span["start"]:19 + span["end"]], atol=1e-5)

  def test_abort_returns_what_there_is(
      self, engine, other_policy, requests_of):
    request, = requests_of(1, new=(150, 151))

    async def run():
      task = asyncio.create_task(engine.generate(request))
      while not engine.batcher.slots.num_running:
        await asyncio.sleep(0.001)
      await asyncio.to_thread(
          engine.set_params, other_policy.params, 1, mode="abort")
      return await task

    assert asyncio.run(run()).finish_reason == "abort"
    assert engine.policy_version == 1

  def test_timeout_keeps_the_old(self, engine, other_policy, requests_of):
    request, = requests_of(1, new=(150, 151))

    async def run():
      task = asyncio.create_task(engine.generate(request))
      while not engine.batcher.slots.num_running:
        await asyncio.sleep(0.001)
      with pytest.raises(TimeoutError, match="version 0"):
        engine.set_params(other_policy.params, 1, timeout_s=1e-3)
      return await task

    assert asyncio.run(run()).policy_version == 0
    assert engine.policy_version == 0

  def test_others_than_the_present_are_refused(self, engine, policy):
    cut = jax.tree.map(lambda x: x[..., :1], policy.params)
    with pytest.raises(ValueError, match="in use is"):
      engine.set_params(cut, 1)
    with pytest.raises(ValueError, match="other names"):
      engine.set_params({"norm": policy.params["norm"]}, 1)

  def test_update_that_waits_is_done_when_paused(
      self, engine, other_policy, requests_of):
    """An update that waits for requests must not wait for the resume."""
    request, = requests_of(1, new=(150, 151))

    async def run():
      task = asyncio.create_task(engine.generate(request))
      while not engine.batcher.slots.num_running:
        await asyncio.sleep(0.001)
      update = engine.replace_params(other_policy.params, 1)
      await asyncio.wrap_future(engine.pause("in_place"))
      await asyncio.wait_for(asyncio.wrap_future(update), 30)
      await asyncio.wrap_future(engine.resume())
      return await task

    assert asyncio.run(run()).policy_version == 1


def test_flush_is_refused_while_requests_run(engine, requests_of):
  request, = requests_of(1, new=(150, 151))

  async def run():
    task = asyncio.create_task(engine.generate(request))
    while not engine.batcher.slots.num_running:
      await asyncio.sleep(0.001)
    refused = await asyncio.wrap_future(engine.flush_cache())
    await task
    return refused, await asyncio.wrap_future(engine.flush_cache())

  assert asyncio.run(run()) == (False, True)


class TestClosing:
  """An engine that ends or breaks leaves no one waiting."""

  def test_waiting_callers_get_an_error(
      self, make_engine, other_policy, requests_of):
    engine = make_engine(num_slots=2)
    requests = requests_of(6, new=(150, 151))

    async def run():
      tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
      while not engine.batcher.slots.num_running:
        await asyncio.sleep(0.001)
      update = engine.replace_params(other_policy.params, 1)
      closer = threading.Thread(target=engine.close)
      closer.start()
      results = await asyncio.gather(*tasks, return_exceptions=True)
      closer.join()
      return results, update

    results, update = asyncio.run(run())
    assert {str(r) for r in results} == {"the engine was closed"}
    assert isinstance(update.exception(5), RuntimeError)
    with pytest.raises(RuntimeError, match="the engine is closed"):
      asyncio.run(engine.generate(requests[0]))
    assert not engine.is_healthy

  @pytest.mark.filterwarnings(
      "ignore::pytest.PytestUnhandledThreadExceptionWarning")
  def test_a_broken_engine_says_so(self, make_engine, policy, requests_of):
    engine = make_engine(num_slots=2)
    donated = jax.tree.map(jax.numpy.array, policy.params)
    engine.set_params(donated, 1)
    jax.tree.map(lambda x: x.delete(), donated)
    with pytest.raises(RuntimeError, match="the engine has failed.*deleted"):
      asyncio.run(engine.generate(requests_of(1)[0]))
    with pytest.raises(RuntimeError, match="the engine has failed"):
      asyncio.run(engine.generate(requests_of(1)[0]))
    assert not engine.is_healthy
