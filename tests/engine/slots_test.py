"""Bookkeeping of slots, without a device."""

import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.engine import requests
from rstar2_jax.engine import slots as slots_lib
from rstar2_jax.engine.slots import State


def request(ids, order=0) -> requests.Request:
  made = requests.Request(
      types.SampleRequest(rid="r", input_ids=ids, max_new_tokens=8),
      requests.Extras(), on_event=lambda _: None)
  made.sequence = order
  return made


def prefill_all(slots: slots_lib.Slots) -> list[slots_lib.Copy]:
  """Runs prefills and copies until every request decodes."""
  copies = []
  while True:
    copies += slots.ready_copies()
    some = slots.next_prefill(4)
    if not some.size:
      return copies
    slots.advance_prefill(some, slots.target[some] - slots.num_cached[some])


@pytest.fixture
def slots() -> slots_lib.Slots:
  return slots_lib.Slots(num_slots=4, max_seq_len=32)


def test_last_id_of_a_prompt_is_left_to_decode(slots):
  slot = slots.admit(request([1, 2, 3]))
  assert slots.state[slot] == State.PREFILL
  assert slots.target[slot] == 2
  prefill_all(slots)
  assert slots.state[slot] == State.DECODE
  assert slots.num_known[slot] == 3 and slots.num_cached[slot] == 2


def test_prompt_of_one_id_is_decoded_at_once(slots):
  slot = slots.admit(request([1]))
  assert slots.state[slot] == State.DECODE


def test_group_waits_for_its_first_member(slots):
  group = [slots.admit(request([1, 2, 3, 4], i)) for i in range(3)]
  assert [State(s) for s in slots.state[group]] == [
      State.PREFILL, State.WAITING, State.WAITING]
  assert slots.next_prefill(4).tolist() == group[:1]
  copies = prefill_all(slots)
  assert {(c.source, c.length) for c in copies} == {(group[0], 3)}
  assert sorted(c.destination for c in copies) == sorted(group[1:])
  assert (slots.state[group] == State.DECODE).all()


def test_member_computes_itself_where_the_first_gave_up(slots):
  first, second = (slots.admit(request([1, 2, 3, 4], i)) for i in range(2))
  slots.release(first)
  assert prefill_all(slots) == []
  assert slots.state[second] == State.DECODE
  assert slots.num_cached[second] == 3


def test_source_of_a_copy_is_not_given_away(slots):
  for i in range(2):
    slots.admit(request([1, 2, 3, 4], i))
  source = 0
  slots.release(source)
  others = [slots.admit(request([9, 9, i], i)) for i in range(2)]
  assert source not in others
  assert slots.admit(request([9, 9, 9], 5)) is None  # until it is copied


def test_next_turn_continues_in_place(slots):
  slot = slots.admit(request([1, 2, 3]))
  prefill_all(slots)
  slots.append(np.array([slot]), np.array([[4], [5]]), np.array([2]))
  slots.release(slot)
  assert slots.num_cached[slot] == 4  # the last sampled id has no KV yet
  again = slots.admit(request([1, 2, 3, 4, 5, 6, 7]))
  assert again == slot
  assert slots.num_cached[slot] == 4 and slots.target[slot] == 6


def test_unrelated_requests_take_the_slot_unused_for_longest(slots):
  for i in range(4):
    slots.admit(request([i, i, i], i))
  prefill_all(slots)
  assert slots.admit(request([7, 7], 9)) is None
  for slot in (2, 0, 3, 1):
    slots.release(slot)
  taken = [slots.admit(request([8 + i, 8], i)) for i in range(4)]
  assert taken == [2, 0, 3, 1]
  assert slots.num_evicted_tokens == 8


def test_flush_forgets(slots):
  running = slots.admit(request([1, 2, 3, 4]))
  prefill_all(slots)
  idle = slots.admit(request([5, 6, 7], 1))
  prefill_all(slots)
  slots.release(idle)
  slots.flush()
  assert not slots.num_cached.any()
  assert slots.state[running] == State.PREFILL
  assert slots.num_known[running] == 4
  again = slots.admit(request([5, 6, 7, 8], 2))
  assert slots.num_cached[again] == 0


def test_random_traffic_keeps_its_books():
  """KV is always right for the ids it stands for."""
  rng = np.random.default_rng(0)
  slots = slots_lib.Slots(num_slots=6, max_seq_len=64)
  kv = [[] for _ in range(6)]  # what a device would hold
  running = {}
  prompts = [rng.integers(0, 3, n).tolist() for n in (1, 4, 9, 9, 20)]
  for order in range(400):
    ids = prompts[rng.integers(5)] + rng.integers(0, 3, 3).tolist()
    slot = slots.admit(request(ids, order))
    assert (slot is None) == (len(running) == 6) or slot is None
    if slot is not None:
      running[slot] = ids
    for copy in slots.ready_copies():
      kv[copy.destination] = kv[copy.source][:copy.length]
    some = slots.next_prefill(2)
    counts = np.minimum(slots.target[some] - slots.num_cached[some], 3)
    for s, n in zip(some, counts, strict=True):
      start = slots.num_cached[s]
      kv[s] = kv[s][:start] + slots.ids[s, start:start + n].tolist()
    slots.advance_prefill(some, counts)
    on = slots.in_state(State.DECODE)
    new = rng.integers(0, 3, (2, len(on)))
    counts = rng.integers(1, 3, len(on))
    for column, (s, n) in enumerate(zip(on, counts, strict=True)):
      last = slots.ids[s, slots.num_known[s] - 1]
      written = [last, *new[:, column]][:n]
      kv[s] = kv[s][:slots.num_cached[s]] + [int(i) for i in written]
    slots.append(on, new, counts)
    for s in range(6):
      n = slots.num_cached[s]
      assert kv[s][:n] == slots.ids[s, :n].tolist()
    for s in list(running):
      is_full = slots.num_known[s] > 50
      if slots.state[s] == State.DECODE and (is_full or rng.random() < 0.3):
        assert slots.ids[s, :len(running[s])].tolist() == running.pop(s)
        slots.release(s)
