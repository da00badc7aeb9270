"""Packing: every token once, nothing split, masks from spans alone."""

import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from rstar2_jax import types
from rstar2_jax.grpo import batching


def _trajectory(name, sample, lengths, first_id=100):
  """Spans prompt, policy, template, tool, template, policy, ... of lengths."""
  sources = [types.Source.PROMPT]
  while len(sources) < len(lengths):
    sources += [types.Source.POLICY, types.Source.TEMPLATE, types.Source.TOOL,
                types.Source.TEMPLATE]
  spans, next_id = [], first_id
  for length, source in zip(lengths, sources):
    ids = tuple(range(next_id, next_id + length))
    next_id += length
    logprobs = None
    if source is types.Source.POLICY:
      logprobs = tuple(-i / 1000 for i in ids)
    spans.append(types.Span(token_ids=ids, source=source, logprobs=logprobs))
  return types.Trajectory(
      prompt=types.Prompt(id=name, problem="?", answer="1"), sample=sample,
      spans=tuple(spans), stop_reason=types.StopReason.ANSWERED)


def _segments(batch):
  """{(row, segment): slice} of everything but padding."""
  found = {}
  for row, ids in enumerate(batch.segment_ids):
    for segment in range(1, ids.max() + 1):
      where = np.flatnonzero(ids == segment)
      assert len(where) and where[-1] - where[0] + 1 == len(where)
      found[row, segment] = slice(where[0], where[-1] + 1)
  return found


def test_one_row_by_hand():
  trajectory = _trajectory("p", 0, [2, 3, 1, 1, 1, 2], first_id=10)
  batch = batching.pack([trajectory], np.array([0.5]), row_tokens=12)
  np.testing.assert_array_equal(
      batch.tokens, [[*range(10, 20), 0, 0]])
  np.testing.assert_array_equal(batch.positions, [[*range(10), 0, 0]])
  np.testing.assert_array_equal(batch.segment_ids, [[1] * 10 + [0] * 2])
  mask = np.array([[0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0]], bool)
  np.testing.assert_array_equal(batch.loss_mask, mask)
  np.testing.assert_array_equal(batch.advantages, mask * np.float32(0.5))
  np.testing.assert_allclose(
      batch.rollout_logprobs,
      [[0, 0, -.012, -.013, -.014, 0, 0, 0, -.018, -.019, 0, 0]], rtol=1e-6)
  assert [str(a.dtype) for a in batch] == [
      "int32", "int32", "int32", "bool", "float32", "float32"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 9),
                          st.integers(0, 4)), max_size=24),
       st.integers(31, 50), st.integers(1, 5))
def test_invariants(shapes, row_tokens, rows_multiple):
  """Each trajectory once and whole; mask, logprobs, advantages on it alone."""
  trajectories, first_id = [], 1
  for i, (prompt, policy, turns) in enumerate(shapes):
    lengths = [prompt, policy, *[1, 1, 1, 1] * turns]
    trajectories.append(_trajectory(f"p{i % 5}", i, lengths, first_id))
    first_id += 100
  given_advantages = np.linspace(-1, 1, len(shapes))
  batch = batching.pack(trajectories, given_advantages, row_tokens=row_tokens,
                        rows_multiple=rows_multiple)
  num_rows, length = batch.tokens.shape
  assert length == row_tokens and num_rows and num_rows % rows_multiple == 0
  unseen = {t.spans[0].token_ids[0]: i for i, t in enumerate(trajectories)}
  for (row, _), where in _segments(batch).items():
    i = unseen.pop(int(batch.tokens[row, where][0]))
    expected = trajectories[i]
    assert batch.tokens[row, where].tolist() == expected.token_ids
    assert batch.positions[row, where].tolist() == list(
        range(len(expected.token_ids)))
    assert batch.loss_mask[row, where].tolist() == expected.loss_mask
    np.testing.assert_allclose(batch.rollout_logprobs[row, where],
                               expected.logprobs, rtol=1e-6)
    np.testing.assert_allclose(
        batch.advantages[row, where],
        np.float32(given_advantages[i]) * np.array(expected.loss_mask))
  assert not unseen
  padding = batch.segment_ids == 0
  assert not batch.loss_mask[padding].any()
  assert not batch.tokens[padding].any()


