"""Isolation levels: what a zygote, a slot and a call each give up.

* namespaces: a slot is PID 1 of its own user, pid, mount, network, IPC and UTS
  namespaces on the zygote's read-only root. See rootfs.
* landlock: no namespaces; Landlock for files, network and signals, and seccomp
  that also refuses new processes.
* none: a session and resource limits, for trusted programs.
"""

from __future__ import annotations

import os
import resource
import signal
import socket

from sandbox_runner import landlock
from sandbox_runner import processes
from sandbox_runner import rootfs
from sandbox_runner import seccomp
from sandbox_runner import syscalls

# Whom programs run as when the server is root.
UNPRIVILEGED_ID = 65534
_INNER_ID = 1000
_MAX_PROCESSES = 64
_TMP_OPTIONS = 'size=64m,nr_inodes=4096,mode=1777'
_SHM_OPTIONS = 'size=16m,nr_inodes=256,mode=1777'
_MIB = 1 << 20
_SLOT_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)


def enter_zygote_namespaces(interpreter: rootfs.Interpreter) -> None:
  """Gives this process the programs' root, and takes away root's powers.

  Raises OSError whose text names the step that failed.
  """
  if can_drop_root():
    syscalls.unshare(syscalls.CLONE_NEWNS)
    rootfs.enter(interpreter)
    drop_root()
    return
  uid, gid = os.getuid(), os.getgid()
  syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
  _map_ids(uid, uid, gid, gid)
  rootfs.enter(interpreter)


def can_drop_root() -> bool:
  """True for root, but not for an ordinary user that a user namespace calls
  root: it has no other id to become."""
  return os.geteuid() == 0 and all(
      _is_mapped(UNPRIVILEGED_ID, name) for name in ('uid_map', 'gid_map')
  )


def _is_mapped(number: int, name: str) -> bool:
  with open(f'/proc/self/{name}', encoding='ascii') as file:
    ranges = [[int(n) for n in line.split()] for line in file]
  return any(first <= number < first + count for first, _, count in ranges)


def drop_root() -> None:
  """Becomes an unprivileged user for good."""
  os.setgroups([])
  os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
  os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
  # A change of uid clears it, and without it /proc/self/uid_map is root's.
  syscalls.set_dumpable(True)


def _map_ids(uid: int, inner_uid: int, gid: int, inner_gid: int) -> None:
  for name, text in (
      ('setgroups', 'deny'),
      ('uid_map', f'{inner_uid} {uid} 1'),
      ('gid_map', f'{inner_gid} {gid} 1'),
  ):
    try:
      with open(f'/proc/self/{name}', 'w', encoding='ascii') as file:
        file.write(text)
    except OSError as e:
      raise OSError(e.errno, f'write {name}: {e.strerror}') from None


def _set_common_limits() -> None:
  for limit, value in (
      (resource.RLIMIT_NOFILE, 256),
      (resource.RLIMIT_FSIZE, 64 * _MIB),
      (resource.RLIMIT_STACK, 64 * _MIB),
      (resource.RLIMIT_CORE, 0),
      (resource.RLIMIT_MEMLOCK, 64 << 10),
      (resource.RLIMIT_MSGQUEUE, 0),
      (resource.RLIMIT_SIGPENDING, 1024),
  ):
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
      value = min(value, hard)
    resource.setrlimit(limit, (value, value))


