"""Landlock: a process's own vow on files, TCP, signals and abstract sockets."""

from __future__ import annotations

import ctypes
import os
import sys

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
MIN_ABI = 6  # the first that scopes signals and abstract sockets

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL_FILES = (1 << 16) - 1  # up to IOCTL_DEV, ABI 5
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ALL_NETWORK = 3  # bind and connect TCP
_ALL_SCOPES = 3  # abstract sockets, signals
_READABLE = (
    '/usr', '/lib', '/lib64', '/bin', '/etc/ld.so.cache', '/etc/alternatives',
    '/dev/zero', '/dev/full', '/dev/random', '/dev/urandom', '/proc/self',
)

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
  _fields_ = [
      ('files', ctypes.c_uint64), ('network', ctypes.c_uint64),
      ('scopes', ctypes.c_uint64),
  ]


class _PathRule(ctypes.Structure):
  _pack_ = 1
  _fields_ = [('access', ctypes.c_uint64), ('fd', ctypes.c_int32)]


def _call(number: int, *args) -> int:
  result = _libc.syscall(ctypes.c_long(number), *args)
  if result < 0:
    errno = ctypes.get_errno()
    raise OSError(errno, f'landlock: {os.strerror(errno)}')
  return result


def abi() -> int:
  """The kernel's Landlock ABI; 0 if it has none."""
  try:
    return _call(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)
  except OSError:
    return 0


def restrict(private_directory: str) -> None:
  """Leaves this process one directory to write, and libraries to read.

  Raises OSError if the kernel refuses. Needs no_new_privs.
  """
  rules = _Ruleset(_ALL_FILES, _ALL_NETWORK, _ALL_SCOPES)
  ruleset = _call(
      _CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0
  )
  for path in (*_READABLE, sys.prefix, sys.base_prefix, *sys.path):
    _allow(ruleset, path, _READ)
  _allow(ruleset, private_directory, _ALL_FILES)
  _allow(ruleset, '/dev/null', _READ_FILE | _WRITE_FILE)
  _call(_RESTRICT, ruleset, 0)
  os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
  try:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
  except OSError:  # absent here
    return
  try:
    if not os.path.isdir(path):
      access &= _EXECUTE | _READ_FILE | _WRITE_FILE
    rule = _PathRule(access, fd)
    _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
  finally:
    os.close(fd)
