"""The embedded rollout engine: an asynchronous front of the batcher.

The engine runs in a thread of its own. Callers await futures on their own
event loops; nothing here ever blocks a loop, and the engine never waits for
one, so that a weight update and a rollout cannot wait for each other (P32).
"""

import asyncio
import collections
from collections.abc import Callable, Sequence
import concurrent.futures
import threading
import time
from typing import Any, Literal

import numpy as np

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.engine import batching
from rstar2_jax.engine import device as device_lib
from rstar2_jax.engine import requests
from rstar2_jax.policy import model

# What happens to running requests when generation is paused or the weights
# are replaced: they end first, they end at once with what they have, they go
# back to the queue and are prefilled again, or they stay where they are.
Mode = Literal["wait", "abort", "retract", "in_place"]


class Engine:
  """Samples from one set of weights at a time.

  Attributes:
    model_config: the model's configuration.
    config: the shapes.
    num_ids: size of the vocabulary that may be sampled.
  """

  def __init__(
      self,
      params: Any,
      model_config: model.ModelConfig,
      engine_config: config.EngineConfig,
      *,
      policy_version: int | str = 0,
      num_ids: int | None = None,
  ):
    """Takes weights; the engine shares the arrays, it does not copy them.

    Args:
      params: parameters as policy.model has them.
      model_config: the model's configuration.
      engine_config: shapes.
      policy_version: name of the weights.
      num_ids: ids of the tokenizer; the head may be padded beyond. None: all.
    """
    self.model_config = model_config
    self.config = engine_config
    self.num_ids = num_ids or model_config.vocab_size
    self._device = device_lib.Device(
        params, model_config, engine_config, version=str(policy_version),
        num_ids=self.num_ids)
    self._batcher = batching.Batcher(self._device)
    self._inbox: collections.deque[Callable[[], None]] = collections.deque()
    self._wake = threading.Condition()
    self._is_paused = False
    self._is_closed = False
    self._error: Exception | None = None
    self._updates: collections.deque[
        tuple[concurrent.futures.Future, Callable[[], None]]
    ] = collections.deque()
    self._thread = threading.Thread(
        target=self._run, name="engine", daemon=True)
    self._thread.start()

  @property
  def weight_version(self) -> str:
    """Name of the weights now in use."""
    return self._device.version

  @property
  def policy_version(self) -> int:
    """The same as a number; -1 where the name is none."""
    return version_number(self._device.version)

  @property
  def kv_capacity(self) -> int:
    """Tokens that the KV cache holds."""
    return self.config.num_slots * self.config.max_seq_len

  @property
  def is_healthy(self) -> bool:
    """Whether the engine's thread is at work."""
    return self._error is None and not self._is_closed

  @property
  def is_paused(self) -> bool:
    """Whether generation is paused."""
    return self._is_paused

  @property
  def batcher(self) -> batching.Batcher:
    """For reading counters; belongs to the engine's thread."""
    return self._batcher

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """Samples one turn.

    Raises:
      ValueError: the request can never be served; the message says why.
      RuntimeError: the engine is closed or has failed.
    """
    done = await self.run(request)
    assert done.finish_reason is not None  # it has ended without an error
    return types.SampleResult(
        output_ids=tuple(done.output_ids), logprobs=tuple(done.logprobs),
        finish_reason=done.finish_reason["type"],
        policy_version=version_number(
            done.versions[-1][0] if done.versions else self.weight_version),
        cached_tokens=done.cached_tokens or 0)

  def check(
      self, sample: types.SampleRequest,
      extras: requests.Extras = requests.Extras(),
  ) -> None:
    """Raises ValueError for a request that can never be served."""
    requests.check(sample, extras, max_seq_len=self.config.max_seq_len,
                   num_ids=self.num_ids)

  async def run(
      self,
      sample: types.SampleRequest,
      extras: requests.Extras = requests.Extras(),
      on_progress: Callable[[requests.Request], None] | None = None,
  ) -> requests.Request:
    """Like `generate`, with all that a request may ask for.

    Args:
      sample: the request.
      extras: what else is wanted.
      on_progress: called in the engine's thread when ids were added; it must
        copy what it keeps and return at once.
    """
    self.check(sample, extras)
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(request: requests.Request) -> None:
      if future.done():
        return
      if request.error is not None:
        future.set_exception(request.error)
      else:
        future.set_result(request)

    def on_event(request: requests.Request) -> None:
      if request.is_done:
        _call_soon(loop, settle, request)
      elif on_progress is not None:
        on_progress(request)

    request = requests.Request(sample, extras, on_event)
    self._post(lambda: self._submit(request))
    try:
      return await future
    except asyncio.CancelledError:
      # The caller has gone (deadline, disconnect): stop sampling for it.
      self._post(lambda: self._batcher.abort(lambda r: r is request))
      raise

  def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
    """Ends requests whose id starts with `rid`, as SGLang does; or all."""
    if rid or abort_all:
      self._post(lambda: self._batcher.abort(
          lambda r: abort_all or r.sample.rid.startswith(rid)))

  def pause(self, mode: Mode = "abort") -> concurrent.futures.Future:
    """Stops generation until `resume`."""
    def apply() -> None:
      if mode == "abort":
        self._batcher.abort(lambda _: True)
      elif mode == "retract":
        self._batcher.retract()
      self._is_paused = True
      # Paused, there is nothing to wait for (as `replace_params` has it).
      while self._updates:
        self._updates.popleft()[1]()
    return self._call(apply)

  def resume(self) -> concurrent.futures.Future:
    """Goes on after `pause`."""
    def apply() -> None:
      self._is_paused = False
    return self._call(apply)

  def flush_cache(self) -> concurrent.futures.Future:
    """Forgets cached prefixes; False if there are requests, as SGLang."""
    def apply() -> bool:
      if self._batcher.slots.num_running or self._batcher.queue:
        return False
      self._batcher.forget()
      return True
    return self._call(apply)

  def set_params(
      self,
      params: Any,
      policy_version: int | str,
      *,
      mode: Mode = "wait",
      timeout_s: float | None = None,
  ) -> None:
    """Replaces the weights and forgets all cached KV; copies nothing.

    Blocks the caller, so never call it on an event loop; see `replace_params`.

    Args:
      params: like the present ones in structure, shapes and dtypes.
      policy_version: name of the new weights.
      mode: what becomes of running requests; "wait" lets them end with the old
        weights while new ones queue.
      timeout_s: how long to wait for running requests; None: for ever.

    Raises:
      ValueError: the parameters do not fit; the old ones stay.
      TimeoutError: running requests did not end in time; the old ones stay.
    """
    future = self.replace_params(params, policy_version, mode=mode)
    try:
      future.result(timeout_s)
    except concurrent.futures.TimeoutError as e:
      if future.cancel():
        raise TimeoutError(
            f"running requests did not end within {timeout_s} s; the weights"
            f" are still those of version {self.weight_version}") from e
      future.result()

  def replace_params(
      self, params: Any, policy_version: int | str, *, mode: Mode = "wait",
      flush: bool = True,
  ) -> concurrent.futures.Future:
    """`set_params` for callers that must not block; see there.

    `flush=False` keeps the KV of the old weights; only for those who ask.
    """
    self._device.check_params(params)
    future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def apply() -> None:
      if not future.set_running_or_notify_cancel():
        return
      self._device.set_params(params, str(policy_version))
      for request in self._batcher.slots.requests:
        if request is not None:
          request.mark_version(self._device.version)
      if flush:
        self._batcher.forget()
      future.set_result(None)

    def enqueue() -> None:
      if mode == "abort":
        self._batcher.abort(lambda _: True)
      elif mode == "retract":
        self._batcher.retract()
      if mode == "wait" and not self._is_paused:
        self._updates.append((future, apply))
      else:
        apply()

    self._post(enqueue)
    return future

  def score(
      self, input_ids: Sequence[int], temperature: float = 1.0
  ) -> np.ndarray:
    """Log-probabilities of a given sequence; blocks the caller.

    Args:
      input_ids: n ids.
      temperature: logits are divided by it; 0 counts as 1.

    Returns:
      float32 [n]; entry t speaks about id t given those before; entry 0 is 0.
    """
    ids = np.asarray(input_ids, np.int32)
    sample = types.SampleRequest(
        rid="score", input_ids=ids.tolist(), max_new_tokens=0,
        temperature=temperature)
    self.check(sample)
    return self._call(lambda: self._device.score(ids, temperature)).result()

  def warm_up(self) -> None:
    """Compiles every shape; optional, blocks the caller."""
    self._call(self._device.warm_up).result()

  def close(self) -> None:
    """Ends the thread; requests still running fail with RuntimeError."""
    with self._wake:
      self._is_closed = True
      self._wake.notify()
    self._thread.join()

  def _submit(self, request: requests.Request) -> None:
    if request.extras.logprob_start is not None:
      try:
        request.prompt_logprobs = self._device.score_rich(
            request.prompt_ids, 1.0, request.extras)
      except Exception as e:  # belongs to the caller, not to the engine
        request.error = e
        request.on_event(request)
        return
    if request.sample.max_new_tokens == 0:
      request.cached_tokens = 0
      request.started_s = request.finished_s = time.time()
      request.mark_version(self._device.version)
      request.finish_reason = {"type": "length", "length": 0}
      request.on_event(request)
    else:
      self._batcher.submit(request)

  def _post(self, action: Callable[[], None]) -> None:
    """Runs `action` in the engine's thread, in order."""
    with self._wake:
      if self._is_closed or self._error is not None:
        raise RuntimeError(
            f"the engine has failed: {self._error}" if self._error
            else "the engine is closed")
      self._inbox.append(action)
      self._wake.notify()

  def _call(self, function: Callable[[], Any]) -> concurrent.futures.Future:
    """Like `_post`; the future holds the result."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def apply() -> None:
      if not future.set_running_or_notify_cancel():
        return
      try:
        future.set_result(function())
      except Exception as e:  # belongs to the caller, not to the engine
        future.set_exception(e)

    self._post(apply)
    return future

  def _run(self) -> None:
    """The engine's thread."""
    try:
      while self._wait_for_work():
        self._take_inbox()
        # Weights are replaced when nothing runs; until then no one is admitted.
        while self._updates and not self._batcher.slots.num_running:
          self._updates.popleft()[1]()
        self._batcher.is_admitting = not self._updates and not self._is_paused
        if not self._is_paused and self._batcher.has_work:
          self._batcher.step()
      self._fail(RuntimeError("the engine was closed"))
    except Exception as e:  # whatever broke, callers must not wait for ever
      self._error = e
      self._fail(RuntimeError(f"the engine has failed: {e}"))
      raise

  def _wait_for_work(self) -> bool:
    with self._wake:
      self._wake.wait_for(lambda: (
          self._inbox or self._is_closed or (not self._is_paused and (
              self._updates or self._batcher.has_work))))
      return not self._is_closed

  def _take_inbox(self) -> None:
    while self._inbox:
      self._inbox.popleft()()

  def _fail(self, error: Exception) -> None:
    with self._wake:
      self._is_closed = True
    self._take_inbox()  # what came too late is among those who are told
    self._batcher.fail(error)
    for future, _ in self._updates:
      if future.set_running_or_notify_cancel():
        future.set_exception(error)


def version_number(version: str) -> int:
  """A weight version as a number, -1 for a name such as "default"."""
  return int(version) if version.isdecimal() else -1


def _call_soon(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
  try:
    loop.call_soon_threadsafe(*call)
  except RuntimeError:
    pass  # the loop is closed: no one waits for this any more
