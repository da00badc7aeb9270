"""Files that are replaced as a whole: a reader never sees half of one."""

from collections.abc import Iterable, Mapping
import contextlib
import errno
import json
import os
from typing import Any


def write(
    path: str, content: str | bytes, *, is_durable: bool = False
) -> None:
  """Replaces a file.

  Args:
    path: of it; a link's target is replaced. `PATH.PID.new` is used on the
      way.
    content: bytes, or text, which is written as UTF-8.
    is_durable: it is there after a power cut, too.

  Raises:
    OSError: it cannot be written, or is something other than a file, such as
      a device; the old file stays.
  """
  path = os.path.realpath(path)
  draft = f"{path}.{os.getpid()}.new"
  if os.path.exists(path) and not os.path.isfile(path):
    raise OSError(errno.EINVAL, "is there and is no file", path)
  try:
    with open(draft, "wb") as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      if is_durable:
        os.fsync(file.fileno())
    os.replace(draft, path)
  except OSError:
    with contextlib.suppress(OSError):
      os.remove(draft)
    raise


def write_json(path: str, value: Any) -> None:
  """Replaces a file by a JSON value; raises like `write`."""
  write(path, json.dumps(value, indent=2))


def write_jsonl(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
  """Replaces a file by one JSON object a line; raises like `write`."""
  write(path, "".join(
      json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
