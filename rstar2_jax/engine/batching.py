"""Continuous batching: one `step` moves every request of the engine forward.

1. Queued requests take free slots, first come first served.
2. Common prefixes are copied from the slots that hold them.
3. Prompts are prefilled, a chunk at a time, between decode dispatches, so that
   a long prompt does not stop those that are already sampling.
4. All sampling slots advance by several tokens in one dispatch.

No threads and no clocks here: the same requests give the same steps.
"""

import collections
from collections.abc import Callable
import dataclasses
import time

import numpy as np

from rstar2_jax.engine import device as device_lib
from rstar2_jax.engine import requests
from rstar2_jax.engine import slots as slots_lib
from rstar2_jax.engine import steps

# Prefill dispatches in a row while most slots still wait for their prompt.
_PREFILL_BURST = 4


@dataclasses.dataclass
class Counters:
  """Totals since the start."""

  requests: int = 0
  aborted: int = 0
  retracted: int = 0
  prompt_tokens: int = 0
  cached_tokens: int = 0  # prompt tokens that were not computed again
  sampled_tokens: int = 0


class Batcher:
  """Queue, slots and device state; used by one thread at a time.

  Attributes:
    slots: the slots.
    queue: requests without a slot, in order of arrival.
    counters: totals.
    is_admitting: whether queued requests may take slots.
  """

  def __init__(self, device: device_lib.Device):
    config = device.config
    self.device = device
    self.slots = slots_lib.Slots(config.num_slots, config.max_seq_len)
    self.queue: collections.deque[requests.Request] = collections.deque()
    self.counters = Counters()
    self.is_admitting = True
    self._controls = np.zeros(
        (config.num_slots, steps.NUM_CONTROLS), np.int32)
    self._chosen = np.zeros(
        (config.num_slots, requests.MAX_CHOSEN_IDS), np.int32)
    self._sequence = 0

  @property
  def has_work(self) -> bool:
    """Whether a step would do anything."""
    return bool(self.slots.num_running) or (
        bool(self.queue) and self.is_admitting)

  def submit(self, request: requests.Request) -> None:
    """Queues a checked request."""
    self._sequence += 1
    request.sequence = self._sequence
    self.queue.append(request)

  def step(self) -> None:
    """Admits, copies, prefills and decodes once."""
    self._admit()
    self._copy()
    for _ in range(_PREFILL_BURST):
      if not self._prefill():
        break
      self._copy()
      num_decoding = len(self.slots.in_state(slots_lib.State.DECODE))
      if 2 * num_decoding >= self.slots.num_running:
        break
    self._decode()

  def abort(self, matches: Callable[[requests.Request], bool]) -> None:
    """Ends matching requests; what they sampled so far is returned."""
    for request in [r for r in self.queue if matches(r)]:
      self.queue.remove(request)
      self._abort(request)
    for slot, request in self._running():
      if matches(request):
        self.slots.release(slot)
        self._abort(request)

  def retract(self) -> None:
    """Sends running requests back to the queue with what they sampled."""
    for slot, request in reversed(self._running()):
      self.slots.release(slot)
      request.num_retractions += 1
      self.counters.retracted += 1
      self.queue.appendleft(request)

  def forget(self) -> None:
    """Drops all KV; running requests compute theirs again."""
    self.slots.flush()
    self.device.clear()

  def fail(self, error: Exception) -> None:
    """Ends every request with an error."""
    everyone = [*self.queue, *(r for _, r in self._running())]
    self.queue.clear()
    for slot, _ in self._running():
      self.slots.release(slot)
    for request in everyone:
      request.error = error
      request.on_event(request)

  def _running(self) -> list[tuple[int, requests.Request]]:
    running = [(i, r) for i, r in enumerate(self.slots.requests)
               if r is not None]
    return sorted(running, key=lambda pair: pair[1].sequence)

  def _admit(self) -> None:
    while self.queue and self.is_admitting:
      request = self.queue[0]
      slot = self.slots.admit(request)
      if slot is None:
        return
      self.queue.popleft()
      request.mark_version(self.device.version)
      if not request.started_s:
        request.started_s = time.time()
        self.counters.requests += 1
        self.counters.prompt_tokens += len(request.prompt_ids)
      _write_controls(self._controls[slot], request)
      ids = request.extras.chosen_ids
      self._chosen[slot, :len(ids)] = ids

  def _copy(self) -> None:
    copies = self.slots.ready_copies()
    if copies:
      self.device.copy_prefixes(copies)

  def _prefill(self) -> bool:
    """One prefill dispatch; whether there was anything to do."""
    config = self.device.config
    slots = self.slots.next_prefill(config.prefill_rows)
    if not slots.size:
      return False
    starts = self.slots.num_cached[slots]
    counts = np.minimum(
        self.slots.target[slots] - starts, config.prefill_chunk)
    self._note_cached(slots)
    self.device.prefill(slots, self.slots.ids, starts, counts)
    self.slots.advance_prefill(slots, counts)
    return True

  def _note_cached(self, slots: np.ndarray) -> None:
    """Remembers what requests found in the cache when they were first run."""
    for slot in slots:
      request = self.slots.requests[slot]
      if request.cached_tokens is None:
        request.cached_tokens = int(self.slots.num_cached[slot])
        self.counters.cached_tokens += request.cached_tokens

  def _decode(self) -> None:
    slots = self.slots.in_state(slots_lib.State.DECODE)
    if not slots.size:
      return
    self._note_cached(slots)
    active = [self.slots.requests[s] for s in slots]
    num_known = self.slots.num_known[slots]
    controls = self._controls[slots]
    controls[:, steps.ID] = self.slots.ids[slots, num_known - 1]
    controls[:, steps.POSITION] = self.slots.num_cached[slots]
    controls[:, steps.LEFT] = [r.num_left for r in active]
    is_rich = any(r.extras.num_top_logprobs or r.extras.chosen_ids
                  for r in active)
    out = self.device.decode(
        slots, controls, self._chosen[slots] if is_rich else None,
        num_positions=int(num_known.max()) + self.device.config.decode_steps)
    self._collect(slots, out)

  def _collect(self, slots: np.ndarray, out: steps.Sampled) -> None:
    """Takes over what one decode dispatch sampled."""
    self.counters.sampled_tokens += int(out.counts.sum())
    self.slots.append(slots, out.ids, out.counts)
    now = time.time()
    for row, (slot, count, stopped) in enumerate(zip(
        slots.tolist(), out.counts.tolist(), out.is_stopped.tolist(),
        strict=True)):
      request = self.slots.requests[slot]
      if not request.first_token_s:
        request.first_token_s = now
      request.output_ids.extend(out.ids[:count, row].tolist())
      request.logprobs.extend(out.logprobs[:count, row].tolist())
      _take_rich(request, out, row, count)
      self._settle(slot, request, stopped, count)

  def _settle(
      self, slot: int, request: requests.Request, stopped: bool, count: int
  ) -> None:
    """Ends a request that has stopped; reports one that wants to be told."""
    finder = request.extras.stop_finder
    num_before = len(request.output_ids) - count
    found = finder.find(request.output_ids, num_before) if finder else None
    if found is not None:
      _truncate(request, found[0])
      request.finish_reason = {"type": "stop", "matched": found[1]}
    elif stopped:
      request.finish_reason = {
          "type": "stop", "matched": request.output_ids[-1]}
    elif request.num_left <= 0:
      request.finish_reason = {
          "type": "length", "length": len(request.output_ids)}
    if request.is_done:
      self.slots.release(slot)
      request.finished_s = time.time()
      request.on_event(request)
    elif request.extras.report_progress:
      request.on_event(request)

  def _abort(self, request: requests.Request) -> None:
    self.counters.aborted += 1
    request.finish_reason = {
        "type": "abort", "message": "Aborted", "status_code": None,
        "err_type": None}
    request.finished_s = time.time()
    request.on_event(request)


