"""Trajectories on disk: everything that happened, one JSON object a line.

A record holds the trajectory itself, what the selection did with it and what
the learner thought of each sampled token, so that viewer and analysis need
neither the policy nor a tokenizer. Files are gzip'd; `zcat` shows them.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import enum
import gzip
import io
import json
import os
import re
import zlib
from typing import Any

from rstar2_jax import errors
from rstar2_jax import types

_NAME = re.compile(r"step_(\d+)\.jsonl\.gz")
# Logprobs are kept to 1e-6 nats, as close as float32 tells them apart.
_DIGITS = 6


class Fate(enum.StrEnum):
  """What the selection did with a trajectory."""

  TRAINED = "trained"
  NO_SIGNAL = "no_signal"  # all rewards of its group are equal
  NOT_DRAWN = "not_drawn"  # left out by Resample-on-Correct
  TOO_FEW = "too_few"  # its group lost more than RoC can spare
  NO_SIGNAL_LEFT = "no_signal_left"  # what RoC kept has equal rewards
  OVERLONG = "overlong"  # in the baseline, not in the loss
  LOST = "lost"  # spoiled by our infrastructure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """One trajectory of a training step.

  Attributes:
    step: 0-based.
    trajectory: as it was graded.
    pieces: text of every token, span by span like `trajectory.spans`; a
      character of several tokens stands at the last of them.
    fate: what the selection did.
    advantage: of every sampled token; None unless trained.
    error_ratio: RoC's penalty for erroneous calls (Eq. 4).
    answer_format: RoC's penalty for the answer's form (Eq. 5).
    learner_logprobs: nats, of the sampled tokens in order, by the learner's
      parameters before the update; empty if they were not computed.
    entropy: nats, likewise, of the distribution that the token was drawn from.
  """

  step: int
  trajectory: types.Trajectory
  pieces: tuple[tuple[str, ...], ...]
  fate: Fate
  advantage: float | None
  error_ratio: float
  answer_format: float
  learner_logprobs: tuple[float, ...] = ()
  entropy: tuple[float, ...] = ()


def to_json(record: Record) -> dict[str, Any]:
  """A JSON object; `from_json` gives the record back.

  Rollout and learner logprobs and entropies are rounded to 1e-6 nats.
  """
  fields = {field.name: getattr(record, field.name)
            for field in dataclasses.fields(record)}
  value = fields | dataclasses.asdict(record.trajectory)
  del value["trajectory"]
  for span in value["spans"]:
    if span["logprobs"] is not None:
      span["logprobs"] = _rounded(span["logprobs"])
  for name in ("learner_logprobs", "entropy"):
    value[name] = _rounded(value[name])
  return value


def from_json(value: Mapping[str, Any]) -> Record:
  """The record of a JSON object.

  Raises:
    KeyError, TypeError, ValueError: it is none.
  """
  record = Record(
      step=int(value["step"]), trajectory=_trajectory(value),
      pieces=tuple(map(tuple, value["pieces"])), fate=Fate(value["fate"]),
      advantage=value["advantage"], error_ratio=float(value["error_ratio"]),
      answer_format=float(value["answer_format"]),
      learner_logprobs=tuple(map(float, value["learner_logprobs"])),
      entropy=tuple(map(float, value["entropy"])))
  _check(record)
  return record


def _check(record: Record) -> None:
  """Raises ValueError unless what belongs together has one length."""
  trajectory = record.trajectory
  lengths = [len(span.token_ids) for span in trajectory.spans]
  if [len(pieces) for pieces in record.pieces] != lengths:
    raise ValueError("pieces are not those of the spans")
  if not all(isinstance(x, str) for pieces in record.pieces for x in pieces):
    raise ValueError("pieces are no texts")
  for name in ("learner_logprobs", "entropy"):
    if len(getattr(record, name)) not in (0, trajectory.num_sampled_tokens):
      raise ValueError(f"{name} are not of the sampled tokens")
  if not isinstance(trajectory.timings, Mapping):
    raise ValueError("timings are no table")
  if len(trajectory.tool_calls) != len(trajectory.tool_results):
    raise ValueError("calls and results are not as many")


def file_name(step: int) -> str:
  """Where the records of a step are, within a folder of them."""
  return f"step_{step:06d}.jsonl.gz"


def to_bytes(records: Iterable[Record]) -> bytes:
  """The content of a file of records."""
  buffer = io.BytesIO()
  # Without a time, equal records give equal files.
  with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
    for record in records:
      line = json.dumps(to_json(record), ensure_ascii=False)
      file.write(f"{line}\n".encode("utf-8", "backslashreplace"))
  return buffer.getvalue()


def read(
    folder: str, *, first_step: int = 0, last_step: int | None = None
) -> Iterator[Record]:
  """Records of a folder in order of step.

  Args:
    folder: with files as `file_name` says.
    first_step: earlier ones are left out.
    last_step: later ones are left out; None: none is.

  Raises:
    errors.UserError: there is no such folder, or a file in it is damaged.
  """
  try:
    found = [(int(m[1]), m[0]) for m in map(_NAME.fullmatch, os.listdir(folder))
             if m]
  except OSError as e:
    raise errors.UserError(
        f"{folder}: no folder of trajectories ({e.strerror})") from e
  for step, name in sorted(found):
    if step >= first_step and (last_step is None or step <= last_step):
      yield from _read_file(os.path.join(folder, name))


def _read_file(path: str) -> Iterator[Record]:
  number = 0
  try:
    if not os.path.getsize(path):
      raise EOFError("the file is empty")
    with gzip.open(path, "rt", encoding="utf-8") as file:
      for number, line in enumerate(file, 1):  # noqa: B007 (named below)
        yield from_json(json.loads(line))
  except (OSError, EOFError, zlib.error, KeyError, TypeError, ValueError,
          AttributeError) as e:
    raise errors.UserError(
        f"{path}:{number}: no record of a trajectory"
        f" ({type(e).__name__}: {e}); delete the file to go on without") from e


def _trajectory(value: Mapping[str, Any]) -> types.Trajectory:
  spans = tuple(
      types.Span(**{
          **span, "token_ids": tuple(span["token_ids"]),
          "source": types.Source(span["source"]),
          "logprobs": (None if span["logprobs"] is None
                       else tuple(span["logprobs"]))})
      for span in value["spans"])
  calls = tuple(
      types.ToolCall(**{**call, "status": (
          call["status"] and types.ToolStatus(call["status"]))})
      for call in value["tool_calls"])
  results = tuple(
      types.ToolResult(**{
          **result, "status": types.ToolStatus(result["status"])})
      for result in value["tool_results"])
  return types.Trajectory(
      prompt=types.Prompt(**value["prompt"]), sample=value["sample"],
      spans=spans, tool_calls=calls, tool_results=results,
      stop_reason=types.StopReason(value["stop_reason"]),
      turn_texts=tuple(value["turn_texts"]), reward=value["reward"],
      timings=value["timings"])


def _rounded(values: Iterable[float]) -> list[float]:
  return [round(float(x), _DIGITS) for x in values]
