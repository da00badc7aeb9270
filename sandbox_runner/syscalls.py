"""Linux system calls that the standard library lacks, by ctypes.

Every function raises OSError with the call's errno, except that the ones used
after a fork are prepared here, before it: the first ctypes call of a forked
child copies pages, so the fewer objects it must build, the better.
"""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2

_MACHINE = platform.machine()
_PIVOT_ROOT = {'x86_64': 155, 'aarch64': 41}.get(_MACHINE, -1)
_CAPSET = {'x86_64': 126, 'aarch64': 91}.get(_MACHINE, -1)
_MOUNT_SETATTR = 442

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_mount = _libc.mount
_mount.argtypes = [
    ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong,
    ctypes.c_char_p,
]


class _CapHeader(ctypes.Structure):
  _fields_ = [('version', ctypes.c_uint32), ('pid', ctypes.c_int)]


_CAP_HEADER = _CapHeader(0x20080522, 0)
_NO_CAPS = (ctypes.c_uint32 * 6)()
_CAP_HEADER_REF = ctypes.byref(_CAP_HEADER)
_NO_CAPS_REF = ctypes.byref(_NO_CAPS)


def _check(result: int, what: str) -> int:
  if result < 0:
    errno = ctypes.get_errno()
    raise OSError(errno, f'{what}: {os.strerror(errno)}')
  return result


def unshare(flags: int) -> None:
  """Leaves the namespaces named by CLONE_NEW* flags."""
  _check(_libc.unshare(flags), f'unshare({flags:#x})')


def mount(
    source: str, target: str, kind: str, flags: int = 0, data: str = ''
) -> None:
  """mount(2)."""
  _check(
      _mount(
          source.encode(), target.encode(), kind.encode(), flags, data.encode()
      ),
      f'mount {kind or "bind"} {source} on {target}',
  )


def set_mount_attributes(target: str, attributes: int, recursive: bool) -> None:
  """Adds MOUNT_ATTR_* to a mount, and to those below it if recursive."""
  attr = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
  flags = _AT_RECURSIVE if recursive else 0
  _check(
      _syscall(
          ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD),
          ctypes.c_char_p(target.encode()), ctypes.c_uint(flags),
          ctypes.byref(attr), ctypes.c_size_t(32),
      ),
      f'mount_setattr {target}',
  )


def unmount(target: str, flags: int = MNT_DETACH) -> None:
  """umount2(2)."""
  _check(_libc.umount2(target.encode(), flags), f'umount {target}')


def pivot_root(new_root: str, put_old: str) -> None:
  """Makes new_root the root; the former root appears at put_old."""
  _check(
      _syscall(
          ctypes.c_long(_PIVOT_ROOT), ctypes.c_char_p(new_root.encode()),
          ctypes.c_char_p(put_old.encode()),
      ),
      f'pivot_root {new_root}',
  )


def set_parent_death_signal(number: int) -> None:
  """Asks for a signal when the parent thread ends."""
  _check(_prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), 'prctl(PDEATHSIG)')


def set_dumpable(value: bool) -> None:
  """Whether others of the same uid may look into this process."""
  _check(_prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0), 'prctl(DUMPABLE)')


def set_child_subreaper() -> None:
  """Makes orphaned descendants children of this process."""
  _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 'prctl(SUBREAPER)')


def set_no_new_privileges() -> None:
  """From here on, exec never grants privileges."""
  _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 'prctl(NO_NEW_PRIVS)')


def drop_capabilities() -> None:
  """Gives up every capability for good (inner uid is not 0)."""
  _check(
      _syscall(ctypes.c_long(_CAPSET), _CAP_HEADER_REF, _NO_CAPS_REF), 'capset'
  )


class _SockFprog(ctypes.Structure):
  _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.c_void_p)]


class SeccompProgram:
  """A filter kept in memory, so that installing it costs one call."""

  def __init__(self, instructions: bytes):
    self._buffer = ctypes.create_string_buffer(instructions, len(instructions))
    self._program = _SockFprog(
        len(instructions) // 8, ctypes.addressof(self._buffer)
    )
    self._address = ctypes.addressof(self._program)

  def install(self) -> None:
    """Filters this thread and its children. Needs no_new_privs."""
    _check(
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, self._address, 0, 0),
        'prctl(SECCOMP)',
    )
