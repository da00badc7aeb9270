"""Real servers, as root and as an ordinary user, and what to ask of them."""

from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAIN_UID = 1234


def processes_below(pid: int) -> list[int]:
  """All descendants of a process."""
  found, pending = [], [pid]
  while pending:
    parent = pending.pop()
    try:
      for task in os.listdir(f'/proc/{parent}/task'):
        with open(f'/proc/{parent}/task/{task}/children') as file:
          children = [int(child) for child in file.read().split()]
        found += children
        pending += children
    except OSError:
      pass
  return found


class Server:
  """A running `python -m sandbox_runner`."""

  def __init__(self, *flags: str, plain_user: bool = False):
    command, environment = server_command(plain_user)
    self.process = subprocess.Popen(
        [*command, '-m', 'sandbox_runner', '--port=0', *flags],
        env=environment, cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )
    self.ready_line = read_line(self.process.stdout, 60.0)
    if not self.ready_line:
      self.process.kill()
      _, errors = self.process.communicate()
      raise RuntimeError(f'no server: {errors}')
    self.url = self.ready_line.split()[3]
    self.port = int(self.url.rsplit(':', 1)[1])
    self.plain_user = plain_user

  def post(self, path: str, body, timeout_s: float = 60.0) -> tuple[int, dict]:
    """Status code and decoded answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        self.url + path, data, {'Content-Type': 'application/json'}
    )
    try:
      with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
      return e.code, json.load(e)

  def get(self, path: str, timeout_s: float = 30.0) -> tuple[int, str]:
    """Status code and text."""
    try:
      with urllib.request.urlopen(
          self.url + path, timeout=timeout_s
      ) as answer:
        return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
      return e.code, e.read().decode()

  def run(self, code: str, **fields) -> dict:
    """Runs a program; the result as JSON."""
    return self.post('/v1/execute', {'code': code, **fields})[1]

  def check_healthy(self) -> None:
    """The next call works and finds a clean place."""
    result = self.run(
        'import os\nprint(os.listdir("/tmp"), os.listdir("/dev/shm"))\n'
        'print([p for p in os.listdir("/proc") if p.isdigit()'
        ' and int(p) not in (1, os.getpid())])'
    )
    assert result['status'] == 'success', result
    assert result['stdout'] == '[] []\n[]\n'

  def num_processes(self) -> int:
    """How many processes the server consists of."""
    return len(processes_below(self.process.pid))

  def stop(self) -> None:
    """Ends the server; asserts that nothing stays."""
    below = processes_below(self.process.pid)
    self.process.send_signal(signal.SIGTERM)
    try:
      self.process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
      self.process.kill()
      self.process.communicate()
      raise
    wait_until(lambda: not any(map(is_running, below)), 5.0)


def read_line(stream, timeout_s: float) -> str:
  """One line, or '' at the end of the stream or of the time."""
  ready, _, _ = select.select([stream], [], [], timeout_s)
  return stream.readline() if ready else ''


def is_running(pid: int) -> bool:
  """False for an ended process, also if nobody has reaped it."""
  try:
    with open(f'/proc/{pid}/stat') as file:
      return file.read().rpartition(')')[2].split()[0] != 'Z'
  except OSError:
    return False


def wait_until(condition, timeout_s: float) -> None:
  """Returns when the condition holds; fails after timeout_s."""
  end = time.monotonic() + timeout_s
  while not condition():
    assert time.monotonic() < end, 'condition did not come true in time'
    time.sleep(0.02)


def server_command(plain_user: bool) -> tuple[list[str], dict[str, str]]:
  """How to start Python for a server, and its environment."""
  if not plain_user:
    return [sys.executable], dict(os.environ)
  site_packages = next(
      p for p in sys.path if os.path.basename(p) == 'site-packages'
  )
  drop = ['setpriv', f'--reuid={PLAIN_UID}', f'--regid={PLAIN_UID}',
          '--clear-groups']
  version = f'python3.{sys.version_info.minor}'
  for python in (sys.executable, shutil.which(version, path='/usr/bin')):
    if python is None:
      continue
    if python != sys.executable and site_packages.startswith('/tmp/'):
      pytest.skip(
          f'{site_packages}: another Python cannot show programs libraries'
          ' under /tmp, which is private to each call'
      )
    environment = {
        'PATH': '/usr/bin:/bin', 'HOME': '/nonexistent',
        'PYTHONPATH': f'{ROOT}:{site_packages}', 'PYTHONDONTWRITEBYTECODE': '1',
    }
    probe = subprocess.run(
        [*drop, python, '-c',
         'import subprocess, sys, aiohttp, uvloop, sandbox_runner\n'
         'subprocess.run([sys.executable, "-c", ""], check=True)'],
        env=environment, cwd='/', capture_output=True,
    )
    if probe.returncode == 0:
      return [*drop, python], environment
  pytest.skip(
      f'uid {PLAIN_UID} can read no {version} with aiohttp: '
      f'{probe.stderr.decode().strip().splitlines()[-1]}'
  )
