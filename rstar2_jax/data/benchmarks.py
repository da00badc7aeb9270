"""Evaluation sets by name: problems whose answers may be any LaTeX.

A benchmark is read from a file (`NAME=FILE`, any schema that `math_schemas`
knows) or from the hub under the name in `HUB`. Unlike training problems its
answers are kept as they are: integers for the strict grader, the rest for the
lenient one.
"""

from collections.abc import Sequence
import dataclasses
import random
from typing import Any

from rstar2_jax import types
from rstar2_jax.data import math_schemas
from rstar2_jax.data import records
from rstar2_jax.data import row_files


@dataclasses.dataclass(frozen=True)
class Hub:
  """Where a benchmark lies on the hub.

  Attributes:
    name: of the data set, with `:CONFIG` where it has several.
    split: of it.
    how: what the user must do first; "" for nothing.
  """

  name: str
  split: str
  how: str = ""


HUB = {
    "aime24": Hub("HuggingFaceH4/aime_2024", "train"),
    "aime25": Hub("MathArena/aime_2025", "train"),
    "hmmt25": Hub("MathArena/hmmt_feb_2025", "train"),
    "math500": Hub("HuggingFaceH4/MATH-500", "test"),
    "gsm8k": Hub("openai/gsm8k:main", "test"),
    "gpqa_diamond": Hub(
        "Idavidrein/gpqa:gpqa_diamond", "train",
        "it is gated: accept its terms on its page and log in with"
        " `huggingface-cli login`"),
}
# Named in the paper, with checkers of their own that are not wired in.
ELSEWHERE = {
    "bfcl_v3": "run the package bfcl-eval against the rollout server's URL",
    "ifeval": "run the package if-verifiable against the rollout server's URL",
    "arena_hard": "it needs a judge; run the package of arena-hard-auto against"
                  " the rollout server's URL",
}
_GPQA_FIELDS = ("Question", "Correct Answer", "Incorrect Answer 1",
                "Incorrect Answer 2", "Incorrect Answer 3")
_LETTERS = "ABCD"
_THIN_COMMA = r",\!"  # MATH separates thousands so


def parse(text: str) -> tuple[str, str]:
  """Name and place of `NAME`, `NAME=FILE` or `FILE`.

  Raises:
    ValueError: an unknown name without a file.
  """
  name, equals, place = text.partition("=")
  if equals:
    if not name or not place or "/" in name:
      raise ValueError(f"{text!r}: must be NAME, NAME=FILE or FILE")
    return name, place
  if name in HUB:
    return name, f"hf:{HUB[name].name}"
  if name in ELSEWHERE:
    raise ValueError(f"{name}: {ELSEWHERE[name]}")
  if name.endswith(row_files.SUFFIXES):
    return name.rpartition("/")[2].rpartition(".")[0], name
  raise ValueError(
      f"unknown benchmark {name!r}; known are {', '.join(HUB)}; any other set"
      " is given as NAME=FILE")


def load(name: str, place: str) -> list[types.Prompt]:
  """All problems of a benchmark, in its order.

  Args:
    name: becomes each prompt's `source`.
    place: a file or hf:NAME, see `row_files.read`.

  Returns:
    Prompts; `id` is NAME/ID, unique over benchmarks; `answer` is plain digits
    for integers and LaTeX otherwise, a letter for multiple choice.

  Raises:
    ValueError: it cannot be read, or a row cannot be used: a benchmark counts
      whole or not at all.
  """
  hub = HUB.get(name)
  try:
    rows = list(row_files.read(place, split=hub.split if hub else "test"))
  except ValueError as e:
    how = f"; {hub.how}" if hub and hub.how else ""
    raise ValueError(f"benchmark {name}: {e}{how}") from e
  if not rows:
    raise ValueError(f"benchmark {name}: {place} holds no problem")
  prompts = [_prompt(name, number, row) for number, row in enumerate(rows)]
  if len({p.id for p in prompts}) < len(prompts):  # rows of several sets
    prompts = [dataclasses.replace(p, id=f"{name}/{i}")
               for i, p in enumerate(prompts)]
  return prompts


def is_integer(prompt: types.Prompt) -> bool:
  """Whether the strict grader can judge it."""
  return records.read_integer(prompt.answer) == prompt.answer


def _prompt(
    name: str, number: int, row: row_files.Row | row_files.Reject
) -> types.Prompt:
  if isinstance(row, row_files.Row):
    if all(field in row.values for field in _GPQA_FIELDS):
      return _multiple_choice(name, number, [
          str(row.values[field]) for field in _GPQA_FIELDS])
    problem = math_schemas.convert(row)
  else:
    problem = row
  if isinstance(problem, row_files.Reject):
    raise ValueError(
        f"benchmark {name}: {problem.where}: {problem.reason}"
        f" ({problem.detail}); a benchmark must be read whole")
  answer = problem.answer.strip().strip("$").strip()
  return types.Prompt(
      id=f"{name}/{problem.id or number}", problem=problem.text,
      answer=records.read_integer(answer.replace(_THIN_COMMA, ",")) or answer,
      source=name)


def _multiple_choice(
    name: str, number: int, texts: Sequence[Any]
) -> types.Prompt:
  """Question and options in an order that depends on the number alone."""
  question, *options = texts
  order = random.Random(number).sample(range(len(options)), len(options))
  lines = [f"({letter}) {options[i].strip()}"
           for letter, i in zip(_LETTERS, order, strict=True)]
  return types.Prompt(
      id=f"{name}/{number}", source=name, answer=_LETTERS[order.index(0)],
      problem="\n".join([question.strip(), "", *lines, "",
                         "Answer with the letter of the right option."]))
