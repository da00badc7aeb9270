"""Several front-end processes on one port, by SO_REUSEPORT.

Each is a whole server with a share of the limits; the kernel spreads the
connections. What belongs to one process, a session, is reached through any:
the id of a session names its process, and the others pass its requests on.
The process that starts them runs no event loop and no calls; it replaces a
front-end that ends, and ends them all when it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import logging
import os
import select
import signal
import socket
import time

import aiohttp
from aiohttp import web

from sandbox_runner import answers
from sandbox_runner import session_routes
from sandbox_runner import syscalls

READY = b'ready'

_PASSED_ON = 'X-Sandbox-Passed-On'
_STOP_TIMEOUT_S = 10.0
_RESTART_PAUSE_S = 0.5
_MAX_REPORT_BYTES = 4096


class Peers:
  """The front-ends of one server, as one of them sees the others."""

  def __init__(self, num_processes: int):
    self.index = 0
    self.sockets: list[socket.socket] = []
    self._clients: dict[int, aiohttp.ClientSession] = {}
    for _ in range(num_processes):
      sock = socket.socket()
      sock.bind(('127.0.0.1', 0))
      sock.listen(128)
      self.sockets.append(sock)

  @property
  def own_socket(self) -> socket.socket:
    """Where this process answers the others."""
    return self.sockets[self.index]

  def session_prefix(self) -> str:
    """What the ids of this process's sessions start with."""
    return f'{self.index}-'

  def _client(self, index: int) -> aiohttp.ClientSession:
    client = self._clients.get(index)
    if client is None:
      client = self._clients[index] = aiohttp.ClientSession(
          f'http://127.0.0.1:{self.sockets[index].getsockname()[1]}',
          connector=aiohttp.TCPConnector(limit=0), headers={_PASSED_ON: '1'},
      )
    return client

  def _owner(self, request: web.Request) -> int | None:
    """The other process that a request is for, None if this one."""
    session_id = request.match_info.get('session_id')
    if session_id is None or _PASSED_ON in request.headers:
      return None
    index, _, _ = session_id.partition('-')
    if index.isdecimal() and len(index) < 4:
      owner = int(index)
      if owner < len(self.sockets) and owner != self.index:
        return owner
    return None

  @web.middleware
  async def pass_on(self, request: web.Request, handler) -> (
      web.StreamResponse
  ):
    """Sends a request for another process's session there."""
    owner = self._owner(request)
    if owner is None:
      return await handler(request)
    try:
      async with self._client(owner).request(
          request.method, request.path,
          data=await request.read(),
          timeout=aiohttp.ClientTimeout(total=None),
      ) as answer:
        return web.Response(
            body=await answer.read(), status=answer.status,
            content_type=answer.content_type,
        )
    except aiohttp.ClientError:  # it ended, and its sessions with it
      return answers.json(session_routes.no_session('').to_json(), 404)

  @web.middleware
  async def join_metrics(self, request: web.Request, handler) -> (
      web.StreamResponse
  ):
    """Answers /metrics for all processes, each sample with its process."""
    response = await handler(request)
    if request.path != '/metrics' or _PASSED_ON in request.headers:
      return response
    others = [i for i in range(len(self.sockets)) if i != self.index]
    texts = await asyncio.gather(*map(self._metrics_of, others))
    joined = {self.index: response.text}
    joined.update(zip(others, texts, strict=True))
    return web.Response(
        text=join_samples(joined), content_type='text/plain'
    )

  async def _metrics_of(self, index: int) -> str:
    try:
      async with self._client(index).get(
          '/metrics', timeout=aiohttp.ClientTimeout(total=2)
      ) as answer:
        return await answer.text()
    except (aiohttp.ClientError, TimeoutError):
      return ''

  async def close(self, app: web.Application) -> None:
    """Closes the connections to the others."""
    for client in self._clients.values():
      await client.close()


