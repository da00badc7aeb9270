"""Runs one program in the process that was forked for it.

The same things happen as under `python main.py`, with three differences: the
final expression is shown as IPython would, tracebacks hold no frame and no
path of ours, and the interpreter ends without tearing itself down.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import io
import linecache
import mmap
import os
import random
import re
import sys
import threading
import traceback
import types
from typing import Any

from sandbox_runner import wire

FILE_NAME = 'main.py'
# Exit code of a program ended by an uncaught exception.
_EXIT_ERROR = 1
_FUTURE_FLAGS = 0x1FF0000  # every __future__ feature's compiler flag
_MAX_VALUE_CHARS = 16 << 10


def open_streams() -> None:
  """Python's standard streams over descriptors 0, 1, 2, unbuffered outward.

  Unbuffered, because a program that runs into its time limit is killed with
  whatever its buffers hold.
  """
  open_stdin()
  sys.stdout = io.TextIOWrapper(
      io.FileIO(1, 'w', closefd=False), encoding='utf-8', write_through=True,
      errors='surrogateescape',
  )
  sys.stderr = io.TextIOWrapper(
      io.FileIO(2, 'w', closefd=False), encoding='utf-8', write_through=True,
      errors='backslashreplace',
  )
  sys.stdout.mode = sys.stderr.mode = 'w'
  sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr


def open_stdin() -> None:
  """Python's stdin over what descriptor 0 is now."""
  sys.stdin = sys.__stdin__ = io.TextIOWrapper(
      io.BufferedReader(io.FileIO(0, closefd=False)), encoding='utf-8',
      errors='surrogateescape',
  )
  sys.stdin.mode = 'r'


def reseed(seed: int | None) -> None:
  """Seeds the generators whose state a fork would share between calls."""
  random.seed(seed)
  numpy_random = sys.modules.get('numpy.random')
  if numpy_random is not None:
    # numpy takes 32 bits; None draws fresh entropy.
    numpy_random.seed(None if seed is None else seed % 2**32)


class Program:
  """A compiled program: statements, and the final expression by itself."""

  def __init__(self, source: bytes, file_name: str = FILE_NAME):
    """Compiles. Raises whatever compile() does."""
    text = source.decode('utf-8', 'replace')
    lines = text.splitlines(keepends=True)
    linecache.cache[file_name] = (len(text), None, lines, file_name)
    tree = compile(
        source, file_name, 'exec', ast.PyCF_ONLY_AST, dont_inherit=True
    )
    last = tree.body[-1] if tree.body else None
    expression = None
    if isinstance(last, ast.Expr) and not _is_muted(last, text):
      tree.body.pop()
      expression = ast.Expression(last.value)
    self._body = compile(tree, file_name, 'exec', dont_inherit=True)
    flags = self._body.co_flags & _FUTURE_FLAGS
    self._expression = None
    if expression is not None:
      self._expression = compile(
          expression, file_name, 'eval', flags, dont_inherit=True
      )

  def run(self, namespace: dict[str, Any]) -> str | None:
    """Runs it. Returns the value to show, or None; raises what it raises."""
    exec(self._body, namespace)
    if self._expression is None:
      return None
    value = eval(self._expression, namespace)
    if value is None:
      return None
    builtins._ = value
    return repr(value)


def _is_muted(last: ast.Expr, text: str) -> bool:
  """True if a semicolon follows, by which IPython mutes a value."""
  lines = text.splitlines()
  if last.end_lineno is None or last.end_lineno > len(lines):
    return False
  rest = lines[last.end_lineno - 1].encode()[last.end_col_offset:]
  return rest.lstrip().startswith(b';') or any(
      re.match(r'\s*;', line) for line in lines[last.end_lineno:][:1]
  )


def new_main() -> types.ModuleType:
  """A fresh __main__, the only module that belongs to the program."""
  main = types.ModuleType('__main__')
  main.__dict__.update(
      __builtins__=builtins, __file__=FILE_NAME, __annotations__={}
  )
  sys.modules['__main__'] = main
  sys.argv = [FILE_NAME]
  return main


def show_error(error: BaseException) -> None:
  """Writes the traceback as CPython would for main.py."""
  frames = error.__traceback__
  while frames is not None and _is_ours(frames.tb_frame):
    frames = frames.tb_next
  error = error.with_traceback(frames)
  hook = sys.excepthook
  if hook is not sys.__excepthook__:
    hook(type(error), error, frames)
    return
  text = ''.join(traceback.format_exception(type(error), error, frames))
  sys.stderr.write(text)


def _is_ours(frame: types.FrameType) -> bool:
  return frame.f_globals is globals()


def clip_value(value: str) -> bytes:
  """The value as UTF-8, without its middle if it is long."""
  if len(value) > _MAX_VALUE_CHARS:
    half = _MAX_VALUE_CHARS // 2
    value = f'{value[:half]}\n... {len(value)} characters ...\n{value[-half:]}'
  return value.encode('utf-8', 'replace')


def store_value(shared: mmap.mmap, value: str | None, flags: int = 0) -> None:
  """Leaves the value where the supervisor reads it."""
  data = b''
  if value is not None:
    data = clip_value(value)[:wire.VALUE_BYTES - wire.VALUE_HEADER.size]
    flags |= wire.FLAG_HAS_VALUE
  header = wire.VALUE_HEADER.pack(len(data), flags)
  shared[:len(header) + len(data)] = header + data


def compile_program(
    source: bytes, file_name: str = FILE_NAME
) -> Program | None:
  """The program, or None after writing to stderr why it does not compile."""
  try:
    return Program(source, file_name)
  except BaseException as error:  # MemoryError and RecursionError too
    text = ''.join(traceback.format_exception(type(error), error, None))
    os.write(2, text.encode('utf-8', 'backslashreplace'))
    return None


def run_program(program: Program, shared: mmap.mmap) -> int:
  """Runs a program to its end. Returns the exit code."""
  main = new_main()
  code = run_guarded(lambda: program.run(main.__dict__), shared)
  return finish(code)


def run_guarded(run: Any, shared: mmap.mmap) -> int:
  """Calls run(); shows its value or its error. Returns the exit code."""
  try:
    store = run()
    if store is not None:
      store_value(shared, store)
    return 0
  except SystemExit as stop:
    return _exit_code(stop)
  except BaseException as error:
    if isinstance(error, MemoryError):
      store_value(shared, None, wire.FLAG_MEMORY_ERROR)
    try:
      show_error(error)
    except BaseException:  # a broken excepthook or a closed stderr
      pass
    return 130 if isinstance(error, KeyboardInterrupt) else _EXIT_ERROR


def _exit_code(stop: SystemExit) -> int:
  if stop.code is None:
    return 0
  if isinstance(stop.code, int):
    return stop.code & 0xFF
  try:
    print(stop.code, file=sys.stderr)
  except BaseException:
    pass
  return _EXIT_ERROR


def finish(code: int) -> int:
  """What CPython does at its end: threads, atexit, flush."""
  try:
    threading._shutdown()
    atexit._run_exitfuncs()
  except BaseException:
    pass
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except BaseException:
      pass
  return code
