"""A zygote: imports libraries once, then forks slots that share them.

Started afresh by the supervisor with a clean environment. It first enters the
programs' root (at level namespaces), so that nothing is imported by a process
that can reach the host; then imports, warms, freezes the collector, and forks
a slot for each request on its socket. It must have one thread.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import mmap
import os
import random
import signal
import site
import socket
import sys
import traceback

from sandbox_runner import isolation
from sandbox_runner import rootfs
from sandbox_runner import slot
from sandbox_runner import syscalls
from sandbox_runner import wire

# What short programs import most; each costs page table entries per fork.
_BARE = (
    'bisect', 'cmath', 'collections', 'copy', 'dataclasses', 'datetime',
    'decimal', 'enum', 'fractions', 'functools', 'heapq', 'io', 'itertools',
    'json', 'linecache', 'math', 'numbers', 'operator', 'random', 're',
    'statistics', 'string', 'textwrap', 'threading', 'time', 'traceback',
    'typing',
)
_NUMPY = ('numpy', 'numpy.linalg', 'numpy.random')
TIER_MODULES: dict[str, tuple[str, ...]] = {
    'bare': _BARE,
    'numpy': _BARE + _NUMPY,
    'full': _BARE + _NUMPY + (
        'scipy', 'scipy.optimize', 'scipy.linalg', 'scipy.stats',
        'scipy.special', 'scipy.integrate', 'sympy',
    ),
    'verify': _BARE + ('sympy', 'math_verify'),
}
# Run once before the first fork: libraries build caches in their first call,
# which every later call would otherwise build for itself.
_WARM: dict[str, str] = {
    'bare': '',
    'numpy': (
        'import numpy as np\n'
        'a = np.arange(9.0).reshape(3, 3) + np.eye(3)\n'
        'str(a @ a), np.linalg.solve(a, a), np.linalg.det(a), repr(a[0])\n'
        'np.random.rand(3).sum(), np.random.default_rng(1).integers(3)\n'
    ),
    'full': (
        'import sympy as sp\n'
        'x, y = sp.symbols("x y")\n'
        'n = sp.symbols("n", integer=True, positive=True)\n'
        'str(sp.solve(x**2 - 5*x + 6, x))\n'
        'sp.solve([x + y - 3, x - y], [x, y])\n'
        'str(sp.simplify(sp.sin(x)**2 + sp.cos(x)**2)), sp.factor(x**2 - 1)\n'
        'str(sp.expand((x + 1)**3)), sp.integrate(x*sp.exp(x), x)\n'
        'sp.diff(sp.sin(x)/x, x), sp.limit(sp.sin(x)/x, x, 0), sp.latex(x/y)\n'
        'sp.factorint(360), sp.isprime(97), sp.Matrix([[1, 2], [3, 4]]).inv()\n'
        'str(sp.sqrt(8)), sp.Rational(1, 3) + 1, sp.N(sp.pi, 20)\n'
        'sp.summation(n, (n, 1, 10)), sp.nsolve(x**2 - 2, 1), sp.divisors(12)\n'
        'str(sp.solve(x**3 - 2*x + 1, x)), sp.solveset(x**2 - 4, x)\n'
    ),
    'verify': (
        'from math_verify import parse, verify\n'
        'for a, b in (("$\\\\frac{1}{2}$", "$0.5$"), ("$(1,2)$", "$3$"),\n'
        '             ("$\\\\sqrt{8}$", "$2\\\\sqrt{2}$"), ("$x+1$", "$1+x$")'
        '):\n'
        '  a, b = (parse(t, parsing_timeout=None) for t in (a, b))\n'
        '  verify(a, b, timeout_seconds=None)\n'
    ),
}
_WARM['full'] = _WARM['numpy'] + _WARM['full']


def main(argument: str) -> None:
  """Runs a zygote; argument is JSON written by the supervisor."""
  options = json.loads(argument)
  link = socket.socket(fileno=options['fd'])
  syscalls.set_parent_death_signal(signal.SIGKILL)
  if os.getppid() != options['parent']:
    return
  try:
    _prepare(options)
    syscalls.set_parent_death_signal(signal.SIGKILL)  # a new uid clears it
  except Exception as e:
    _tell(link, wire.FAILED + _describe(e).encode())
    return
  _tell(link, wire.ZYGOTE_READY)
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers reap themselves
  _serve(link, options)


def _tell(link: socket.socket, packet: bytes) -> None:
  try:
    link.send(packet)
  except OSError:  # the supervisor has ended; so will this process
    os._exit(0)


def _describe(error: BaseException) -> str:
  name = '' if isinstance(error, OSError) else f'{type(error).__name__}: '
  return name + (getattr(error, 'strerror', None) or str(error))


def _prepare(options: dict) -> None:
  level = options['isolation']
  interpreter = rootfs.Interpreter(
      options['prefix'], options['base_prefix'],
      tuple(options['site_packages']),
  )
  site_packages = list(interpreter.site_packages)
  if level == 'namespaces':
    isolation.enter_zygote_namespaces(interpreter)
    site_packages = interpreter.mapped_site_packages()
    sys.executable = interpreter.mapped_executable()
    sys.prefix = sys.exec_prefix = interpreter.mapped_prefix
  elif isolation.can_drop_root():
    isolation.drop_root()
    _check_readable(interpreter)
  sys.path[:] = [p for p in sys.path if p != options['source_root']]
  sys.path += site_packages
  sys.dont_write_bytecode = True
  site.setquit()  # exit() and quit(), which -S leaves out
  site.sethelper()
  _import_and_warm(options['tier'])
  threads = len(os.listdir('/proc/self/task'))
  if threads != 1:
    raise RuntimeError(f'{threads} threads after imports; cannot fork safely')


def _check_readable(interpreter: rootfs.Interpreter) -> None:
  """Raises OSError if this user cannot import what the server can."""
  for path in (interpreter.base_prefix, *interpreter.site_packages):
    if not os.access(path, os.R_OK | os.X_OK):
      raise OSError(
          f'{path} cannot be read by uid {os.geteuid()}, as which programs run'
          ' when the server is root; install Python elsewhere, e.g. under '
          '/opt, or start the server as another user'
      )


def _import_and_warm(tier: str) -> None:
  try:
    for name in TIER_MODULES[tier]:
      importlib.import_module(name)
    exec(_WARM[tier], {'__name__': 'warm'})
  except ImportError:
    # Not installed here: the program that needs it will say so itself.
    pass
  compile(ast.parse('1'), 'warm', 'exec')
  try:
    raise ValueError('warm')
  except ValueError as error:
    ''.join(traceback.format_exception(error))
  random.seed(0)
  gc.collect()
  gc.freeze()


def _serve(link: socket.socket, options: dict) -> None:
  while True:
    packet, fds, _, _ = socket.recv_fds(link, 64, 4)
    if not packet:
      return
    if os.fork() == 0:
      link.close()
      _become_slot(fds, options)
      os._exit(0)
    for fd in fds:
      os.close(fd)


def _become_slot(fds: list[int], options: dict) -> None:
  """In a fork of the zygote: the keeper of a slot, or the slot itself."""
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  syscalls.set_parent_death_signal(signal.SIGKILL)
  link = socket.socket(fileno=fds[0])

  def serve(make_containment) -> None:
    try:
      containment = make_containment()
      shared = mmap.mmap(fds[3], wire.VALUE_BYTES)
      os.close(fds[3])
      server = slot.Slot(link, (fds[1], fds[2]), shared, containment)
    except Exception as e:
      link.send(wire.FAILED + _describe(e).encode())
      os._exit(1)
    server.serve()
    os._exit(0)

  if options['isolation'] != 'namespaces':
    link_pidfd = os.pidfd_open(os.getpid())
    socket.send_fds(link, [wire.KEEPER], [link_pidfd])
    os.close(link_pidfd)
    serve(lambda: isolation.Descendants(
        options['workspace'], options['isolation'] == 'landlock'
    ))
  try:
    pid = isolation.fork_namespaced(serve)
    pidfd = os.pidfd_open(pid)
    socket.send_fds(link, [wire.KEEPER], [pidfd])
  except OSError as e:
    link.send(wire.FAILED + _describe(e).encode())
    os._exit(1)
  os.close(pidfd)
  link.close()
  for fd in fds[1:]:
    os.close(fd)
  os.waitpid(pid, 0)
