"""Files that are replaced as a whole: a reader never sees half of one."""

from collections.abc import Iterable, Mapping
import contextlib
import json
import os
from typing import Any


def write(
    path: str, content: str | bytes, *, is_durable: bool = False
) -> None:
  """Replaces a file.

  Args:
    path: of it; `PATH.new` is used on the way.
    content: bytes, or text, which is written as UTF-8.
    is_durable: it is there after a power cut, too.

  Raises:
    OSError: it cannot be written; the old file stays.
  """
  try:
    with open(f"{path}.new", "wb") as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      if is_durable:
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
  except OSError:
    with contextlib.suppress(OSError):
      os.remove(f"{path}.new")
    raise


def write_json(path: str, value: Any) -> None:
  """Replaces a file by a JSON value; raises like `write`."""
  write(path, json.dumps(value, indent=2))


def write_jsonl(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
  """Replaces a file by one JSON object a line; raises like `write`."""
  write(path, "".join(
      json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
