"""Measures sandbox_runner: `python -m experiments.benchmarks.sandbox`.

CPU times are of the server with everything below it, by control group or, where
none can be made, from /proc. Floors are measured in the same run and in turn:
a cold `python -c`, and the server with --isolation=none. Prints a table and,
as its last line, a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from experiments.benchmarks import sandbox_load as load

_PROGRAMS = {
    'print': 'print(1+1)',
    'error': 'def f(x):\n  return 1 / x\nf(0)',
    'numpy': 'import numpy as np\nprint(np.arange(10).sum())',
    'sympy': (
        'import sympy as sp\nx = sp.symbols("x")\n'
        'print(sp.solve(x**2 - 5*x + 6, x))'
    ),
}
_CALLS = {'print': 400, 'error': 400, 'numpy': 300, 'sympy': 100}
_COLD_CALLS = {'print': 20, 'error': 20, 'numpy': 8, 'sympy': 4}
_ROUNDS = 4
_MAX_CPU_MS = {'print': 2.0, 'numpy': 3.0, 'sympy': 20.0, 'error': 3.0}
_SPIN = 'while True: pass'
# Eight in a hundred: fork bombs, daemons, files, deaths.
_HOSTILE = (
    'import os\nfor _ in range(30):\n  try:\n    if os.fork() == 0: os.setsid()'
    '\n  except OSError: pass\nwhile True: pass',
    'import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(99)',
    'for i in range(300): open(f"/tmp/{i}", "w").write("x" * 999)',
    'import os\nos.kill(os.getpid(), 9)',
)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--in_flight', type=int, default=5000,
                      help='calls of the burst; 0 leaves it out')
  parser.add_argument('--held', type=int, default=0,
                      help='calls held at a time, e.g. 45000')
  parser.add_argument('--soak', type=int, default=0,
                      help='calls of the soak, e.g. 100000')
  parser.add_argument('--processes', type=int, default=4,
                      help='front-ends while calls are held')
  parser.add_argument('--skip_cost', action='store_true',
                      help='leave out CPU time, throughput and latency')
  return parser.parse_args(argv)


def measure_cost() -> dict[str, Any]:
  """CPU per call by program: isolated, not isolated, cold; in turns."""
  sums = {name: {'namespaces': 0.0, 'none': 0.0, 'cold': 0.0}
          for name in _PROGRAMS}
  servers = {level: load.Server(f'--isolation={level}')
             for level in ('namespaces', 'none')}
  try:
    for code in _PROGRAMS.values():  # start zygotes and slots
      for server in servers.values():
        asyncio.run(load.run_calls(server.url, [{'code': code}] * 16, 4))
    for _ in range(_ROUNDS):
      for name, code in _PROGRAMS.items():
        num_calls = _CALLS[name] // _ROUNDS
        for level, server in servers.items():
          before = server.cpu_s()
          answers = asyncio.run(load.run_calls(
              server.url, [{'code': code}] * num_calls, 4
          ))
          wanted = 'runtime_error' if name == 'error' else 'success'
          assert all(a[0] == wanted for a in answers), answers[:2]
          sums[name][level] += 1e3 * (server.cpu_s() - before) / num_calls
        sums[name]['cold'] += load.cold_cpu_ms(
            code, _COLD_CALLS[name] // _ROUNDS
        )
    meter = servers['namespaces'].meter
  finally:
    for server in servers.values():
      server.__exit__()
  cost = {
      name: {level: round(total / _ROUNDS, 3) for level, total in row.items()}
      for name, row in sums.items()
  }
  return {'cpu_ms_per_call': cost, 'meter': meter}


def measure_speed() -> dict[str, Any]:
  """Throughput at 64 in flight, and latency of one call at a time."""
  bodies = [{'code': _PROGRAMS['print']}] * 2000
  with load.Server() as server:
    asyncio.run(load.run_calls(server.url, bodies[:200], 64))
    rates = []
    for _ in range(3):
      start = time.monotonic()
      answers = asyncio.run(load.run_calls(server.url, bodies, 64))
      rates.append(len(bodies) / (time.monotonic() - start))
      assert all(a[0] == 'success' for a in answers)
    single = []
    for _ in range(4):
      answers = asyncio.run(load.run_calls(server.url, bodies[:100], 1))
      single += sorted(a[2] for a in answers)
  single.sort()
  return {
      'calls_per_s_at_64': round(max(rates), 1),
      'calls_per_s_at_64_all': [round(r, 1) for r in rates],
      'idle_p50_ms': round(1e3 * single[len(single) // 2], 3),
      'idle_p99_ms': round(1e3 * single[int(0.99 * len(single))], 3),
  }


def measure_timeouts() -> dict[str, Any]:
  """Share of CPU in timeouts when 1 call in 100 spins to a limit of 1 s."""
  bodies = [
      {'code': _SPIN if i % 100 == 50 else _PROGRAMS['print'],
       'timeout_s': 1.0}
      for i in range(600)
  ]

  async def read(url: str) -> dict[str, float]:
    async with load.new_http() as http:
      return await load.metrics(http, url)

  with load.Server() as server:
    before = server.cpu_s()
    answers = asyncio.run(load.run_calls(server.url, bodies, 16))
    cpu_ms = 1e3 * (server.cpu_s() - before) / len(bodies)
    samples = asyncio.run(read(server.url))
  return {
      'timeout_cpu_fraction': round(
          samples['sandbox_timeout_cpu_fraction'], 4
      ),
      'cpu_ms_per_call_with_1_percent_timeouts': round(cpu_ms, 3),
      'timeouts': sum(a[0] == 'timeout' for a in answers),
  }


def measure_burst(num_calls: int) -> dict[str, Any]:
  """So many calls at once; how many are answered, and rightly."""
  bodies = [{'code': f'print({i})', 'timeout_s': 60} for i in range(num_calls)]
  with load.Server() as server:
    start = time.monotonic()
    answers = asyncio.run(load.run_calls(server.url, bodies, num_calls))
    seconds = time.monotonic() - start
  good = sum(
      status == 'success' and stdout == f'{i}\n'
      for i, (status, stdout, _) in enumerate(answers)
  )
  return {
      'in_flight': num_calls, 'lost': num_calls - good,
      'seconds': round(seconds, 1),
      'p50_s': round(sorted(a[2] for a in answers)[num_calls // 2], 2),
  }


def measure_held(
    num_calls: int, processes: int, per_request: int
) -> dict[str, Any]:
  """Holds all calls in the queue at a time, then lets them run."""
  flags = (f'--processes={processes}', f'--max_queued={4 * num_calls}',
           '--deadline_s=7200')
  max_running = 2 * (os.cpu_count() or 1)
  with load.Server(*flags) as server:
    return asyncio.run(
        _hold(server, num_calls, max(max_running, processes), per_request)
    )


async def _hold(
    server: load.Server, num_calls: int, max_running: int, per_request: int
) -> dict[str, Any]:
  per_client = 14_000
  async with load.new_http() as http:
    # Sleepers fill every slot of every front-end, so that calls wait.
    sleeper = {'code': 'import time; time.sleep(3000)', 'timeout_s': 3600}
    sleepers = []
    while True:
      samples = await load.metrics(http, server.url)
      if samples['sandbox_running'] >= max_running and (
          samples['sandbox_queued'] >= 4 * max_running
      ):
        break
      sleepers.append(asyncio.ensure_future(
          load.call(http, server.url, sleeper)
      ))
      await asyncio.sleep(0.1)
    before = samples['sandbox_queued']
    rss = server.rss_bytes()
    start = time.monotonic()
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, '-m', 'experiments.benchmarks.sandbox_load',
            server.url, str(first), str(min(per_client, num_calls - first)),
            f'127.0.0.{2 + i}', str(per_request), stdout=subprocess.PIPE,
        )
        for i, first in enumerate(range(0, num_calls, per_client))
    ]
    held = 0
    while held < num_calls:
      await asyncio.sleep(1)
      samples = await load.metrics(http, server.url)
      held = int(samples['sandbox_queued'] - before)
      if any(client.returncode is not None for client in clients):
        break
    all_held_s = time.monotonic() - start
    grown = server.rss_bytes() - rss
    for task in sleepers:
      task.cancel()
    counts: dict[str, int] = {}
    for client in clients:
      output, _ = await client.communicate()
      for status, count in json.loads(output).items():
        counts[status] = counts.get(status, 0) + count
  return {
      'held': held, 'lost': num_calls - counts.get('success', 0),
      'answers': counts, 'bytes_each': round(grown / max(held, 1)),
      'seconds_until_all_held': round(all_held_s, 1),
      'seconds_in_all': round(time.monotonic() - start, 1),
  }


def measure_soak(num_calls: int) -> dict[str, Any]:
  """A long mixture, 8 % hostile; what could grow, at its tenths."""
  def body(i: int) -> dict[str, Any]:
    if i % 100 < 8:
      return {'code': _HOSTILE[i % len(_HOSTILE)], 'timeout_s': 0.3}
    name = ('print', 'print', 'error', 'print', 'numpy')[i % 5]
    return {'code': _PROGRAMS[name]}

  looks: list[dict[str, Any]] = []
  statuses: dict[str, int] = {}
  with load.Server() as server:
    asyncio.run(load.run_calls(server.url, list(map(body, range(500))), 16))
    for tenth in range(10):
      first = tenth * num_calls // 10
      last = (tenth + 1) * num_calls // 10
      for status, _, _ in asyncio.run(load.run_calls(
          server.url, list(map(body, range(first, last))), 16
      )):
        statuses[status] = statuses.get(status, 0) + 1
      time.sleep(1)
      looks.append(_look(server))
      print(f'soak {last} calls: {looks[-1]}', file=sys.stderr, flush=True)
  return {'calls': num_calls, 'statuses': statuses, 'looks': looks}


def _look(server: load.Server) -> dict[str, int]:
  below = [server.pid, *load.descendants(server.pid)]
  zombies = 0
  for pid in below:
    try:
      with open(f'/proc/{pid}/stat') as file:
        zombies += file.read().rpartition(')')[2].split()[0] == 'Z'
    except OSError:
      pass
  with open('/proc/self/mounts') as file:
    mounts = len(file.readlines())
  return {
      'fds': len(os.listdir(f'/proc/{server.pid}/fd')),
      'rss_mb': server.rss_bytes() >> 20, 'zombies': zombies,
      'mounts': mounts, 'processes': len(below),
      'tmp': sum('sandbox_runner' in n for n in os.listdir('/tmp')),
  }


def _goals(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
  goals: dict[str, dict[str, Any]] = {}

  def at_most(name: str, value: float, goal: float) -> None:
    goals[name] = {'value': round(value, 3), 'goal': f'<= {goal:g}',
                   'met': value <= goal}

  def at_least(name: str, value: float, goal: float) -> None:
    goals[name] = {'value': round(value, 3), 'goal': f'>= {goal:g}',
                   'met': value >= goal}

  if 'cpu_ms_per_call' in results:
    cost = results['cpu_ms_per_call']
    for name, goal in _MAX_CPU_MS.items():
      at_most(f'{name}_cpu_ms', cost[name]['namespaces'], goal)
    added = cost['print']['namespaces'] - cost['print']['none']
    at_most('isolation_adds_cpu_ms', added, 0.6)
    for name, goal in (('print', 5), ('sympy', 15)):
      ratio = cost[name]['cold'] / cost[name]['namespaces']
      at_least(f'{name}_times_cheaper_than_cold', ratio, goal)
    at_least('calls_per_s_at_64', results['calls_per_s_at_64'], 400)
    at_most('idle_p50_ms', results['idle_p50_ms'], 5)
  if 'burst' in results:
    at_most('burst_lost', results['burst']['lost'], 0)
  for name in ('held', 'held_in_batches'):
    if name in results:
      at_most(f'{name}_lost', results[name]['lost'], 0)
      at_most(f'{name}_bytes_each', results[name]['bytes_each'], 4096)
  if 'soak' in results:
    first, last = (results['soak']['looks'][i] for i in (0, -1))
    for name, slack in (('fds', 8), ('rss_mb', 8), ('zombies', 0),
                        ('mounts', 0), ('tmp', 0)):
      at_most(f'soak_{name}_grown', last[name] - first[name], slack)
  return goals


def _show(results: dict[str, Any], goals: dict[str, Any]) -> None:
  if 'cpu_ms_per_call' in results:
    print(f'{"CPU ms per call":16}{"namespaces":>12}{"none":>10}{"cold":>10}')
    for name, row in results['cpu_ms_per_call'].items():
      print(f'{name:16}{row["namespaces"]:12.2f}{row["none"]:10.2f}'
            f'{row["cold"]:10.1f}')
  for name, value in results.items():
    if name not in ('cpu_ms_per_call', 'soak'):
      print(f'{name}: {value}')
  print(f'{"goal":36}{"measured":>12}  {"wanted":10} met')
  for name, goal in goals.items():
    print(f'{name:36}{goal["value"]:12g}  {goal["goal"]:10} '
          f'{"yes" if goal["met"] else "NO"}')


def _machine() -> dict[str, Any]:
  return {
      'cpus': os.cpu_count(), 'arch': platform.machine(),
      'kernel': platform.release(), 'python': platform.python_version(),
      'load_average_at_start': os.getloadavg()[0],
      'interpreter': load.interpreter()[0], 'nice': os.nice(0),
      'root': os.geteuid() == 0,
  }


def main(argv: list[str]) -> None:
  """Measures and prints."""
  options = _parse(argv)
  machine = _machine()
  results: dict[str, Any] = {}
  if not options.skip_cost:
    results |= measure_cost() | measure_speed() | measure_timeouts()
  if options.in_flight:
    results['burst'] = measure_burst(options.in_flight)
  if options.held:
    for name, per_request in (('held', 1), ('held_in_batches', 100)):
      results[name] = measure_held(
          options.held, options.processes, per_request
      )
  if options.soak:
    results['soak'] = measure_soak(options.soak)
  goals = _goals(results)
  _show(results, goals)
  print(json.dumps({
      'benchmark': 'sandbox', 'machine': machine, 'results': results,
      'goals': goals,
  }))


if __name__ == '__main__':
  main(sys.argv[1:])
