"""A user's own problems: jsonl files and Hugging Face data sets.

One row a problem: `{"problem": ..., "answer": ...}`, the answer an integer;
`id`, `source` and `level` are used where given, other fields are kept as
metadata. A row that cannot be used is an error that names file and line, so
that nothing is trained on by mistake or left out in silence.
"""

from collections.abc import Iterable, Mapping
import json
import pathlib
import re
from typing import Any

from rstar2_jax import types
from rstar2_jax.data import row_files

_INTEGER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0*)?")
_USED_FIELDS = ("id", "problem", "question", "answer", "source", "level")
_MAX_QUOTED_CHARS = 60


def read_jsonl(path: str | pathlib.Path) -> list[types.Prompt]:
  """Reads problems from a jsonl file; empty lines are skipped.

  Args:
    path: file of JSON objects, one a line, UTF-8.

  Returns:
    The prompts in the file's order; ids default to `<file stem>-<line>`.

  Raises:
    ValueError: the file cannot be read or is empty, or a line is not JSON,
      lacks a field, or has an answer that is no integer.
  """
  path = pathlib.Path(path)
  prompts: list[types.Prompt] = []
  line_of_id: dict[str, int] = {}
  for number, row in read_rows(path):
    where = f"{path}:{number}"
    prompt = to_prompt(row, where=where, default_id=f"{path.stem}-{number}")
    if prompt.id in line_of_id:
      raise ValueError(f"{where}: id {prompt.id!r} is also that of line"
                       f" {line_of_id[prompt.id]}; ids must differ")
    line_of_id[prompt.id] = number
    prompts.append(prompt)
  if not prompts:
    raise ValueError(f"{path}: holds no problem; expected one JSON object with"
                     " 'problem' and 'answer' a line")
  return prompts


def read_rows(path: pathlib.Path) -> Iterable[tuple[int, dict[str, Any]]]:
  """(line number from 1, object) of a jsonl file; empty lines are skipped.

  Raises:
    ValueError: the file cannot be read, or a line is no JSON object.
  """
  try:
    with path.open("rb") as file:
      for number, line in enumerate(file, 1):
        if line.strip():
          yield number, _read_row(line, f"{path}:{number}")
  except OSError as e:
    raise ValueError(f"{path}: cannot be read: {e.strerror or e}") from None


def read_hub(name: str, split: str) -> list[types.Prompt]:
  """Reads problems from a Hugging Face data set; needs a network.

  Args:
    name: of the data set, e.g. `owner/name`.
    split: of the data set, e.g. `train`.

  Returns:
    The prompts in the data set's order.

  Raises:
    ValueError: the `datasets` package or the data set is not to be had, or a
      row cannot be used.
  """
  rows = row_files.load_hub(name, split)
  prefix = name.rpartition("/")[2]
  return [to_prompt(row, where=f"hf:{name} row {i}",
                    default_id=f"{prefix}-{split}-{i}")
          for i, row in enumerate(rows)]


def to_prompt(
    row: Mapping[str, Any], *, where: str, default_id: str
) -> types.Prompt:
  """A prompt from one row.

  Args:
    row: see the module; `question` may stand for `problem`.
    where: file and line, for messages.
    default_id: id where the row has none.

  Raises:
    ValueError: a field is missing or of the wrong type.
  """
  problem = row.get("problem", row.get("question"))
  if not isinstance(problem, str) or not problem.strip():
    raise ValueError(f"{where}: needs a field 'problem' with text")
  if "answer" not in row:
    raise ValueError(f"{where}: needs a field 'answer'")
  answer = read_integer(row["answer"])
  if answer is None:
    raise ValueError(f"{where}: answer {_quote(row['answer'])} is not an"
                     " integer; only problems with integer answers can be"
                     " graded, leave this one out")
  level = row.get("level", 0)
  return types.Prompt(
      id=str(row.get("id", default_id)), problem=problem, answer=answer,
      source=str(row.get("source", "")),
      level=level if isinstance(level, int) else 0,
      metadata={k: v for k, v in row.items() if k not in _USED_FIELDS})


def read_integer(answer: Any) -> str | None:
  """An answer as plain digits; None if it is not an integer.

  Args:
    answer: an int, a float without fraction, or text such as `1,024`, `-7`.
  """
  if isinstance(answer, bool):
    return None
  if isinstance(answer, int):
    return str(answer)
  if isinstance(answer, float):
    return str(int(answer)) if answer.is_integer() else None
  if not isinstance(answer, str) or not _INTEGER.fullmatch(answer.strip()):
    return None
  digits = answer.strip().partition(".")[0].replace(",", "").lstrip("+")
  sign = "-" if digits.startswith("-") else ""
  digits = digits.lstrip("-").lstrip("0") or "0"
  return digits if digits == "0" else sign + digits


def _read_row(line: bytes, where: str) -> dict[str, Any]:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as e:
    raise ValueError(f"{where}: not valid JSON ({e})") from None
  if not isinstance(row, dict):
    raise ValueError(f"{where}: expected a JSON object, got"
                     f" {type(row).__name__}")
  return row


def _quote(value: Any) -> str:
  text = repr(value)
  if len(text) > _MAX_QUOTED_CHARS:
    text = f"{text[:_MAX_QUOTED_CHARS]}..."
  return text