def _write_controls(row: np.ndarray, request: requests.Request) -> None:
  sample = request.sample
  row[steps.SEED] = np.uint32(sample.seed & 0xFFFFFFFF).view(np.int32)
  row[steps.TOP_K] = sample.top_k
  row[steps.TEMPERATURE:steps.TEMPERATURE + 3] = np.array(
      [sample.temperature, sample.top_p, request.extras.min_p],
      np.float32).view(np.int32)
  row[steps.STOP_IDS:] = -1
  stop_ids = sample.stop_token_ids
  row[steps.STOP_IDS:steps.STOP_IDS + len(stop_ids)] = stop_ids


def _take_rich(
    request: requests.Request, out: steps.Sampled, row: int, count: int
) -> None:
  extras, rich = request.extras, out.rich
  if rich is None:
    return
  if extras.num_top_logprobs:
    k = extras.num_top_logprobs
    request.top_logprobs += [
        list(zip(rich.top_logprobs[t, row, :k].tolist(),
                 rich.top_ids[t, row, :k].tolist(), strict=True))
        for t in range(count)]
  if extras.chosen_ids:
    request.chosen_logprobs += rich.chosen_logprobs[
        :count, row, :len(extras.chosen_ids)].tolist()


def _truncate(request: requests.Request, num_ids: int) -> None:
  """Drops what was sampled past a stop string within one dispatch."""
  del request.output_ids[num_ids:]
  del request.logprobs[num_ids:]
  del request.top_logprobs[num_ids:]
  del request.chosen_logprobs[num_ids:]
