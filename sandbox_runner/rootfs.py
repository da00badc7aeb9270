"""The file system that a program sees: a read-only root built from scratch.

1. A private mount namespace (with a user namespace if not root).
2. A tmpfs becomes the root; the former root appears in it for a moment.
3. Read-only binds of the interpreter, its libraries and /usr; five devices.
4. The former root is detached; the new root is made read-only.

/proc of the host stays mounted until each slot covers it with its own: the
kernel lets a user namespace mount a new /proc only where one is visible.
"""

from __future__ import annotations

import dataclasses
import os
import sys

from sandbox_runner import syscalls

# Private to each call, so an interpreter in one of them would be hidden.
PRIVATE_DIRECTORIES = ('/tmp', '/dev', '/proc')
_RELOCATED_PREFIX = '/opt/python'
_DEVICES = ('null', 'zero', 'full', 'random', 'urandom')
_OLD = '/old'
_READ_ONLY = (
    syscalls.MOUNT_ATTR_RDONLY
    | syscalls.MOUNT_ATTR_NOSUID
    | syscalls.MOUNT_ATTR_NODEV
)
_ETC = {
    'passwd': 'sandbox:x:1000:1000::/tmp:/bin/sh\n',
    'group': 'sandbox:x:1000:\n',
    'hosts': '127.0.0.1 localhost\n',
    'hostname': 'sandbox\n',
    'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files\n',
}


@dataclasses.dataclass(frozen=True)
class Interpreter:
  """Where the Python that runs programs lies.

  Attributes:
    prefix: the environment on the host, e.g. of a venv.
    base_prefix: the installation that the environment builds upon.
    site_packages: library directories on the host.
  """

  prefix: str
  base_prefix: str
  site_packages: tuple[str, ...]

  @property
  def mapped_prefix(self) -> str:
    """Where the environment appears to a program."""
    if _is_private(self.prefix):
      return _RELOCATED_PREFIX
    return self.prefix

  def mapped_site_packages(self) -> list[str]:
    """Library directories as a program sees them."""
    return [self._mapped(path) for path in self.site_packages]

  def mapped_executable(self) -> str:
    """The interpreter as a program sees it."""
    return os.path.join(self.mapped_prefix, 'bin', 'python3')

  def _mapped(self, path: str) -> str:
    if _is_below(path, self.prefix):
      return self.mapped_prefix + path[len(self.prefix):]
    return path

  def binds(self) -> dict[str, str]:
    """Source on the host -> target in the new root, parents first."""
    binds = {'/usr': '/usr'}
    for path in (self.base_prefix, self.prefix, *self.site_packages):
      target = self._mapped(path)
      covered = any(
          _is_below(path, source) and target == seen + path[len(source):]
          for source, seen in binds.items()
      )
      if not covered:
        binds[path] = target
    return binds


def current_interpreter() -> Interpreter:
  """The interpreter of this process."""
  site_packages = tuple(
      os.path.realpath(path)
      for path in sys.path
      if os.path.basename(path) in ('site-packages', 'dist-packages')
      and os.path.isdir(path)
  )
  return Interpreter(
      os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix),
      site_packages,
  )


def check_interpreter(interpreter: Interpreter) -> None:
  """Raises ValueError, saying what to do, if it cannot be shown to programs."""
  for path in (interpreter.base_prefix, *interpreter.site_packages):
    below_prefix = _is_below(path, interpreter.prefix) and (
        interpreter.prefix != interpreter.base_prefix
    )
    if _is_private(path) and not below_prefix:
      raise ValueError(
          f'the Python installation {path} lies in a directory that is '
          'private to each call; install Python elsewhere, e.g. under /opt'
      )


def _is_below(path: str, directory: str) -> bool:
  return path == directory or path.startswith(directory.rstrip('/') + '/')


def _is_private(path: str) -> bool:
  return any(_is_below(path, d) for d in PRIVATE_DIRECTORIES)


def enter(interpreter: Interpreter) -> None:
  """Makes the built root this process's root.

  Needs capabilities over its mount namespace. Raises OSError whose text names
  the step that failed.
  """
  syscalls.mount('none', '/', '', syscalls.MS_REC | syscalls.MS_PRIVATE)
  base = next(d for d in ('/tmp', '/mnt', '/var') if os.path.isdir(d))
  syscalls.mount(
      'sandbox', base, 'tmpfs', syscalls.MS_NOSUID, 'mode=0755,size=1m'
  )
  os.chdir(base)
  os.mkdir('old')
  syscalls.pivot_root('.', 'old')
  os.chdir('/')
  os.umask(0o022)
  _bind_directories(interpreter)
  _make_devices()
  _make_etc()
  for directory in ('/tmp', '/proc'):
    os.makedirs(directory, exist_ok=True)
  syscalls.mount(
      _OLD + '/proc', '/proc', '', syscalls.MS_BIND | syscalls.MS_REC
  )
  syscalls.unmount(_OLD)
  os.rmdir(_OLD)
  syscalls.set_mount_attributes('/', syscalls.MOUNT_ATTR_RDONLY, False)


def _bind_directories(interpreter: Interpreter) -> None:
  for name in ('bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'):
    source = f'{_OLD}/{name}'
    if os.path.islink(source):  # merged /usr
      os.symlink(os.readlink(source), '/' + name)
    elif os.path.isdir(source):
      _bind(source, '/' + name)
  for source, target in interpreter.binds().items():
    if not os.path.isdir(target):
      _bind(_OLD + source, target)


def _bind(source: str, target: str) -> None:
  os.makedirs(target, exist_ok=True)
  syscalls.mount(source, target, '', syscalls.MS_BIND | syscalls.MS_REC)
  syscalls.set_mount_attributes(target, _READ_ONLY, True)


def _make_devices() -> None:
  os.makedirs('/dev/shm')
  for name in _DEVICES:
    os.close(os.open(f'/dev/{name}', os.O_CREAT | os.O_WRONLY, 0o666))
    syscalls.mount(
        f'{_OLD}/dev/{name}', f'/dev/{name}', '', syscalls.MS_BIND
    )
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    os.symlink(f'/proc/self/fd/{number}', f'/dev/{name}')
  os.symlink('/proc/self/fd', '/dev/fd')


def _make_etc() -> None:
  os.makedirs('/etc')
  for name, text in _ETC.items():
    with open(f'/etc/{name}', 'w', encoding='utf-8') as file:
      file.write(text)
  for name in ('ld.so.cache', 'ld.so.conf'):
    try:
      with open(f'{_OLD}/etc/{name}', 'rb') as source:
        content = source.read()
    except OSError:
      continue
    with open(f'/etc/{name}', 'wb') as file:
      file.write(content)
  # Debian reaches BLAS through links in this directory.
  if os.path.isdir(f'{_OLD}/etc/alternatives'):
    _bind(f'{_OLD}/etc/alternatives', '/etc/alternatives')
