r"""Mathematics data sets in their published schemas, as problem and answer.

A row is recognized by its fields. Sources and their fields:

- ours: `problem` (or `question`), `answer`.
- GSM8K: `question`, `answer` that ends in `#### N`.
- MATH, DeepScaleR: `problem`, `answer` or a `solution` with a `\boxed{}`.
- DAPO-Math-17k: `prompt` (text or one user message, with its instructions
  around the problem), `reward_model.ground_truth`.
- OpenMathReasoning (AoPS): `problem`, `expected_answer`, `problem_type`.
- Project Euler lists: `problem` or `description`, `answer`, a number or title.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import re
from typing import Any

from rstar2_jax.data import records
from rstar2_jax.data import row_files

# What DAPO and common evaluation copies put around a problem.
_INSTRUCTIONS = (
    re.compile(r"^Solve the following math problem step by step\. The last line"
               r" of your response should be of the form Answer: .*?\n\n",
               re.DOTALL),
    re.compile(r"\n+Remember to put your answer on its own line after"
               r" \"Answer:\"\.?\s*$"),
    re.compile(r"\n+Please reason step by step, and put your final answer"
               r" within \\boxed\{\}\.?\s*$"),
)
_BOX = r"\boxed{"
_GSM8K_MARK = "####"
_TEXT_FIELDS = ("problem", "question", "description")


@dataclasses.dataclass(frozen=True)
class Problem:
  """One problem as its source states it.

  Attributes:
    where: file and line.
    id: the source's, or "".
    text: the problem without instructions around it.
    answer: the source's answer as text, not yet checked.
    source: the source's own name for where it comes from, or "".
  """

  where: str
  id: str
  text: str
  answer: str
  source: str


def read(
    name: str, *, split: str = "train"
) -> Iterator[Problem | row_files.Reject]:
  """Problems of one input in order; takes and raises as `row_files.read`."""
  for row in row_files.read(name, split=split):
    yield row if isinstance(row, row_files.Reject) else convert(row)


def convert(row: row_files.Row) -> Problem | row_files.Reject:
  """The problem of one row, whatever its schema."""
  values = row.values
  text = _text(values)
  if not text:
    return row_files.Reject(
        row.where, "no problem", "needs text in 'problem', 'question',"
        f" 'description' or 'prompt'; has {', '.join(map(str, values))}")
  if values.get("problem_type") not in (None, "", "has_answer_extracted"):
    return row_files.Reject(row.where, "no answer extracted",
                            row_files.quote(values["problem_type"]))
  answer = _answer(values)
  if answer is None or not str(answer).strip():
    return row_files.Reject(row.where, "no answer", row_files.quote(text))
  return Problem(
      row.where, str(values.get("id", "")), text, _as_text(answer),
      str(values.get("source") or values.get("data_source")
          or values.get("problem_source") or ""))


def integer_answer(problem: Problem, max_digits: int) -> str | None:
  """The answer in plain digits; None if it is no integer or too long.

  The paper keeps integer answers only, since equality of expressions is
  misjudged too often, and drops huge ones (section 4.2).

  Args:
    problem: of any source.
    max_digits: longest answer kept.
  """
  digits = records.read_integer(problem.answer.strip().strip("$"))
  if digits is None or len(digits.lstrip("-")) > max_digits:
    return None
  return digits


def _text(values: Mapping[str, Any]) -> str:
  text = next((values[f] for f in _TEXT_FIELDS
               if isinstance(values.get(f), str) and values[f].strip()), None)
  if text is None:
    text = values.get("prompt")
    if isinstance(text, list):
      users = [m.get("content") for m in text
               if isinstance(m, dict) and m.get("role") == "user"]
      text = users[0] if len(users) == 1 else None
  if not isinstance(text, str):
    return ""
  for pattern in _INSTRUCTIONS:
    text = pattern.sub("", text)
  return text.strip()


def _answer(values: Mapping[str, Any]) -> Any:
  reward_model = values.get("reward_model")
  if isinstance(reward_model, dict) and "ground_truth" in reward_model:
    return reward_model["ground_truth"]
  if values.get("expected_answer") is not None:
    return values["expected_answer"]
  answer = values.get("answer")
  if isinstance(answer, str) and _GSM8K_MARK in answer:
    return answer.rpartition(_GSM8K_MARK)[2]
  if answer is None and isinstance(values.get("solution"), str):
    return last_box(values["solution"])
  return answer


def last_box(text: str) -> str | None:
  r"""Content of the last `\boxed{}` whose braces balance; None without one."""
  start = text.rfind(_BOX)
  if start < 0:
    return None
  depth = 1
  for i in range(start + len(_BOX), len(text)):
    depth += {"{": 1, "}": -1}.get(text[i], 0)
    if not depth:
      return text[start + len(_BOX):i]
  return None


def _as_text(answer: Any) -> str:
  if isinstance(answer, float) and answer.is_integer():
    return str(int(answer))
  return str(answer).strip()
