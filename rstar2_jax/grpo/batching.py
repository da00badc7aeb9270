"""Packs trajectories or conversations into rows of fixed shape.

First-fit decreasing: the longest goes first, each into the first row with
room. What is packed where depends on lengths and identities only, never on the
order of arrival. A sequence is never split (P25) and every token appears once;
padding has segment 0 and mask False.
"""

from collections.abc import Sequence

import numpy as np

from rstar2_jax import types


def pack(
    trajectories: Sequence[types.Trajectory],
    advantages: np.ndarray,
    *,
    row_tokens: int,
    rows_multiple: int = 1,
) -> types.PackedBatch:
  """Packs trajectories with their advantages.

  Args:
    trajectories: N sampled conversations.
    advantages: float [N]; written onto every sampled token of its trajectory.
    row_tokens: T, length of a row.
    rows_multiple: the number of rows R is rounded up to a multiple of this
      with rows of padding.

  Returns:
    Arrays [R, T]; R is at least rows_multiple.

  Raises:
    ValueError: a trajectory is longer than a row, or numbers do not match.
  """
  if len(advantages) != len(trajectories):
    raise ValueError(f"{len(trajectories)} trajectories but {len(advantages)}"
                     " advantages")
  names = [f"{t.prompt.id}/{t.sample}" for t in trajectories]
  lengths, order = _order(trajectories)
  rows, starts, num_rows = _place(
      lengths, order, names, row_tokens, rows_multiple)
  batch = _empty(num_rows, row_tokens)
  segments = _segments(rows, order)
  for i, trajectory in enumerate(trajectories):
    _write(batch, rows[i], starts[i], segments[i], lengths[i])
    start = starts[i]
    for span in trajectory.spans:
      end = start + len(span.token_ids)
      batch.tokens[rows[i], start:end] = span.token_ids
      if span.source is types.Source.POLICY:
        batch.loss_mask[rows[i], start:end] = True
        batch.advantages[rows[i], start:end] = advantages[i]
        batch.rollout_logprobs[rows[i], start:end] = span.logprobs
      start = end
  return batch


def unpack_sampled(
    values: np.ndarray, trajectories: Sequence[types.Trajectory]
) -> list[np.ndarray]:
  """Takes what belongs to sampled tokens back from packed rows.

  Args:
    values: [R, T], aligned to the rows that `pack` made of `trajectories`.
    trajectories: N, in any order.

  Returns:
    For each trajectory the values of its sampled tokens, in their order.
  """
  names = [f"{t.prompt.id}/{t.sample}" for t in trajectories]
  lengths, order = _order(trajectories)
  rows, starts, _ = _place(lengths, order, names, values.shape[1], 1)
  return [
      values[row, start:start + length][np.array(t.loss_mask, bool)]
      for t, row, start, length in zip(
          trajectories, rows, starts, lengths, strict=True)]


def pack_conversations(
    conversations: Sequence[tuple[Sequence[int], Sequence[bool]]],
    *,
    row_tokens: int,
    rows_multiple: int = 1,
) -> types.PackedBatch:
  """Packs conversations for SFT.

  Args:
    conversations: N pairs of ids and loss mask, of equal length.
    row_tokens: T, length of a row.
    rows_multiple: see pack.

  Returns:
    Arrays [R, T]; advantages are 1 on trained tokens, rollout_logprobs are 0.
    Rows come in descending order of their longest conversation: shuffle them.

  Raises:
    ValueError: a conversation is longer than a row, or its mask does not fit.
  """
  lengths = [len(ids) for ids, _ in conversations]
  names = [f"conversation {i}" for i in range(len(lengths))]
  order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
  rows, starts, num_rows = _place(
      lengths, order, names, row_tokens, rows_multiple)
  batch = _empty(num_rows, row_tokens)
  segments = _segments(rows, order)
  for i, (ids, mask) in enumerate(conversations):
    if len(mask) != len(ids):
      raise ValueError(f"{names[i]} has {len(ids)} ids but a mask of"
                       f" {len(mask)}")
    _write(batch, rows[i], starts[i], segments[i], lengths[i])
    where = rows[i], slice(starts[i], starts[i] + lengths[i])
    batch.tokens[where] = ids
    batch.loss_mask[where] = mask
    batch.advantages[where] = mask
  return batch


def _order(
    trajectories: Sequence[types.Trajectory],
) -> tuple[list[int], list[int]]:
  """Lengths, and the order of placement: the longest first."""
  lengths = [sum(len(span.token_ids) for span in t.spans)
             for t in trajectories]
  order = sorted(
      range(len(lengths)),
      key=lambda i: (-lengths[i], trajectories[i].prompt.id,
                     trajectories[i].sample))
  return lengths, order


def _place(
    lengths: Sequence[int],
    order: Sequence[int],
    names: Sequence[str],
    row_tokens: int,
    rows_multiple: int,
) -> tuple[list[int], list[int], int]:
  """First fit in the given order: row and start of each, number of rows."""
  room = np.full(len(lengths) + 1, row_tokens, np.int64)
  rows, starts = [0] * len(lengths), [0] * len(lengths)
  num_rows = 0
  for i in order:
    if lengths[i] > row_tokens:
      raise ValueError(
          f"{names[i]} has {lengths[i]} tokens, more than a row of"
          f" {row_tokens}; raise --batch.row_tokens or lower the limits on"
          " prompt and response")
    row = int(np.argmax(room[:num_rows + 1] >= lengths[i]))
    rows[i], starts[i] = row, row_tokens - int(room[row])
    room[row] -= lengths[i]
    num_rows = max(num_rows, row + 1)
  num_rows = max(num_rows, 1)
  return rows, starts, -(-num_rows // rows_multiple) * rows_multiple


def _segments(rows: Sequence[int], order: Sequence[int]) -> list[int]:
  """Number of each sequence within its row, from 1, in order of placement."""
  num_in_row: dict[int, int] = {}
  segments = [0] * len(rows)
  for i in order:
    segments[i] = num_in_row[rows[i]] = num_in_row.get(rows[i], 0) + 1
  return segments


def _empty(num_rows: int, row_tokens: int) -> types.PackedBatch:
  shape = num_rows, row_tokens
  return types.PackedBatch(
      tokens=np.zeros(shape, np.int32), positions=np.zeros(shape, np.int32),
      segment_ids=np.zeros(shape, np.int32),
      loss_mask=np.zeros(shape, np.bool_),
      advantages=np.zeros(shape, np.float32),
      rollout_logprobs=np.zeros(shape, np.float32))


def _write(
    batch: types.PackedBatch, row: int, start: int, segment: int, length: int
) -> None:
  """Writes what depends on the place alone."""
  batch.positions[row, start:start + length] = np.arange(length)
  batch.segment_ids[row, start:start + length] = segment
