"""Samples of a problem set on disk: one line each, counted, resumed.

Benchmarks, the label check and the hard filter all sample every problem k times
and look at the verdicts. Each finished sample is a line of `samples.jsonl`, so
that whatever stops a run costs only the problems in flight. A problem whose k
samples are all there is not sampled again; one that infrastructure spoiled is.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
import dataclasses
import json
import os
import threading
from typing import Any

from rstar2_jax import errors
from rstar2_jax import types
from rstar2_jax.data import benchmarks
from rstar2_jax.data import output_files
from rstar2_jax.rewards import equality
from rstar2_jax.rewards import grading

Verify = Callable[[str, str], Awaitable[bool | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """What is kept of one trajectory.

  Attributes:
    set: name of the problem set.
    id: of the problem.
    sample: index within the problem, from 0.
    stop_reason: a `types.StopReason`.
    answer: content of the last turn's box; None without one.
    response: the last turn's text.
    response_tokens: after the prompt, tool output included.
    turns: assistant turns.
    calls: tool calls.
    erroneous_calls: those that the policy is to blame for.
    wall_s: from admission to end [s].
  """

  set: str
  id: str
  sample: int
  stop_reason: str
  answer: str | None
  response: str
  response_tokens: int
  turns: int
  calls: int
  erroneous_calls: int
  wall_s: float

  @property
  def is_lost(self) -> bool:
    """Whether our infrastructure spoiled it."""
    return self.stop_reason in (types.StopReason.INFRA_ERROR,
                                types.StopReason.ABORTED)


def of_trajectory(trajectory: types.Trajectory) -> Sample:
  """The sample of a finished trajectory, graded or not."""
  t = trajectory
  response = t.turn_texts[-1] if t.turn_texts else ""
  return Sample(
      set=t.prompt.source, id=t.prompt.id, sample=t.sample,
      stop_reason=str(t.stop_reason), response=response,
      answer=(grading.boxed_answer(grading.last_turn(response))
              if t.stop_reason is types.StopReason.ANSWERED else None),
      response_tokens=t.num_response_tokens, turns=t.num_turns,
      calls=len(t.tool_calls),
      erroneous_calls=sum(r.status.is_policy_error for r in t.tool_results),
      wall_s=round(t.timings.get("wall_s", 0.0), 3))


class SampleFile:
  """`samples.jsonl` of a folder, with the settings that it was made with."""

  def __init__(self, folder: str, settings: Mapping[str, Any]):
    """Opens or makes the folder.

    Args:
      folder: of the samples.
      settings: JSON values by name; samples made with others are not mixed in.

    Raises:
      errors.UserError: the folder holds samples made with other settings.
    """
    self._path = os.path.join(folder, "samples.jsonl")
    self._lock = threading.Lock()
    self._samples: dict[tuple[str, str, int], Sample] = {}
    os.makedirs(folder, exist_ok=True)
    _check_settings(os.path.join(folder, "settings.json"), settings)
    if os.path.exists(self._path):
      self._read()
    self._file = open(self._path, "a", encoding="utf-8")

  def __enter__(self) -> "SampleFile":
    return self

  def __exit__(self, *unused) -> None:
    self._file.close()

  def add(self, sample: Sample) -> None:
    """Keeps a sample; from any thread."""
    line = json.dumps(dataclasses.asdict(sample), ensure_ascii=False)
    with self._lock:
      self._samples[(sample.set, sample.id, sample.sample)] = sample
      self._file.write(line + "\n")
      self._file.flush()

  def missing(
      self, prompts: Sequence[types.Prompt], num_samples: int
  ) -> list[types.Prompt]:
    """Prompts that do not have `num_samples` samples yet."""
    return [p for p in prompts if len(self.of(p, num_samples)) < num_samples]

  def of(self, prompt: types.Prompt, num_samples: int) -> list[Sample]:
    """The first `num_samples` samples of a problem that are not lost."""
    found = [self._samples.get((prompt.source, prompt.id, i))
             for i in range(num_samples)]
    return [s for s in found if s is not None and not s.is_lost]

  def _read(self) -> None:
    with open(self._path, "rb") as file:
      data = file.read()
    end = data.rfind(b"\n") + 1  # a line that was cut off is sampled again
    if end < len(data):
      os.truncate(self._path, end)
    for number, line in enumerate(data[:end].splitlines(), 1):
      try:
        sample = Sample(**json.loads(line))
      except (ValueError, TypeError) as e:
        raise errors.UserError(
            f"{self._path}:{number}: is no sample ({e}); remove the line or the"
            " folder") from None
      self._samples[(sample.set, sample.id, sample.sample)] = sample


async def grade(
    samples: Sequence[tuple[types.Prompt, Sample]], verify: Verify,
    *, max_in_flight: int = 64,
) -> list[tuple[bool | None, bool | None]]:
  """(strict, lenient) verdicts.

  Args:
    samples: with their problems.
    verify: as `equality.grade` takes it.
    max_in_flight: calls of it at once.

  Returns:
    For each sample: the strict verdict, None where the reference is no
    integer; the lenient one, None where our infrastructure failed.
  """
  gate = asyncio.Semaphore(max_in_flight)
  known: dict[tuple[str, str | None], asyncio.Task] = {}

  async def lenient(prompt: types.Prompt, sample: Sample) -> bool | None:
    async with gate:
      return await equality.grade(sample.response, prompt.answer, verify)

  def once(prompt: types.Prompt, sample: Sample) -> asyncio.Task:
    # Equal answers to one problem have one verdict, and cost one call.
    key = (prompt.answer, sample.answer)
    if key not in known:
      known[key] = asyncio.ensure_future(lenient(prompt, sample))
    return known[key]

  async def verdict(prompt, sample):
    strict = (is_right(prompt, sample) if benchmarks.is_integer(prompt)
              else None)
    if sample.answer is None:  # cut off, or no answer: wrong for both
      return strict, False
    return strict, await once(prompt, sample)

  return list(await asyncio.gather(*(verdict(p, s) for p, s in samples)))


def is_right(prompt: types.Prompt, sample: Sample) -> bool:
  """The strict verdict on a sample of a prompt with an integer answer."""
  return (sample.answer is not None
          and grading.read_integer(sample.answer) == prompt.answer)


def rewards(
    verdicts: Iterable[tuple[bool | None, bool | None]],
) -> list[float | None]:
  """The paper's reward: strict where it applies, else lenient; None: lost."""
  chosen = [lenient if strict is None else strict
            for strict, lenient in verdicts]
  return [None if v is None else float(v) for v in chosen]


def by_problem(
    pairs: Sequence[tuple[types.Prompt, Sample]], values: Sequence[Any]
) -> dict[str, list[Any]]:
  """Values of samples by problem id, in order of sample."""
  found = collections.defaultdict(list)
  for (prompt, _), value in zip(pairs, values, strict=True):
    found[prompt.id].append(value)
  return dict(found)


def _check_settings(path: str, settings: Mapping[str, Any]) -> None:
  wanted = json.loads(json.dumps(settings))
  if not os.path.exists(path):
    output_files.write_json(path, wanted)
    return
  with open(path, encoding="utf-8") as file:
    found = json.load(file)
  for name in sorted(found.keys() | wanted.keys()):
    if found.get(name) != wanted.get(name):
      raise errors.UserError(
          f"{os.path.dirname(path)}: its samples were made with"
          f" {name}={found.get(name)}, now it is {wanted.get(name)}; give"
          " another --label or --out, or remove the folder")
