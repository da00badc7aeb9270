"""A configuration as a table of flags: by name, as lines, from JSON."""

from collections.abc import Mapping
import dataclasses
from typing import Any

from rstar2_jax import config


def values(cfg: config.Config) -> dict[str, Any]:
  """Every field by its flag's name, in order; tuples stay tuples."""
  found: dict[str, Any] = {}
  for field in dataclasses.fields(cfg):
    value = getattr(cfg, field.name)
    if dataclasses.is_dataclass(value):
      for inner in dataclasses.fields(value):
        found[f"{field.name}.{inner.name}"] = getattr(value, inner.name)
    else:
      found[field.name] = value
  return found


def lines(cfg: config.Config) -> str:
  """The content of flags.txt, for --flagfile; the stage is no flag."""
  found = []
  for name, value in values(cfg).items():
    if name == "stage":
      continue
    if isinstance(value, tuple):
      value = ",".join(map(str, value))
    if isinstance(value, bool):
      value = str(value).lower()
    found.append(f"--{name}={'none' if value is None else value}\n")
  return "".join(found)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """The same from nested dicts, as config.json holds them."""
  found: dict[str, Any] = {}
  for name, value in nested.items():
    if isinstance(value, dict):
      found |= flat(value, f"{prefix}{name}.")
    else:
      found[prefix + name] = value
  return found
