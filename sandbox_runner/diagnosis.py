"""Why the asked isolation cannot be had here, and what to do about it."""

from __future__ import annotations

import os

from sandbox_runner import landlock
from sandbox_runner import protocol

_SYSCTLS = (
    ('/proc/sys/user/max_user_namespaces', '0',
     'user namespaces are off: sysctl -w user.max_user_namespaces=15000'),
    ('/proc/sys/kernel/unprivileged_userns_clone', '0',
     'user namespaces are off for ordinary users: '
     'sysctl -w kernel.unprivileged_userns_clone=1'),
    ('/proc/sys/kernel/apparmor_restrict_unprivileged_userns', '1',
     'AppArmor restricts user namespaces: '
     'sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or load a '
     'profile that allows userns for this Python'),
)


def explain(
    isolation: str, result: protocol.ExecuteResult
) -> str:
  """One line: what failed at the start, the likely cause, and the fix."""
  what = result.message or result.stderr.strip() or result.status
  text = f'cannot provide isolation={isolation}: {what}'
  if 'install Python elsewhere' in what:  # says it all
    return text
  return f'{text}. {_cause(isolation, what)}'


def _cause(isolation: str, what: str) -> str:
  if isolation == protocol.Isolation.LANDLOCK:
    return (
        f'This kernel has Landlock ABI {landlock.abi()}, needed is '
        f'{landlock.MIN_ABI} (Linux 6.12). Use a newer kernel, or '
        '--isolation=namespaces'
    )
  for path, value, advice in _SYSCTLS:
    if _read(path) == value:
      return _hint(advice)
  if 'proc' in what and 'mount' in what:
    return _hint(
        'A container hides parts of /proc: start it with '
        '--security-opt systempaths=unconfined'
    )
  if os.path.exists('/.dockerenv') or os.path.exists('/run/.containerenv'):
    return _hint(
        'The container runtime forbids it: start it with --security-opt '
        'seccomp=unconfined --security-opt apparmor=unconfined '
        '--security-opt systempaths=unconfined'
    )
  return _hint('Linux 5.14 or newer with user namespaces is needed')


def _hint(advice: str) -> str:
  return (
      f'{advice}. Weaker isolation has to be asked for: '
      '--isolation=landlock or --isolation=none'
  )


def _read(path: str) -> str | None:
  try:
    with open(path, encoding='ascii') as file:
      return file.read().strip()
  except OSError:
    return None
