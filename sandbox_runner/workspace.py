"""The directory in which calls without a mount namespace have theirs.

It is locked while its server lives, so that a later server can tell what a
killed one has left behind, and remove it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile

_PREFIX = 'sandbox_runner-'


class Workspace:
  """A locked temporary directory."""

  def __init__(self):
    _remove_abandoned()
    while True:
      self.path = tempfile.mkdtemp(prefix=_PREFIX)
      self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
      fcntl.flock(self._fd, fcntl.LOCK_EX)
      if os.path.isdir(self.path):  # else taken for abandoned a moment ago
        break
      os.close(self._fd)
    os.chmod(self.path, 0o1777)

  def close(self) -> None:
    """Removes the directory."""
    shutil.rmtree(self.path, ignore_errors=True)
    os.close(self._fd)


def _remove_abandoned() -> None:
  pattern = os.path.join(tempfile.gettempdir(), _PREFIX + '*')
  for path in glob.glob(pattern):
    try:
      if os.stat(path, follow_symlinks=False).st_uid != os.geteuid():
        continue
      fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
      continue
    try:
      fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:  # its server lives
      pass
    finally:
      os.close(fd)
