"""Fields of a JSON request: read, checked, and refused by name."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import enum
import math
import typing
from typing import Any


class InvalidRequest(ValueError):
  """A request that breaks the schema.

  Attributes:
    field: name of the offending field, '' for the body as a whole.
  """

  def __init__(self, field: str, message: str):
    super().__init__(f'{field}: {message}' if field else message)
    self.field = field


def check_object(body: Any, message_type: type) -> Mapping[str, Any]:
  """The body as fields of a message type. Raises InvalidRequest."""
  if not isinstance(body, Mapping):
    raise InvalidRequest('', f'expected an object, got {_kind(body)}')
  known = {f.name for f in dataclasses.fields(message_type)}
  for name in body:
    if name not in known:
      raise InvalidRequest(str(name)[:64], 'unknown field')
  return body


def string(
    fields: Mapping[str, Any],
    name: str,
    max_bytes: int,
    default: str | None = None,
) -> str:
  """A string of at most max_bytes as UTF-8; required without default."""
  value = fields.get(name, default)
  if value is None and default is not None:
    return default
  if not isinstance(value, str):
    problem = 'is required' if name not in fields else (
        f'expected a string, got {_kind(value)}'
    )
    raise InvalidRequest(name, problem)
  # A lone surrogate is legal in JSON but not in UTF-8.
  size = len(value.encode('utf-8', 'replace'))
  if size > max_bytes:
    raise InvalidRequest(name, f'{size} bytes, limit is {max_bytes}')
  return value


@typing.overload
def number(
    fields: Mapping[str, Any], name: str, default: float, low: float,
    high: float,
) -> float: ...


@typing.overload
def number(
    fields: Mapping[str, Any], name: str, default: None, low: float,
    high: float,
) -> float | None: ...


def number(
    fields: Mapping[str, Any],
    name: str,
    default: float | None,
    low: float,
    high: float,
) -> float | None:
  """A finite number in [low, high], or the default."""
  value = fields.get(name)
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise InvalidRequest(name, f'expected a number, got {_kind(value)}')
  if math.isnan(value) or not low <= value <= high:
    raise InvalidRequest(name, f'{_short(value)} is not in [{low}, {high}]')
  return float(value)


@typing.overload
def integer(
    fields: Mapping[str, Any], name: str, default: int, low: int, high: int,
) -> int: ...


@typing.overload
def integer(
    fields: Mapping[str, Any], name: str, default: None, low: int, high: int,
) -> int | None: ...


def integer(
    fields: Mapping[str, Any],
    name: str,
    default: int | None,
    low: int,
    high: int,
) -> int | None:
  """An integer in [low, high], or the default."""
  value = fields.get(name)
  if value is None:
    return default
  if isinstance(value, bool) or not isinstance(value, int):
    raise InvalidRequest(name, f'expected an integer, got {_kind(value)}')
  if not low <= value <= high:
    raise InvalidRequest(name, f'{_short(value)} is not in [{low}, {high}]')
  return value


def boolean(fields: Mapping[str, Any], name: str, default: bool) -> bool:
  """A boolean, or the default."""
  value = fields.get(name, default)
  if not isinstance(value, bool):
    raise InvalidRequest(name, f'expected a boolean, got {_kind(value)}')
  return value


def choice(
    fields: Mapping[str, Any], name: str, choices: type[enum.StrEnum]
) -> Any:
  """One of an enumeration's values, or None."""
  value = fields.get(name)
  if value is None:
    return None
  options = ', '.join(choices)
  if not isinstance(value, str):
    raise InvalidRequest(name, f'expected one of {options}')
  try:
    return choices(value)
  except ValueError:
    raise InvalidRequest(
        name, f'{value[:64]!r} is not one of {options}'
    ) from None


def _kind(value: Any) -> str:
  kinds = {dict: 'an object', list: 'an array', str: 'a string',
           bool: 'a boolean', int: 'a number', float: 'a number'}
  return 'null' if value is None else kinds.get(type(value), 'something else')


def _short(value: float | int) -> str:
  if isinstance(value, int) and value.bit_length() > 64:
    return 'a number of more than 64 bits'
  return str(value)
