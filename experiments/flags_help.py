"""What --help prints: one screen of groups, or the flags of some of them."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import os
import sys
import textwrap
import types
import typing
from typing import Any, Literal

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import flag_tables

Configs = Mapping[str, config.Config]

_WIDTH = 79
_FOOTER = ("--help=GROUP,... tells of the flags of groups, --helpfull of all."
           " --noFLAG turns a switch off; 'none' stands for None;"
           " --flagfile=FILE reads flags from a file, such as a run's"
           " flags.txt.")


def asked(argv: Sequence[str]) -> str | None:
  """What a command line wants to know: "", "all" or groups; None: nothing."""
  for argument in argv[1:]:
    name, _, groups = argument.lstrip("-").partition("=")
    if argument.startswith("-") and name in ("help", "h"):
      return groups
    if argument.startswith("-") and name == "helpfull":
      return "all"
  return None


def text(
    description: str, configs: Configs | None, options: type | None, groups: str
) -> str:
  """The help of an experiment.

  Args:
    description: its docstring.
    configs: its configuration for each preset; defaults are the first one's.
    options: dataclass of its own flags.
    groups: as `asked` gives it.

  Raises:
    errors.UserError: there is no such group.
  """
  names = [n for n in groups.split(",") if n]
  parts = [] if names and groups != "all" else [description.strip()]
  if options is not None and groups in ("", "all"):
    parts.append("\n".join(["Own flags:", *_own(options)]))
  if configs is not None:
    parts += (_of_configs(configs, names) if names
              else [_screen(configs, is_short=options is not None),
                    "\n".join(textwrap.wrap(_FOOTER, _WIDTH))])
  elif names and groups != "all":
    raise errors.UserError(f"--help={groups}: there are no groups; see --help")
  return "\n\n".join(parts)


def show(help_text: str) -> None:
  """Prints it; whoever reads may stop early."""
  try:
    print(help_text, flush=True)
  except BrokenPipeError:  # `| head` has seen enough
    with contextlib.suppress(OSError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leaves(cls: type) -> dict[str, tuple[dataclasses.Field, Any]]:
  """Field and annotated type of every flag of a configuration, by name."""
  hints = typing.get_type_hints(cls)
  found: dict[str, tuple[dataclasses.Field, Any]] = {}
  for field in dataclasses.fields(cls):
    hint = hints[field.name]
    if dataclasses.is_dataclass(hint):
      found |= {f"{field.name}.{name}": leaf
                for name, leaf in leaves(typing.cast(type, hint)).items()}
    elif field.name != "stage":
      found[field.name] = field, hint
  return found


def shown(value: Any) -> str:
  """A value as a flag takes it."""
  if isinstance(value, tuple):
    return ",".join(map(str, value))
  if isinstance(value, bool):
    return str(value).lower()
  return "none" if value is None else str(value)


def _head(configs: Configs) -> str:
  return (f"Flags (defaults of --preset={next(iter(configs))}; presets:"
          f" {', '.join(configs)}):")


def _groups(configs: Configs) -> dict[str, dict[str, dataclasses.Field]]:
  """Flags by group; those without one are in ""."""
  found: dict[str, dict[str, dataclasses.Field]] = {}
  for name, (field, _) in leaves(config.Config).items():
    found.setdefault(name.rpartition(".")[0], {})[name] = field
  return found


def _screen(configs: Configs, *, is_short: bool) -> str:
  """Flags of no group with their help, groups in a line or two each.

  Short, for a command with flags of its own, groups are only named.
  """
  groups = _groups(configs)
  lines = [_head(configs), *_flags(configs, groups.pop(""))]
  if is_short:
    return "\n".join([*lines, "", *textwrap.wrap(
        f"Groups, as in --roc.keep=16: {', '.join(groups)}.", _WIDTH)])
  lines += ["", "Groups, as in --roc.keep=16:"]
  width = max(map(len, groups))
  base = next(iter(configs.values()))
  for group, members in groups.items():
    doc = (type(getattr(base, group)).__doc__ or "").splitlines()[0]
    lines += textwrap.wrap(
        f"{group:<{width}}  {doc} ({len(members)})", _WIDTH,
        initial_indent="  ", subsequent_indent=" " * (width + 4))
  return "\n".join(lines)


def _of_configs(configs: Configs, names: Sequence[str]) -> list[str]:
  """The flags of some groups with their help."""
  groups = _groups(configs)
  base = next(iter(configs.values()))
  if "all" in names:
    names = list(groups)
  parts = [_head(configs)]
  for name in names:
    if name not in groups:
      known = ", ".join(filter(None, groups))
      raise errors.UserError(f"--help={name}: no such group; there are {known}")
    lines = _flags(configs, groups[name])
    if name:
      doc = (type(getattr(base, name)).__doc__ or "").splitlines()[0]
      lines.insert(0, f"{name}: {doc}")
    parts.append("\n".join(lines))
  return parts


def _flags(
    configs: Configs, fields: Mapping[str, dataclasses.Field]
) -> list[str]:
  defaults = flag_tables.values(next(iter(configs.values())))
  hints = {name: hint for name, (_, hint) in leaves(config.Config).items()}
  lines = []
  for name, field in fields.items():
    lines += _flag(name, defaults[name], field.metadata["help"], hints[name])
  return lines


def _own(options: type) -> list[str]:
  hints = typing.get_type_hints(options)
  lines = []
  for field in dataclasses.fields(options):
    lines += _flag(field.name, field.default, field.metadata["help"],
                   hints[field.name])
  return lines


def _flag(name: str, default: Any, help_text: str, hint: Any) -> list[str]:
  line = f"  --{name}={shown(default)}"
  if len(line) > _WIDTH:
    line = line[:_WIDTH - 4].rpartition(",")[0] + ",..."
  if choices := choices_of(hint):
    help_text += f" One of: {', '.join(choices)}."
  return [line, *textwrap.wrap(help_text, _WIDTH - 1, initial_indent=" " * 6,
                               subsequent_indent=" " * 6)]


def choices_of(hint: Any) -> tuple[str, ...]:
  """What a Literal allows; of anything else nothing."""
  if isinstance(hint, types.UnionType):
    return ()
  return typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
