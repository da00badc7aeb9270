"""A sandbox runner as a child process of this one."""

import collections
import re
import subprocess
import sys
import threading
import time

_READY = re.compile(r"sandbox_runner ready at (http://\S+)(.*)")
_START_TIMEOUT_S = 60.0


class SandboxProcess:
  """Starts `python -m sandbox_runner` on a free port; stops it on close.

  Attributes:
    url: where it listens.
    description: what it said about itself, e.g. its isolation.
  """

  def __init__(self, *, isolation: str = "namespaces"):
    """Starts and waits until the runner is ready.

    Args:
      isolation: "namespaces", "landlock" or "none".

    Raises:
      ConnectionError: it did not start; the message holds what it said.
    """
    self._process = subprocess.Popen(
        [sys.executable, "-m", "sandbox_runner", "--port", "0",
         "--exit_with_parent", "--isolation", isolation],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        # A Ctrl-C in the terminal is for this process: it needs the runner
        # until its step is done.
        start_new_session=True)
    self._errors: collections.deque[str] = collections.deque(maxlen=20)
    threading.Thread(
        target=self._drain, args=(self._process.stderr,), daemon=True).start()
    self.url, self.description = self._wait_until_ready()
    threading.Thread(
        target=self._drain, args=(self._process.stdout,), daemon=True).start()

  def close(self) -> None:
    """Stops the runner and everything it runs."""
    if self._process.poll() is None:
      self._process.terminate()
      try:
        self._process.wait(timeout=5)
      except subprocess.TimeoutExpired:
        self._process.kill()
        self._process.wait()

  def _wait_until_ready(self) -> tuple[str, str]:
    timer = threading.Timer(_START_TIMEOUT_S, self._process.kill)
    timer.daemon = True
    timer.start()
    try:
      for line in self._process.stdout or ():
        match = _READY.search(line)
        if match:
          return match.group(1), match.group(2).strip()
    finally:
      timer.cancel()
    code = self._process.wait()
    time.sleep(0.05)  # lets the drain thread see the last line
    said = " / ".join(line.strip() for line in self._errors if line.strip())
    raise ConnectionError(
        f"the sandbox runner did not start (exit code {code}): "
        f"{said or 'it said nothing'}")

  def _drain(self, stream) -> None:
    # An undrained pipe would block the runner once it is full.
    for line in stream:
      self._errors.append(line)