class Namespaces:
  """Containment by namespaces. Made in a slot that is PID 1 of its own."""

  def __init__(self):
    for flags, source, target, options in (
        (syscalls.MS_NOEXEC, 'proc', '/proc', ''),
        (syscalls.MS_NOATIME, 'tmpfs', '/tmp', _TMP_OPTIONS),
        (syscalls.MS_NOATIME, 'tmpfs', '/dev/shm', _SHM_OPTIONS),
    ):
      syscalls.mount(
          source, target, source,
          flags | syscalls.MS_NOSUID | syscalls.MS_NODEV, options,
      )
    socket.sethostname('sandbox')
    os.chdir('/tmp')
    _set_common_limits()
    # PID 1 and the spare count too. Counted per user and user namespace.
    processes_limit = _MAX_PROCESSES + 2
    resource.setrlimit(
        resource.RLIMIT_NPROC, (processes_limit, processes_limit)
    )
    self._filter = syscalls.SeccompProgram(seccomp.build_for_call())
    syscalls.set_no_new_privileges()
    syscalls.set_dumpable(False)
    # The slot's children inherit it, which costs less than to install it.
    syscalls.SeccompProgram(seccomp.build(for_slot=True)).install()
    self._clean = {d: _fingerprint(d) for d in ('/tmp', '/dev/shm')}

  def enter_call(self) -> None:
    """Gives up capabilities and dangerous system calls."""
    os.chdir('/tmp')  # the mount may be newer than the slot's directory
    syscalls.set_dumpable(True)
    syscalls.drop_capabilities()
    self._filter.install()

  def list_processes(self) -> list[int]:
    """The processes of the call."""
    return processes.list_contained()

  def kill_all(self) -> None:
    """Ends the processes of the call."""
    processes.kill_contained()

  def renew(self) -> None:
    """Replaces the private directories that the call touched."""
    for directory, clean in self._clean.items():
      if _fingerprint(directory) == clean:
        continue
      options = _TMP_OPTIONS if directory == '/tmp' else _SHM_OPTIONS
      os.chdir('/')
      syscalls.unmount(directory)
      flags = syscalls.MS_NOATIME | syscalls.MS_NOSUID | syscalls.MS_NODEV
      syscalls.mount('tmpfs', directory, 'tmpfs', flags, options)
      os.chdir('/tmp')
      self._clean[directory] = _fingerprint(directory)


def _fingerprint(directory: str) -> tuple[int, ...]:
  """Changes whenever anything in or about an empty directory does."""
  about = os.stat(directory)
  usage = os.statvfs(directory)
  return (
      about.st_ctime_ns, about.st_mtime_ns, about.st_mode,
      usage.f_ffree, usage.f_bfree,
  )


def fork_namespaced(serve) -> int:
  """Forks a keeper, which forks a slot into namespaces of its own.

  Args:
    serve: called as serve(Namespaces) in the slot; must not return.

  Returns:
    In the keeper, the slot's PID as the machine sees it.
  """
  uid, gid = os.getuid(), os.getgid()
  syscalls.unshare(_SLOT_NAMESPACES)
  _map_ids(uid, _INNER_ID, gid, _INNER_ID)
  pid = os.fork()
  if pid == 0:
    syscalls.set_parent_death_signal(signal.SIGKILL)
    serve(Namespaces)
    os._exit(70)
  return pid


class Descendants:
  """Containment without namespaces: what a process can give up by itself."""

  def __init__(self, workspace: str, use_landlock: bool):
    syscalls.set_child_subreaper()
    _set_common_limits()
    self._workspace = workspace
    self._directory = ''
    self._use_landlock = use_landlock
    self._filter = None
    if use_landlock:
      self._filter = syscalls.SeccompProgram(
          seccomp.build(allow_processes=False)
      )
    self._make_directory()
    syscalls.set_no_new_privileges()

  def _make_directory(self) -> None:
    name = f'call-{os.urandom(8).hex()}'
    self._directory = os.path.join(self._workspace, name)
    os.mkdir(self._directory, 0o700)
    os.chdir(self._directory)

  def enter_call(self) -> None:
    """Gives up what the level names."""
    os.chdir(self._directory)
    os.environ.update(HOME=self._directory, TMPDIR=self._directory)
    # The last in the chain that ends with the server: nothing but this ends
    # the program if its slot is killed.
    syscalls.set_parent_death_signal(signal.SIGKILL)
    syscalls.drop_capabilities()
    if self._use_landlock:
      landlock.restrict(self._directory)
      assert self._filter is not None  # made with the slot
      self._filter.install()

  def list_processes(self) -> list[int]:
    """The processes of the call."""
    return processes.list_descendants()

  def kill_all(self) -> None:
    """Ends the processes of the call."""
    processes.kill_descendants()

  def renew(self) -> None:
    """Replaces the private directory if the call left anything in it."""
    if os.listdir(self._directory):
      os.chdir('/')
      _remove_tree(self._directory)
      self._make_directory()


def _remove_tree(path: str) -> None:
  # shutil would bring compression libraries into every fork.
  for parent, directories, files in os.walk(path, topdown=False):
    for name in (*directories, *files):
      try:
        entry = os.path.join(parent, name)
        if name in files or os.path.islink(entry):
          os.unlink(entry)
        else:
          os.rmdir(entry)
      except OSError:  # what cannot be removed goes with the workspace
        pass
  try:
    os.rmdir(path)
  except OSError:
    pass
