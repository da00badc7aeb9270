"""One absl flag per field of the configuration, with one-line errors.

    experiments/stage2.py:  config_flags.run(main, CONFIGS)

`--preset` picks the configuration of the experiment; every other flag replaces
one field of it. Flags are defined when an experiment runs, not when it is
imported, and live in a FlagValues of their own, so any number of experiments
can be imported into one process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import math
import os
import shlex
import signal
import sys
import types
import typing
from typing import Any, Literal

from absl import flags

from experiments import flags_help
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import interruption

Configs = Mapping[str, config.Config]


def run(main: Callable[[config.Config], Any], configs: Configs) -> None:
  """Reads sys.argv, calls `main`, and exits.

  Exit codes: 0 done or help, 2 something the user can mend (one line on
  stderr), 130 stopped by a signal. Anything else is a defect and keeps its
  traceback.

  Args:
    main: the experiment.
    configs: its configuration for each preset.
  """
  with _exit_codes():
    _help(configs, None)
    main(build(sys.argv, configs))


def run_with_options(
    main: Callable[[Any, list[str]], Any], options: type,
    configs: Configs | None = None, *, operands: str = "",
) -> None:
  """Like `run`, for a command with flags of its own.

  Args:
    main: called with an `options` and the arguments that are not its own,
      program first, as `build` takes them; where there are operands, with
      these alone.
    options: frozen dataclass of the command's own flags, fields made by
      `config_fields.field`.
    configs: of the experiment whose flags it passes on; None: it has no flags
      but its own.
    operands: what it takes besides flags, at least one, e.g. "a run folder";
      empty: nothing. Goes without `configs`.
  """
  with _exit_codes():
    _help(configs, options)
    own, rest = split(sys.argv, options)
    if not configs:
      rest = _operands(rest, operands, options)
    main(own, rest)


def _help(configs: Configs | None, options: type | None) -> None:
  """Prints what --help asks for, and exits; returns where it is not there."""
  groups = flags_help.asked(sys.argv)
  if groups is not None:
    flags_help.show(flags_help.text(
        sys.modules["__main__"].__doc__ or "", configs, options, groups))
    sys.exit(0)


def _operands(
    rest: Sequence[str], operands: str, options: type
) -> list[str]:
  """Arguments that are no flags, where some are to be given."""
  wrong = [a for a in rest[1:] if not operands or a.startswith("-")]
  if wrong:
    known = [field.name for field in dataclasses.fields(options)]
    raise errors.UserError(
        _unknown(wrong[0].lstrip("-"), known) if wrong[0].startswith("-")
        else f"unexpected argument {wrong[0]!r}; flags look like --seed=1")
  if operands and not rest[1:]:
    raise errors.UserError(f"name {operands}; see --help")
  return list(rest[1:]) if operands else list(rest)


def split(argv: Sequence[str], options: type) -> tuple[Any, list[str]]:
  """A command's own options, and the arguments left for `build`.

  Raises:
    errors.UserError: an option's value is not allowed.
  """
  flag_values = flags.FlagValues()
  hints = typing.get_type_hints(options)
  for name, hint in hints.items():
    _define(name, hint, flag_values)
  flag_values.set_gnu_getopt(True)  # flags may stand after what is no flag
  with _flag_errors(list(hints)):
    rest = flag_values(list(argv), known_only=True)
  try:
    return options(**{n: flag_values[n].value for n in hints
                      if flag_values[n].present}), rest
  except ValueError as e:
    raise errors.UserError(_one_line(e)) from None


def command_line(experiment: str, options: Any, argv: Sequence[str]) -> str:
  """The command that gives these options and passes on these arguments."""
  own = [f"--{f.name}={flags_help.shown(getattr(options, f.name))}"
         for f in dataclasses.fields(options)
         if getattr(options, f.name) != f.default]
  return shlex.join(
      ["python", "-m", f"experiments.{experiment}", *own, *argv[1:]])


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
  try:
    yield
    sys.stdout.flush()
  except BrokenPipeError:  # whoever reads has seen enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)
  except (errors.UserError, ConnectionError) as e:
    print(f"error: {_one_line(e)}", file=sys.stderr)
    sys.exit(2)
  except interruption.Interrupted as e:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is saved
    print(_one_line(e), file=sys.stderr)
    sys.exit(130)
  except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stopped at once; the last checkpoint stays: run the same command to"
          " go on from it", file=sys.stderr)
    sys.exit(130)


@contextlib.contextmanager
def _flag_errors(known: Sequence[str]) -> Iterator[None]:
  """absl's errors as ours."""
  try:
    yield
  except flags.UnrecognizedFlagError as e:
    raise errors.UserError(_unknown(e.flagname, known)) from None
  except (flags.Error, ValueError) as e:  # ValueError: --noFLAG=VALUE
    raise errors.UserError(
        _one_line(e).removeprefix("ERROR:: ").removeprefix("flag ")) from None


