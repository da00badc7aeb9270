"""Rows of other people's data: json, jsonl, parquet files and the hub.

Nothing here stops at a bad row: it is handed on as a `Reject` with its place
and reason, so that a filter can count it and nobody loses it in silence.
"""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import json
import pathlib
from typing import Any

SUFFIXES = (".jsonl", ".json", ".parquet")
_MAX_QUOTED_CHARS = 200


@dataclasses.dataclass(frozen=True)
class Row:
  """One object of a file.

  Attributes:
    where: file and line (or row), for messages; from 1.
    values: its fields.
  """

  where: str
  values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Reject:
  """What was left out.

  Attributes:
    where: file and line.
    reason: one of few names, to be counted.
    detail: what exactly, for a reader.
  """

  where: str
  reason: str
  detail: str


def read(name: str, *, split: str = "train") -> Iterator[Row | Reject]:
  """Rows of one input in order.

  Args:
    name: a .jsonl, .json (a list of objects) or .parquet file, or hf:NAME
      (hf:NAME:SUBSET where the data set has several).
    split: of a hub data set.

  Raises:
    ValueError: the input cannot be read at all, or needs a package that is
      not installed.
  """
  if name.startswith("hf:"):
    return _read_hub(name.removeprefix("hf:"), split)
  path = pathlib.Path(name)
  if path.suffix not in SUFFIXES:
    raise ValueError(f"{name}: must end in {', '.join(SUFFIXES)} or be hf:NAME")
  if not path.is_file():
    raise ValueError(f"{name}: there is no such file")
  readers = (_read_jsonl, _read_json, _read_parquet)
  return dict(zip(SUFFIXES, readers, strict=True))[path.suffix](path)


def quote(value: Any) -> str:
  """A value in a message, cut where it is long."""
  text = value if isinstance(value, str) else repr(value)
  text = " ".join(text.split())
  if len(text) > _MAX_QUOTED_CHARS:
    return f"{text[:_MAX_QUOTED_CHARS]}..."
  return text


def _read_jsonl(path: pathlib.Path) -> Iterator[Row | Reject]:
  with path.open("rb") as file:
    for number, line in enumerate(file, 1):
      if line.strip():
        yield _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> Row | Reject:
  try:
    value = json.loads(line)
  except (ValueError, RecursionError) as e:
    return Reject(where, "not JSON", quote(str(e)))
  return _row(value, where)


def _read_json(path: pathlib.Path) -> Iterator[Row | Reject]:
  try:
    values = json.loads(path.read_bytes())
  except (ValueError, RecursionError) as e:
    raise ValueError(f"{path}: not valid JSON ({quote(str(e))})") from None
  if not isinstance(values, list):
    raise ValueError(f"{path}: expected a list of objects, got"
                     f" {type(values).__name__}")
  for number, value in enumerate(values, 1):
    yield _row(value, f"{path} row {number}")


def _read_parquet(path: pathlib.Path) -> Iterator[Row | Reject]:
  try:
    from pyarrow import parquet  # pylint: disable=g-import-not-at-top; optional
  except ImportError:
    raise ValueError(f"{path}: needs the package 'pyarrow'; run pip install"
                     " pyarrow, or give a .jsonl file") from None
  number = 0
  try:
    for batch in parquet.ParquetFile(path).iter_batches():
      for value in batch.to_pylist():
        number += 1
        yield _row(value, f"{path} row {number}")
  except (OSError, ValueError) as e:  # pyarrow's errors are of these kinds
    raise ValueError(f"{path}: no readable parquet ({quote(str(e))})") from e


def load_hub(name: str, split: str) -> Iterable[Mapping[str, Any]]:
  """Rows of a hub data set; needs a network.

  Args:
    name: OWNER/NAME, or OWNER/NAME:SUBSET where it has several.
    split: of it, e.g. `train`.

  Raises:
    ValueError: the `datasets` package or the data set is not to be had.
  """
  try:
    import datasets  # pylint: disable=g-import-not-at-top; optional
  except ImportError:
    raise ValueError(f"hf:{name}: needs the package 'datasets'; run pip install"
                     " datasets, or give a .jsonl file") from None
  repository, _, subset = name.partition(":")
  try:
    return datasets.load_dataset(repository, subset or None, split=split)
  except Exception as e:  # pylint: disable=broad-exception-caught; of any kind
    first_line = str(e).partition("\n")[0]
    raise ValueError(f"hf:{name}: split {split!r} cannot be loaded"
                     f" ({first_line}); check the name and the network") from e


def _read_hub(name: str, split: str) -> Iterator[Row | Reject]:
  for number, value in enumerate(load_hub(name, split), 1):
    yield _row(value, f"hf:{name} row {number}")


def _row(value: Any, where: str) -> Row | Reject:
  if not isinstance(value, dict):
    return Reject(where, "not an object", f"got {type(value).__name__}")
  return Row(where, value)