def test_arrival_order_changes_nothing_but_identity_decides():
  trajectories = [_trajectory(f"p{i // 4}", i % 4, [3, 2 + i % 3], 10 * i)
                  for i in range(16)]
  advantages = np.arange(16.0)
  expected = batching.pack(trajectories, advantages, row_tokens=16)
  order = list(range(16))
  random.Random(0).shuffle(order)
  actual = batching.pack([trajectories[i] for i in order], advantages[order],
                         row_tokens=16)
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_array_equal(a, b)


def test_first_fit_decreasing_fills_rows():
  # 6, 5, 5, 4, 3, 2, 2, 1 into rows of 10: 6+4, 5+5, 3+2+2+1 (28 of 30).
  lengths = [2, 5, 1, 6, 3, 5, 4, 2]
  batch = batching.pack_conversations(
      [([i] * n, [True] * n) for i, n in enumerate(lengths)], row_tokens=10)
  used = (batch.segment_ids > 0).sum(axis=1).tolist()
  assert used == [10, 10, 8]


def test_too_long_is_an_error_that_says_what_to_do():
  with pytest.raises(ValueError, match="p/3 has 12 tokens, more than a row of"
                     " 10; raise --batch.row_tokens"):
    batching.pack([_trajectory("p", 3, [6, 6])], np.ones(1), row_tokens=10)
  with pytest.raises(ValueError, match="conversation 1 has 3 tokens"):
    batching.pack_conversations([([1], [True]), ([1] * 3, [True] * 3)],
                                row_tokens=2)


def test_numbers_must_match():
  with pytest.raises(ValueError, match="1 trajectories but 2 advantages"):
    batching.pack([_trajectory("p", 0, [1, 1])], np.ones(2), row_tokens=4)
  with pytest.raises(ValueError, match="conversation 0 has 2 ids but a mask of"
                     " 1"):
    batching.pack_conversations([([1, 2], [True])], row_tokens=4)


def test_nothing_to_pack_is_rows_of_padding():
  batch = batching.pack([], np.zeros(0), row_tokens=4, rows_multiple=3)
  assert batch.tokens.shape == (3, 4)
  assert not batch.loss_mask.any() and not batch.segment_ids.any()


def test_conversations_by_hand():
  batch = batching.pack_conversations(
      [([7, 8, 9], [False, True, True]), ([5, 6], [False, True])],
      row_tokens=6, rows_multiple=2)
  np.testing.assert_array_equal(batch.tokens, [[7, 8, 9, 5, 6, 0], [0] * 6])
  np.testing.assert_array_equal(batch.segment_ids,
                                [[1, 1, 1, 2, 2, 0], [0] * 6])
  np.testing.assert_array_equal(batch.advantages,
                                [[0, 1, 1, 0, 1, 0], [0] * 6])
  assert not batch.rollout_logprobs.any()


def test_what_was_packed_comes_back_in_the_order_asked():
  """Each row's rollout logprobs are those of its own trajectories."""
  rng = np.random.default_rng(0)
  trajectories = []
  for sample, length in enumerate(rng.integers(1, 12, 30)):
    ids = tuple(range(length))
    trajectories.append(types.Trajectory(
        prompt=types.Prompt(id=f"p{sample % 3}", problem="", answer=""),
        sample=sample, stop_reason=types.StopReason.ANSWERED, spans=(
            types.Span(token_ids=(1, 2), source=types.Source.PROMPT),
            types.Span(token_ids=ids, source=types.Source.POLICY,
                       logprobs=tuple(-rng.random(length))),
            types.Span(token_ids=(3,), source=types.Source.TOOL),
            types.Span(token_ids=(4,), source=types.Source.POLICY,
                       logprobs=(-float(sample),)))))
  batch = batching.pack(
      trajectories, np.zeros(30), row_tokens=16, rows_multiple=4)
  order = rng.permutation(30)
  shuffled = [trajectories[i] for i in order]
  found = batching.unpack_sampled(batch.rollout_logprobs, shuffled)
  for t, values in zip(shuffled, found, strict=True):
    np.testing.assert_allclose(
        values, [*t.spans[1].logprobs, *t.spans[3].logprobs], rtol=1e-6)