def build(argv: Sequence[str], configs: Configs) -> config.Config:
  """The configuration that a command line asks for.

  Args:
    argv: program and arguments.
    configs: configuration for each preset.

  Raises:
    errors.UserError: unknown flag, or a value out of range.
  """
  flag_values = flags.FlagValues()
  hints = _hints()
  for name, hint in hints.items():
    _define(name, hint, flag_values)
  with _flag_errors(list(hints)):
    rest = flag_values(list(argv))[1:]
  if rest:
    raise errors.UserError(
        f"unexpected argument {rest[0]!r}; flags look like --seed=1")
  given = {name: flag_values[name].value for name in hints
           if flag_values[name].present}
  base = configs.get(str(given.pop("preset", next(iter(configs)))))
  if base is None:
    raise errors.UserError(
        f"this experiment has no such preset; it has {', '.join(configs)}")
  try:
    return replace(base, given)
  except ValueError as e:
    raise errors.UserError(_one_line(e)) from None


def replace(base: config.Config, values: Mapping[str, Any]) -> config.Config:
  """A copy with other values of some fields.

  Args:
    base: a configuration.
    values: by flag name, e.g. {"seed": 1, "loss.clip_high": 0.2}.

  Raises:
    ValueError: a value is out of range.
  """
  top: dict[str, Any] = {}
  for name, value in values.items():
    group, _, field = name.rpartition(".")
    if group:
      top.setdefault(group, {})[field] = value
    else:
      top[field] = value
  return dataclasses.replace(base, **{
      name: dataclasses.replace(getattr(base, name), **value)
            if isinstance(value, dict) else value
      for name, value in top.items()})


class _Parser(flags.ArgumentParser):
  """Reads one value of an annotated type; its errors say what is allowed."""

  def __init__(self, hint: Any):
    super().__init__()
    self._hint = hint
    self.syntactic_help = ""

  def parse(self, argument: Any) -> Any:
    return _parse(argument, self._hint)

  def flag_type(self) -> str:
    return str(self._hint)


def _parse(text: Any, hint: Any) -> Any:
  """The value that `text` means; ValueError says what is allowed."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if not isinstance(text, str):
    return text
  if origin in (types.UnionType, typing.Union):
    if text.lower() == "none":
      return None
    return _parse(text, next(a for a in args if a is not type(None)))
  if origin is Literal:
    if text not in args:
      raise ValueError(f"must be one of {', '.join(args)}")
    return text
  if origin is tuple:
    return tuple(_parse(part.strip(), args[0])
                 for part in text.split(",") if part.strip())
  if hint is bool:
    if text.lower() not in ("true", "false", "1", "0"):
      raise ValueError("must be true or false")
    return text.lower() in ("true", "1")
  if hint in (int, float):
    try:
      value = hint(text)
    except ValueError:
      value = math.nan
    if not math.isfinite(value):
      kind = "a whole number" if hint is int else "a finite number"
      raise ValueError(f"must be {kind}")
    return value
  return text


def flag_names() -> list[str]:
  """Names of all flags of a configuration."""
  return list(_hints())


def _hints() -> dict[str, Any]:
  return {name: hint for name, (_, hint)
          in flags_help.leaves(config.Config).items()}


def _define(name: str, hint: Any, flag_values: flags.FlagValues) -> None:
  flags.DEFINE_flag(
      flags.Flag(_Parser(hint), flags.ArgumentSerializer(), name, None, "",
                 boolean=hint is bool),
      flag_values=flag_values)


def _unknown(name: str, known: Sequence[str]) -> str:
  import difflib  # pylint: disable=g-import-not-at-top; only for errors
  name = name.partition("=")[0]
  # Someone who forgets the room writes --clip_high for --loss.clip_high.
  close = [k for k in known if k.rpartition(".")[2] == name]
  close += difflib.get_close_matches(name.removeprefix("no"), known, n=2)
  close += difflib.get_close_matches(name, known, n=2)
  hint = (f"did you mean --{close[0]}?" if close
          else "--help lists all flags")
  return f"unknown flag --{name}; {hint}"


def _one_line(error: BaseException) -> str:
  return " ".join(str(error).split()) or type(error).__name__
