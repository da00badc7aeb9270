"""Starts a sandbox runner: `python -m sandbox_runner --port=8088`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
import logging
import math
import os
import signal
import socket
import sys

import uvloop

from sandbox_runner import diagnosis
from sandbox_runner import front_ends
from sandbox_runner import log
from sandbox_runner import pool as pool_lib
from sandbox_runner import protocol
from sandbox_runner import rootfs
from sandbox_runner import scheduler as scheduler_lib
from sandbox_runner import server
from sandbox_runner import slot_link
from sandbox_runner import workspace as workspace_lib

_EXIT_BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):

  def error(self, message: str):
    sys.exit(_fail(f'{message}; --help lists the flags'))


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = _Parser(
      prog='python -m sandbox_runner', description=__doc__, allow_abbrev=False
  )
  add = parser.add_argument
  add('--host', default='127.0.0.1', help='address to listen on')
  add('--port', type=int, default=8088, help='TCP port; 0 picks a free one')
  add('--isolation', choices=list(protocol.Isolation), default='namespaces',
      help='what contains a call; never less than asked')
  add('--processes', type=int, default=1,
      help='front-ends that share the port and the limits below')
  add('--max_running', type=int, default=2 * (os.cpu_count() or 1),
      help='calls that run at a time; default is 2 per core')
  add('--max_queued', type=int, default=50_000, help='calls that may wait')
  add('--max_queued_mb', type=int, default=512,
      help='megabytes of source and stdin that may wait')
  add('--deadline_s', type=float, default=600.0,
      help='seconds a call may wait that names no deadline itself')
  add('--max_output_mb', type=float, default=4.0,
      help='megabytes per stream after which a program is killed')
  add('--max_sessions', type=int, default=256,
      help='sessions that may be open')
  add('--foreign_timeout_s', type=float, default=10.0,
      help='wall limit in seconds on the code-judge and SandboxFusion routes')
  add('--exit_with_parent', action='store_true',
      help='end when the process that started this one ends')
  add('--node', default=socket.gethostname(), help='name shown in results')
  options = parser.parse_args(argv)
  for name in ('processes', 'max_running', 'max_queued', 'max_queued_mb',
               'deadline_s', 'max_output_mb', 'max_sessions',
               'foreign_timeout_s'):
    if getattr(options, name) <= 0:
      parser.error(f'--{name} must be greater than 0')
  if not 0 <= options.port <= 65535:
    parser.error(f'--port={options.port} is not in [0, 65535]')
  return options


def main(argv: list[str]) -> int:
  """Runs until a signal. Returns the exit code."""
  options = _parse(argv)
  log.configure()
  try:
    rootfs.check_interpreter(rootfs.current_interpreter())
    sock = server.bind(options.host, options.port, options.processes > 1)
  except (ValueError, OSError) as e:
    where = f'{options.host}:{options.port}: ' if isinstance(e, OSError) else ''
    return _fail(f'{where}{getattr(e, "strerror", None) or e}')
  if options.isolation == protocol.Isolation.NONE:
    logging.warning('isolation=none: programs can read and change what '
                    'this user can')
  if options.processes == 1:
    sock.listen(server.BACKLOG)
    code, why = _run_front_end(options, sock, None, lambda _: _announce(
        options, sock
    ))
    return _fail(why) if why else code
  return _run_front_ends(options, sock)


def _run_front_ends(options: argparse.Namespace, sock: socket.socket) -> int:
  peers = front_ends.Peers(options.processes)
  address = sock.getsockname()
  share = argparse.Namespace(**vars(options))
  for name in ('max_running', 'max_queued', 'max_queued_mb', 'max_sessions'):
    value = getattr(options, name) / options.processes
    setattr(share, name, math.ceil(value))

  def run(index: int, report: Callable[[bytes], None]) -> int:
    peers.index = index
    own = server.bind(address[0], address[1], reuse_port=True, probe=False)
    sock.close()
    own.listen(server.BACKLOG)
    share.exit_with_parent = False  # the parent sees to it
    code, why = _run_front_end(share, own, peers, report)
    if why:
      report(why.encode())
    return code

  code, why = front_ends.supervise(
      options.processes, run, lambda: _announce(options, sock),
      options.exit_with_parent,
  )
  return _fail(why) if why else code


def _run_front_end(
    options: argparse.Namespace,
    sock: socket.socket,
    peers: front_ends.Peers | None,
    on_ready: Callable[[bytes], None],
) -> tuple[int, str]:
  """Serves until a signal. The exit code, and why it cannot start."""
  workspace = None
  if options.isolation != protocol.Isolation.NAMESPACES:
    workspace = workspace_lib.Workspace()
  try:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
      return runner.run(_run(
          options, sock, peers, workspace.path if workspace else '', on_ready
      ))
  finally:
    if workspace is not None:
      workspace.close()


def _fail(message: str) -> int:
  print(f'error: {message}', file=sys.stderr, flush=True)
  return _EXIT_BAD_INPUT


def _announce(options: argparse.Namespace, sock: socket.socket) -> None:
  host, port = sock.getsockname()[:2]
  shown = f'[{host}]' if ':' in host else host
  print(
      f'sandbox_runner ready at http://{shown}:{port} '
      f'isolation={options.isolation}', flush=True,
  )


async def _run(
    options: argparse.Namespace,
    sock: socket.socket,
    peers: front_ends.Peers | None,
    workspace: str,
    on_ready: Callable[[bytes], None],
) -> tuple[int, str]:
  stop = _stop_event(options.exit_with_parent)
  pool = pool_lib.Pool(
      isolation=options.isolation,
      workspace=workspace,
      output_limits=slot_link.OutputLimits(
          max_bytes=int(options.max_output_mb * (1 << 20))
      ),
  )
  scheduler = scheduler_lib.Scheduler(
      pool,
      max_running=options.max_running,
      limits=scheduler_lib.QueueLimits(
          options.max_queued, options.max_queued_mb << 20, options.deadline_s
      ),
      node=options.node,
  )
  stopped = asyncio.ensure_future(stop.wait())
  try:
    canary = asyncio.ensure_future(server.run_canary(scheduler))
    await asyncio.wait((canary, stopped), return_when='FIRST_COMPLETED')
    if stopped.done():
      canary.cancel()
      return 0, ''
    result = canary.result()
    if result.status is not protocol.Status.SUCCESS:
      return _EXIT_BAD_INPUT, diagnosis.explain(options.isolation, result)
    app = server.make_app(
        scheduler, max_sessions=options.max_sessions,
        foreign_timeout_s=options.foreign_timeout_s, peers=peers,
    )
    sockets = [sock] if peers is None else [sock, peers.own_socket]
    runner = await server.serve(app, sockets)
    on_ready(front_ends.READY)
    warming = asyncio.ensure_future(server.warm(pool, ('numpy', 'full')))
    await stopped
    warming.cancel()
    await runner.cleanup()
    return 0, ''
  finally:
    stopped.cancel()
    await pool.close()


def _stop_event(exit_with_parent: bool) -> asyncio.Event:
  stop = asyncio.Event()
  loop = asyncio.get_running_loop()
  for number in (signal.SIGINT, signal.SIGTERM):
    loop.add_signal_handler(number, stop.set)
  if exit_with_parent:
    # Not PDEATHSIG: that follows the parent's thread, which may end earlier.
    parent = os.getppid()
    try:
      loop.add_reader(os.pidfd_open(parent), stop.set)
    except ProcessLookupError:
      stop.set()
  return stop


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
