"""The system calls that a program may not make, as a BPF filter.

A list of refusals, not of permissions: what Python and its libraries call
varies with their versions, and namespaces already contain what is allowed.
Refused is what widens the kernel's attack surface or holds memory that no
other limit counts.
"""

from __future__ import annotations

import errno
import platform
import struct

# name: (x86_64, aarch64); None where the processor lacks the call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    'ptrace': (101, 117), 'process_vm_readv': (310, 270),
    'process_vm_writev': (311, 271), 'process_madvise': (440, 440),
    'kcmp': (312, 272), 'pidfd_getfd': (438, 438),
    'mount': (165, 40), 'umount2': (166, 39), 'pivot_root': (155, 41),
    'chroot': (161, 51), 'open_tree': (428, 428), 'move_mount': (429, 429),
    'fsopen': (430, 430), 'fsconfig': (431, 431), 'fsmount': (432, 432),
    'fspick': (433, 433), 'mount_setattr': (442, 442),
    'unshare': (272, 97), 'setns': (308, 268),
    'bpf': (321, 280), 'perf_event_open': (298, 241),
    'add_key': (248, 217), 'request_key': (249, 218), 'keyctl': (250, 219),
    'userfaultfd': (323, 282), 'io_uring_setup': (425, 425),
    'io_uring_enter': (426, 426), 'io_uring_register': (427, 427),
    # Memory that neither tmpfs sizes nor resident sizes would count.
    'memfd_create': (319, 279), 'memfd_secret': (447, 447),
    'shmget': (29, 194), 'shmat': (30, 196), 'shmctl': (31, 195),
    'semget': (64, 190), 'semop': (65, 193), 'semctl': (66, 191),
    'semtimedop': (220, 192), 'msgget': (68, 186), 'msgsnd': (69, 189),
    'msgrcv': (70, 188), 'msgctl': (71, 187),
    'mq_open': (240, 180), 'mq_unlink': (241, 181),
    'init_module': (175, 105), 'finit_module': (313, 273),
    'delete_module': (176, 106), 'kexec_load': (246, 104),
    'kexec_file_load': (320, 294), 'reboot': (169, 142),
    'settimeofday': (164, 170), 'clock_settime': (227, 112),
    'clock_adjtime': (305, 266), 'adjtimex': (159, 171),
    'swapon': (167, 224), 'swapoff': (168, 225), 'acct': (163, 89),
    'quotactl': (179, 60), 'quotactl_fd': (443, 443),
    'name_to_handle_at': (303, 264), 'open_by_handle_at': (304, 265),
    'fanotify_init': (300, 262), 'syslog': (103, 116), 'vhangup': (153, 58),
    'iopl': (172, None), 'ioperm': (173, None), 'modify_ldt': (154, None),
    'sethostname': (170, 161), 'setdomainname': (171, 162),
}
# Starting processes: refused at the landlock level, where nothing but the
# process group would hold them together.
_PROCESS: dict[str, tuple[int | None, int | None]] = {
    'fork': (57, None), 'vfork': (58, None), 'execve': (59, 221),
    'execveat': (322, 281), 'setsid': (112, 157), 'setpgid': (109, 154),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_SOCKETPAIR = (53, 199)
_IOCTL = (16, 29)

_AUDIT_ARCH = {'x86_64': 0xC000003E, 'aarch64': 0xC00000B7}
_X32_BIT = 0x40000000
# CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_NAMESPACE_FLAGS = 0x7E020000
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

_LOAD = 0x20
_JEQ = 0x15
_JGE = 0x35
_JSET = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARG0, _OFFSET_ARG1 = 0, 4, 16, 24


def _error(number: int) -> int:
  return 0x00050000 | number


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
  return struct.pack('<HBBI', code, jt, jf, k)


def _on_call(number: int, body: list[bytes]) -> list[bytes]:
  """Runs body for one call; restores the loaded number after it."""
  return [
      _instruction(_JEQ, number, 0, len(body) + 1),
      *body,
      _instruction(_LOAD, _OFFSET_NR),
  ]


# What a slot does between calls, and a program never may.
_SLOT_ONLY = ('mount', 'umount2')


def build_for_call() -> bytes:
  """What a call adds to the filter of its slot; short, so that it is cheap."""
  column = 0 if platform.machine() == 'x86_64' else 1
  program = [_instruction(_LOAD, _OFFSET_NR)]
  for name in _SLOT_ONLY:
    number = _DENIED[name][column]
    assert number is not None  # every machine has these
    program += [
        _instruction(_JEQ, number, 0, 1),
        _instruction(_RETURN, _error(errno.EPERM)),
    ]
  program.append(_instruction(_RETURN, _ALLOW))
  return b''.join(program)


def build(*, allow_processes: bool = True, for_slot: bool = False) -> bytes:
  """The filter for this machine, ready for the kernel.

  Args:
    allow_processes: False also refuses fork and exec, but not threads.
    for_slot: leave out what build_for_call refuses.

  Raises:
    OSError: call numbers of this processor are not known.
  """
  machine = platform.machine()
  if machine not in _AUDIT_ARCH:
    raise OSError(errno.ENOSYS, f'no seccomp table for {machine}')
  column = 0 if machine == 'x86_64' else 1
  refuse = _instruction(_RETURN, _error(errno.EPERM))
  program = [
      _instruction(_LOAD, _OFFSET_ARCH),
      _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
      _instruction(_RETURN, _KILL),
      _instruction(_LOAD, _OFFSET_NR),
  ]
  if machine == 'x86_64':
    program += [
        _instruction(_JGE, _X32_BIT, 0, 1), _instruction(_RETURN, _KILL),
    ]
  program += _on_call(_CLONE[column], _clone_rules(allow_processes))
  program += [
      # glibc falls back to clone, whose flags can be seen.
      _instruction(_JEQ, _CLONE3[column], 0, 1),
      _instruction(_RETURN, _error(errno.ENOSYS)),
  ]
  for number in (_SOCKET[column], _SOCKETPAIR[column]):
    program += _on_call(number, [
        _instruction(_LOAD, _OFFSET_ARG0),
        _instruction(_JEQ, _AF_UNIX, 1, 0),
        _instruction(_RETURN, _error(errno.EACCES)),
    ])
  program += _on_call(_IOCTL[column], [
      _instruction(_LOAD, _OFFSET_ARG1),
      _instruction(_JEQ, _TIOCSTI, 1, 0),
      _instruction(_JEQ, _TIOCLINUX, 0, 1),
      refuse,
  ])
  denied = dict(_DENIED) if allow_processes else {**_DENIED, **_PROCESS}
  for name, numbers in denied.items():
    if for_slot and name in _SLOT_ONLY:
      continue
    if (denied_number := numbers[column]) is not None:
      program += [_instruction(_JEQ, denied_number, 0, 1), refuse]
  program.append(_instruction(_RETURN, _ALLOW))
  return b''.join(program)


def _clone_rules(allow_processes: bool) -> list[bytes]:
  refuse = _instruction(_RETURN, _error(errno.EPERM))
  rules = [
      _instruction(_LOAD, _OFFSET_ARG0),
      _instruction(_JSET, _NAMESPACE_FLAGS, 0, 1),
      refuse,
  ]
  if not allow_processes:
    rules += [_instruction(_JSET, _CLONE_THREAD, 1, 0), refuse]
  return rules
