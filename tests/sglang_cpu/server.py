"""A real SGLang process for tests."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

_HERE = pathlib.Path(__file__).resolve().parent
_START_TIMEOUT_S = 300.0  # it takes half a minute where the cores are free
_STOP_TIMEOUT_S = 20.0


def environment() -> str:
  """The virtual environment that install.sh has made; "" if none is given."""
  return os.environ.get("RSTAR2_SGLANG", "")


@contextlib.contextmanager
def running(
    folder: str | os.PathLike[str], *flags: str
) -> Iterator[tuple[subprocess.Popen, str]]:
  """Serves a Hugging Face folder; yields the process and its URL.

  Raises:
    RuntimeError: it did not start; the message holds the end of its log.
  """
  port = _free_port()
  url = f"http://127.0.0.1:{port}"
  with tempfile.TemporaryFile("w+") as log:
    process = subprocess.Popen(
        [f"{environment()}/bin/python", str(_HERE / "serve.py"),
         f"--model-path={folder}", f"--port={port}", *flags],
        stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
      _wait_until_ready(process, url, log)
      yield process, url
    finally:
      _stop(process)


def _free_port() -> int:
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    return probe.getsockname()[1]


def _wait_until_ready(process, url: str, log) -> None:
  end_s = time.monotonic() + _START_TIMEOUT_S
  while time.monotonic() < end_s:
    if process.poll() is not None:
      break
    with contextlib.suppress(OSError, urllib.error.URLError):
      with urllib.request.urlopen(f"{url}/health_generate", timeout=30):
        return
    time.sleep(0.5)
  log.seek(0)
  raise RuntimeError(f"SGLang did not start:\n{log.read()[-4000:]}")


def _stop(process: subprocess.Popen) -> None:
  """Ends its whole group: workers outlive a parent that was killed."""
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGTERM)
  try:
    process.wait(timeout=_STOP_TIMEOUT_S)
  except subprocess.TimeoutExpired:
    pass
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)
  process.wait()