def join_samples(texts: dict[int, str]) -> str:
  """One Prometheus text of several; a label `process` tells them apart."""
  samples: dict[str, list[str]] = {}
  for index, text in sorted(texts.items()):
    kind = ''
    for line in text.splitlines():
      if line.startswith('#'):
        kind = line
        continue
      name, _, value = line.rpartition(' ')
      name, brace, labels = name.partition('{')
      labels = f'{labels[:-1]},' if brace else ''
      samples.setdefault(kind, []).append(
          f'{name}{{{labels}process="{index}"}} {value}'
      )
  lines = []
  for kind, below in samples.items():
    lines += [kind, *below]
  return '\n'.join(lines) + '\n'


def supervise(
    num_processes: int,
    run: Callable[[int, Callable[[bytes], None]], int],
    on_ready: Callable[[], None],
    exit_with_parent: bool,
) -> tuple[int, str]:
  """Keeps front-ends running until a signal.

  Args:
    num_processes: how many.
    run: called in each as run(index, report) -> exit code; report(READY) or
      report(why not) is called once.
    on_ready: called here when all are ready.
    exit_with_parent: end when this process's parent ends.

  Returns:
    The exit code, and why, if a front-end cannot start.
  """
  return _Supervisor(num_processes, run, on_ready).run(exit_with_parent)


class _Supervisor:

  def __init__(self, num_processes, run, on_ready):
    self._num_processes = num_processes
    self._run = run
    self._on_ready = on_ready
    self._pids: dict[int, int] = {}  # pid -> index
    self._reports: dict[int, int] = {}  # descriptor -> index
    self._num_ready = 0

  def run(self, exit_with_parent: bool) -> tuple[int, str]:
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
      handlers[number] = signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    self._handlers = handlers
    watched = [wake_read]
    if exit_with_parent:
      try:
        watched.append(os.pidfd_open(os.getppid()))
      except ProcessLookupError:
        return 0, ''
    try:
      for index in range(self._num_processes):
        self._start(index)
      return self._loop(watched)
    finally:
      self._stop()

  def _loop(self, watched: list[int]) -> tuple[int, str]:
    while True:
      ready, _, _ = select.select([*watched, *self._reports], [], [])
      if len(watched) > 1 and watched[1] in ready:
        return 0, ''
      for fd in set(ready) & set(self._reports):
        why = self._take_report(fd)
        if why:
          return 2, why
      if watched[0] in ready:
        numbers = os.read(watched[0], 512)
        if {signal.SIGINT, signal.SIGTERM} & set(numbers):
          return 0, ''
        self._replace_ended()

  def _start(self, index: int) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
      code = 70
      try:
        syscalls.set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != parent:
          os._exit(0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
          signal.signal(number, handler)
        os.close(read)
        code = self._run(index, lambda text: _report(write, text))
      finally:
        os._exit(code)
    os.close(write)
    self._pids[pid] = index
    self._reports[read] = index

  def _take_report(self, fd: int) -> str:
    """Why a front-end cannot start, '' if it did."""
    report = os.read(fd, _MAX_REPORT_BYTES)
    os.close(fd)
    del self._reports[fd]
    if report == READY:
      self._num_ready += 1
      if self._num_ready == self._num_processes:
        self._on_ready()
    elif self._num_ready < self._num_processes:  # not one that was replaced
      return report.decode('utf-8', 'replace') or 'a front-end ended'
    return ''

  def _replace_ended(self) -> None:
    for pid, index in list(self._pids.items()):
      if os.waitpid(pid, os.WNOHANG)[0] == pid:
        del self._pids[pid]
        if self._num_ready >= self._num_processes:
          logging.warning('front-end %d ended; starting another', index)
          time.sleep(_RESTART_PAUSE_S)
          self._start(index)

  def _stop(self) -> None:
    for pid in self._pids:
      os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + _STOP_TIMEOUT_S
    for pid in self._pids:
      while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
          os.kill(pid, signal.SIGKILL)
          os.waitpid(pid, 0)
          break
        time.sleep(0.02)


def _report(fd: int, text: bytes) -> None:
  os.write(fd, text[:_MAX_REPORT_BYTES])
  os.close(fd)
