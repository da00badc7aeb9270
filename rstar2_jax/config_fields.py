"""Fields of configurations, and checks that name the flag in their message.

Every check raises ValueError "--FLAG=VALUE: must be ...".
"""

import dataclasses
import re
from typing import Any


def field(default: Any, help: str) -> Any:  # pylint: disable=redefined-builtin
  """A dataclass field with a one-line help text for its flag."""
  return dataclasses.field(default=default, metadata={"help": help})


def require(condition: bool, flag: str, value: Any, allowed: str) -> None:
  """Raises ValueError "--FLAG=VALUE: must be ALLOWED" unless it holds."""
  if not condition:
    raise ValueError(f"--{flag}={value}: must be {allowed}")


def require_levels(name: str, lowest: int, highest: int) -> None:
  """Levels of difficulty, `{name}.min_level` and `.max_level`: 1 to 3."""
  require(1 <= lowest <= 3, f"{name}.min_level", lowest, "1, 2 or 3")
  require(lowest <= highest <= 3, f"{name}.max_level", highest,
          f"from {name}.min_level={lowest} to 3")


def require_positive(group: Any, name: str, *fields: str) -> None:
  """Fields of a group (all, if none is named) are over 0; "" is no group."""
  for f in fields or [f.name for f in dataclasses.fields(group)]:
    value = getattr(group, f)
    require(value > 0, f"{name}.{f}" if name else f, value, "positive")


def require_urls(flag: str, urls: tuple[str, ...]) -> None:
  """Each is http or https with a host."""
  for url in urls:
    require(re.fullmatch(r"https?://[^\s/]+(/\S*)?", url) is not None, flag,
            url, "a URL such as http://127.0.0.1:30000")
