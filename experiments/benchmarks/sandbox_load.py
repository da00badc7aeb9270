"""Servers to measure, what they use, and load for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import aiohttp

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_CGROUPS = (  # directory, file of CPU time, seconds per unit
    ('/sys/fs/cgroup/cpuacct', 'cpuacct.usage', 1e-9),
    ('/sys/fs/cgroup', 'cpu.stat', 1e-6),
)
_TICK_S = 1.0 / os.sysconf('SC_CLK_TCK')


class _Cgroup:
  """A control group that counts CPU time, where one can be made."""

  def __init__(self):
    self.path = None
    for parent, name, unit_s in _CGROUPS:
      if not os.path.exists(f'{parent}/cgroup.procs'):
        continue
      try:
        self.path = tempfile.mkdtemp(prefix='sandbox-benchmark-', dir=parent)
      except OSError:
        continue
      self._file, self._unit_s = f'{self.path}/{name}', unit_s
      if os.path.exists(self._file):
        return
      os.rmdir(self.path)
      self.path = None

  def cpu_s(self) -> float:
    """CPU time of all that ever was in the group."""
    with open(self._file) as file:
      return int(re.findall(r'\d+', file.read())[0]) * self._unit_s

  def remove(self) -> None:
    """Removes the group once its processes have ended."""
    for _ in range(100 if self.path else 0):
      try:
        os.rmdir(str(self.path))
        return
      except OSError:
        time.sleep(0.05)


def interpreter() -> tuple[str, dict[str, str]]:
  """The Python of servers and cold calls, and its environment.

  This one, unless it lies in root's home: there the weaker isolation levels,
  which run programs as another user, cannot use it.
  """
  parents = pathlib.Path(sys.base_prefix).parents
  if os.geteuid() or all(parent.stat().st_mode & 1 for parent in parents):
    return sys.executable, dict(os.environ)
  name = f'python3.{sys.version_info.minor}'
  found = shutil.which(name, path='/usr/local/bin:/usr/bin')
  if found is None:
    raise RuntimeError(f'{sys.base_prefix} is private to root; no {name} else')
  libraries = [p for p in sys.path if p.endswith('site-packages')]
  return found, os.environ | {'PYTHONPATH': ':'.join([str(_ROOT), *libraries])}


class Server:
  """A server of its own, and what it uses."""

  def __init__(self, *flags: str):
    self._cgroup = _Cgroup()
    python, environment = interpreter()
    command = [
        python, '-m', 'sandbox_runner', '--port=0',
        '--exit_with_parent', *flags,
    ]
    if self._cgroup.path:
      join = f'echo $$ > {self._cgroup.path}/cgroup.procs && exec "$@"'
      command = ['sh', '-c', join, 'sh', *command]
    self._process = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE,
        text=True,
    )
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      raise RuntimeError('the server did not start')
    self.url = line.split()[3]
    self.pid = self._process.pid

  def __enter__(self) -> Server:
    return self

  def __exit__(self, *error: Any) -> None:
    self._process.terminate()
    self._process.wait()
    if self._cgroup.path:
      self._cgroup.remove()

  @property
  def meter(self) -> str:
    """Where the CPU times come from."""
    return 'cgroup' if self._cgroup.path else 'proc'

  def cpu_s(self) -> float:
    """CPU time of the server and all that it ever started."""
    if self._cgroup.path:
      return self._cgroup.cpu_s()
    ticks = 0
    for pid in (self.pid, *descendants(self.pid)):
      try:
        with open(f'/proc/{pid}/stat') as file:
          fields = file.read().rpartition(')')[2].split()
      except OSError:
        continue
      ticks += sum(map(int, fields[11:15]))
    return ticks * _TICK_S

  def front_ends(self) -> list[int]:
    """Processes that hold connections."""
    with open(f'/proc/{self.pid}/task/{self.pid}/children') as file:
      below = [int(pid) for pid in file.read().split()]
    return [self.pid] + [p for p in below if _is_front_end(p)]

  def rss_bytes(self) -> int:
    """Resident size of the processes that hold connections."""
    return sum(_rss_bytes(pid) for pid in self.front_ends())


def _is_front_end(pid: int) -> bool:
  with open(f'/proc/{pid}/cmdline', 'rb') as file:
    return b'sandbox_runner\0--port' in file.read()


def _rss_bytes(pid: int) -> int:
  with open(f'/proc/{pid}/statm') as file:
    return int(file.read().split()[1]) * os.sysconf('SC_PAGESIZE')


def descendants(pid: int) -> list[int]:
  """All processes below one."""
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


def cold_cpu_ms(code: str, num_calls: int) -> float:
  """CPU time of a call that starts an interpreter, as others do it."""
  def used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

  # As -I, but with the libraries that -I may hide.
  python, environment = interpreter()
  before = used()
  for _ in range(num_calls):
    subprocess.run(
        [python, '-s', '-P', '-c', code], check=False, capture_output=True,
        env=environment,
    )
  return 1e3 * (used() - before) / num_calls


async def metrics(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
  """Samples by name, summed over their labels."""
  async with http.get(url + '/metrics') as answer:
    text = await answer.text()
  samples: dict[str, float] = {}
  for line in text.splitlines():
    if not line.startswith('#'):
      name, _, value = line.rpartition(' ')
      name = name.partition('{')[0]
      samples[name] = samples.get(name, 0.0) + float(value)
  return samples


def new_http(local_host: str | None = None) -> aiohttp.ClientSession:
  """Connections without a limit, from one address."""
  local = (local_host, 0) if local_host else None
  return aiohttp.ClientSession(
      connector=aiohttp.TCPConnector(limit=0, local_addr=local),
      timeout=aiohttp.ClientTimeout(total=None, sock_connect=120),
  )


async def call(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> tuple[str, str, float]:
  """Status, stdout and seconds; status `lost` where no answer comes."""
  start = time.monotonic()
  try:
    async with http.post(url + '/v1/execute', json=body) as answer:
      result = await answer.json()
    status, stdout = result['status'], result['stdout']
  except (aiohttp.ClientError, OSError, ValueError):
    status, stdout = 'lost', ''
  return status, stdout, time.monotonic() - start


async def run_calls(
    url: str, bodies: Sequence[dict[str, Any]], in_flight: int
) -> list[tuple[str, str, float]]:
  """Answers in order, with so many calls in flight at a time."""
  answers: list = [None] * len(bodies)
  pending = iter(range(len(bodies)))

  async def work(http: aiohttp.ClientSession) -> None:
    for i in pending:
      answers[i] = await call(http, url, bodies[i])

  async with new_http() as http:
    await asyncio.gather(*(work(http) for _ in range(in_flight)))
  return answers


def hold(
    url: str, first: int, num_calls: int, local_host: str, per_request: int
) -> None:
  """Sends all calls at once and prints counts of their answers as JSON.

  The entry of a client process: one process may not open enough sockets.
  """
  counts: dict[str, int] = {}

  async def send(http: aiohttp.ClientSession, ids: range) -> None:
    bodies = [{'code': f'print({i})', 'timeout_s': 60} for i in ids]
    if per_request == 1:
      answers = [(await call(http, url, bodies[0]))[:2]]
    else:
      answers = await call_batch(http, url, bodies)
    for i, (status, stdout) in zip(ids, answers, strict=True):
      if status == 'success' and stdout != f'{i}\n':
        status = 'wrong'
      counts[status] = counts.get(status, 0) + 1

  async def run() -> None:
    last = first + num_calls
    async with new_http(local_host) as http:
      tasks = []
      for i in range(first, last, per_request):
        ids = range(i, min(i + per_request, last))
        tasks.append(asyncio.ensure_future(send(http, ids)))
        if len(tasks) % 50 == 0:  # handshakes must not overflow the backlog
          await asyncio.sleep(0.05)
      await asyncio.gather(*tasks)

  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
  asyncio.run(run())
  print(json.dumps(counts), flush=True)


async def call_batch(
    http: aiohttp.ClientSession, url: str, bodies: list[dict[str, Any]]
) -> list[tuple[str, str]]:
  """Status and stdout of each."""
  try:
    async with http.post(
        url + '/v1/execute_batch', json={'requests': bodies}
    ) as answer:
      results = (await answer.json())['results']
    return [(r['status'], r['stdout']) for r in results]
  except (aiohttp.ClientError, OSError, ValueError, KeyError):
    return [('lost', '')] * len(bodies)


if __name__ == '__main__':
  hold(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4],
       int(sys.argv[5]))
