"""Which request sits in which slot of the KV cache, and what KV is there.

Host bookkeeping, numpy only. A slot is a row of the cache. Its ids and KV stay
when a request ends, so that the next turn of the trajectory continues in place
and other members of the group copy the common prefix from it.

A request passes WAITING (its prefix is still being computed in another slot),
PREFILL and DECODE. The last id of a prompt is never prefilled: it is the input
of the first decode step, which gives the first sampled id.
"""

import enum
from typing import NamedTuple

import numpy as np

from rstar2_jax.engine import requests


class State(enum.IntEnum):
  """What a slot does."""

  IDLE = 0  # no request; whatever KV it holds may be reused
  WAITING = 1  # for a prefix that another slot is computing
  PREFILL = 2
  DECODE = 3


class Copy(NamedTuple):
  """A prefix of KV to be copied."""

  source: int
  destination: int
  length: int


class Slots:
  """All slots; every array is indexed by slot.

  Attributes:
    ids: int32 [N, S], known ids: prompt, then sampled.
    num_known: int32 [N], how many of `ids` are set.
    num_cached: int32 [N], KV is right for ids[:num_cached].
    target: int32 [N], KV entries a prompt needs before it is decoded.
    state: int8 [N], a State.
    requests: the request in each slot, None where idle.
    num_evicted_tokens: KV entries overwritten by unrelated requests so far.
  """

  def __init__(self, num_slots: int, max_seq_len: int):
    self.ids = np.zeros((num_slots, max_seq_len), np.int32)
    self.num_known = np.zeros(num_slots, np.int32)
    self.num_cached = np.zeros(num_slots, np.int32)
    self.target = np.zeros(num_slots, np.int32)
    self.state = np.zeros(num_slots, np.int8)
    self.requests: list[requests.Request | None] = [None] * num_slots
    self.num_evicted_tokens = 0
    self._order = np.zeros(num_slots, np.int64)  # of arrival
    self._last_used = np.zeros(num_slots, np.int64)
    self._tick = 0
    self._source = np.full(num_slots, -1, np.int32)  # of a WAITING slot
    self._copy_length = np.zeros(num_slots, np.int32)

  def in_state(self, state: State) -> np.ndarray:
    """Indices of the slots in `state`."""
    return np.flatnonzero(self.state == state)

  @property
  def num_running(self) -> int:
    """Slots with a request."""
    return int(np.count_nonzero(self.state))

  def admit(self, request: requests.Request) -> int | None:
    """Gives a request a slot; None if all are taken."""
    idle = self._free_destinations()
    if not idle.size:
      return None
    ids = request.all_ids()
    common = self._common_prefix(ids)
    slot, source, length = self._place(idle, common)
    if self.num_cached[slot] > common[slot]:
      self.num_evicted_tokens += int(self.num_cached[slot] - common[slot])
    n = len(ids)
    self.ids[slot, :n] = ids
    self.num_known[slot] = n
    self.num_cached[slot] = min(common[slot], self.num_cached[slot])
    self.target[slot] = n - 1
    self.requests[slot] = request
    self._order[slot] = request.sequence
    if source >= 0:
      self.state[slot] = State.WAITING
      self._source[slot], self._copy_length[slot] = source, length
    else:
      self._start(slot)
    return slot

  def ready_copies(self) -> list[Copy]:
    """Copies whose source now holds what is needed; no longer WAITING."""
    copies = []
    for slot in self.in_state(State.WAITING):
      source, length = int(self._source[slot]), int(self._copy_length[slot])
      if self.num_cached[source] >= length:
        copies.append(Copy(source, int(slot), length))
        self.num_cached[slot] = length
        self._start(slot)
      elif self.state[source] != State.PREFILL:
        self._start(slot)  # the source gave up; compute it here
    return copies

  def next_prefill(self, max_rows: int) -> np.ndarray:
    """Slots to prefill now, at most `max_rows`, first come first served."""
    slots = self.in_state(State.PREFILL)
    return slots[np.argsort(self._order[slots], kind="stable")][:max_rows]

  def advance_prefill(self, slots: np.ndarray, counts: np.ndarray) -> None:
    """`counts` more KV entries are there."""
    self.num_cached[slots] += counts
    done = slots[self.num_cached[slots] >= self.target[slots]]
    self.state[done] = State.DECODE

  def append(
      self, slots: np.ndarray, ids: np.ndarray, counts: np.ndarray
  ) -> None:
    """Adds sampled ids.

    Args:
      slots: int [n].
      ids: int32 [steps, n].
      counts: int32 [n], how many of the steps were sampled.
    """
    for step in range(int(counts.max(initial=0))):
      on = slots[counts > step]
      self.ids[on, self.num_known[on]] = ids[step, counts > step]
      self.num_known[on] += 1
    self.num_cached[slots] += counts

  def release(self, slot: int) -> None:
    """The request has left; ids and KV stay for reuse."""
    self.requests[slot] = None
    self.state[slot] = State.IDLE
    self._source[slot] = -1
    # Ids beyond the KV are of no use to a later request.
    self.num_known[slot] = self.num_cached[slot]
    self._touch(slot)

  def flush(self) -> None:
    """Forgets all KV; running requests must prefill again from the start."""
    self.num_cached[:] = 0
    idle = self.state == State.IDLE
    self.num_known[idle] = 0
    for slot in np.flatnonzero(~idle):
      self.target[slot] = self.num_known[slot] - 1
      self._start(int(slot))

  def _start(self, slot: int) -> None:
    self._source[slot] = -1
    self.state[slot] = (
        State.DECODE if self.num_cached[slot] >= self.target[slot]
        else State.PREFILL)
    self._touch(slot)

  def _touch(self, slot: int) -> None:
    self._tick += 1
    self._last_used[slot] = self._tick

  def _free_destinations(self) -> np.ndarray:
    """Idle slots that no one waits to copy from, oldest use first."""
    is_free = self.state == State.IDLE
    is_free[self._source[self.state == State.WAITING]] = False
    free = np.flatnonzero(is_free)
    return free[np.argsort(self._last_used[free], kind="stable")]

  def _common_prefix(self, ids: np.ndarray) -> np.ndarray:
    """int32 [N]: leading ids shared with each slot, the last one left out."""
    n = len(ids) - 1
    is_same = np.logical_and.accumulate(self.ids[:, :n] == ids[:n], axis=1)
    return np.minimum(is_same.sum(axis=1), self.num_known).astype(np.int32)

  def _place(
      self, idle: np.ndarray, common: np.ndarray
  ) -> tuple[int, int, int]:
    """(slot, source, length): where to sit, and what to copy from whom.

    Continues in place where the request extends all that a slot holds; else
    takes the slot unused for longest and copies, so that a trajectory whose
    tool is still running keeps its KV. source -1: nothing to copy.
    """
    # What a prefilling slot will hold counts too: the rest of its group waits
    # for it instead of computing the same prompt again.
    will_hold = np.where(
        self.state == State.PREFILL, self.target, self.num_cached)
    shared = np.minimum(common, will_hold)
    best = int(shared.argmax())
    extended = idle[(shared[idle] == self.num_cached[idle])
                    & (shared[idle] > 0)]
    if extended.size:
      slot = int(extended[shared[extended].argmax()])
      if shared[slot] >= shared[best]:
        return slot, -1, 0
    slot = int(idle[0])
    if best == slot and shared[best] and idle.size > 1:
      slot = int(idle[1])
    own = int(min(common[slot], self.num_cached[slot]))
    if best == slot or shared[best] <= own:
      return slot, -1, 0
    return slot, best, int(shared[best])
