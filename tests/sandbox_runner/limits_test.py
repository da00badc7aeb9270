"""Time, memory, output and disk: every limit ends a call, and only the call."""

import concurrent.futures
import os

import pytest

STUBBORN = {
    'busy loop': 'while True: pass',
    'sleep': 'import time; time.sleep(60)',
    'ignores signals': (
        'import signal, time\n'
        'for s in set(signal.Signals) - {9, 19}:\n'
        '  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n'
        'time.sleep(60)'
    ),
    'clears alarms': 'import signal, time; signal.alarm(0); time.sleep(60)',
    'holds the GIL in C': '9 ** 9 ** 9',
    'catastrophic regex': 'import re; re.match("(a+)+$", "a" * 40 + "b")',
    'stops itself': 'import os, signal; os.kill(os.getpid(), signal.SIGSTOP)',
    'stops its group': 'import os; os.system("kill -STOP 0")',
    'catches everything': (
        'while True:\n  try:\n    while True: pass\n'
        '  except BaseException: pass'
    ),
    'waits for stdin of a pipe': 'import os; r, w = os.pipe(); os.read(r, 1)',
}


@pytest.mark.parametrize('name', STUBBORN)
def test_wall_limit(healthy, name):
  result = healthy.run(STUBBORN[name], timeout_s=0.5, cpu_timeout_s=5)
  assert (result['status'], result['timeout_kind']) == ('timeout', 'wall')
  assert 500 <= result['wall_ms'] <= 1500
  assert 'time limit of 0.5 s' in result['message']


def test_wall_limits_hold_under_load(healthy):
  """Sixty-four at once: each is stopped at its limit, none is lost."""
  with concurrent.futures.ThreadPoolExecutor(64) as pool:
    codes = list(STUBBORN.values()) * 7
    results = list(pool.map(
        lambda code: healthy.run(code, timeout_s=0.1), codes[:64]
    ))
  assert {r['status'] for r in results} == {'timeout'}


def test_cpu_limit(healthy):
  result = healthy.run('while True: pass', timeout_s=10, cpu_timeout_s=0.3)
  assert (result['status'], result['timeout_kind']) == ('timeout', 'cpu')
  assert 250 <= result['cpu_ms'] <= 1500


def test_cpu_limit_counts_all_processes(healthy):
  result = healthy.run(
      'import os\nfor _ in range(2): os.fork()\nwhile True: pass',
      timeout_s=20, cpu_timeout_s=0.6,
  )
  assert (result['status'], result['timeout_kind']) == ('timeout', 'cpu')
  assert result['wall_ms'] < 6000


def test_sleep_uses_no_cpu(server):
  result = server.run(
      'import time; time.sleep(0.6)', timeout_s=5, cpu_timeout_s=0.3
  )
  assert result['status'] == 'success' and result['wall_ms'] >= 600


MEMORY_HOGS = {
    'one allocation': 'x = bytearray(10 * 2**30)',
    'growing list': 'x = []\nwhile True: x.append([0] * 100_000)',
    'growing str': 's = "x" * 2**20\nwhile True: s += s',
    'anonymous map': (
        'import mmap\nx = []\nwhile True:\n'
        '  m = mmap.mmap(-1, 32 << 20)\n'
        '  for i in range(0, 32 << 20, 4096): m[i] = 1\n  x.append(m)'
    ),
}


@pytest.mark.parametrize('name', MEMORY_HOGS)
def test_memory_limit(healthy, name):
  result = healthy.run(MEMORY_HOGS[name], memory_mb=128, timeout_s=20)
  assert result['status'] in ('memory_limit', 'runtime_error'), result
  if name != 'anonymous map':  # mmap fails with OSError, not MemoryError
    assert result['status'] == 'memory_limit'


def test_memory_limit_numpy(healthy):
  result = healthy.run(
      'import numpy as np\nx = []\nwhile True: x.append(np.ones(10**6))',
      memory_mb=128, timeout_s=20,
  )
  assert result['status'] == 'memory_limit'


def test_memory_limit_counts_all_processes(healthy):
  """Eight times 100 MB is too much for 300 MB; no process alone is."""
  result = healthy.run(
      'import os, time\nfor _ in range(3): os.fork()\n'
      'x = bytearray(b"x") * (100 << 20)\ntime.sleep(20)',
      memory_mb=300, timeout_s=15,
  )
  assert result['status'] == 'memory_limit', result
  assert 'limit of 300 MB' in result['message']


def test_memory_shared_by_fork_counts_once(server):
  result = server.run(
      'import os, time\nx = bytearray(b"x") * (100 << 20)\n'
      'for _ in range(3):\n  if os.fork() == 0:\n    time.sleep(0.5)\n'
      '    os._exit(0)\ntime.sleep(0.5)\nprint("ok")',
      memory_mb=250, timeout_s=15,
  )
  assert (result['status'], result['stdout']) == ('success', 'ok\n'), result


def test_memory_of_exec_counts(healthy):
  """What other programs hold counts as well as what forks hold."""
  result = healthy.run(
      'import subprocess, sys\n'
      'code = "import time; x = bytearray(b\'x\') * (90 << 20);'
      ' time.sleep(20)"\n'
      'ps = [subprocess.Popen([sys.executable, "-c", code])'
      ' for _ in range(4)]\nps[0].wait()',
      memory_mb=250, timeout_s=15,
  )
  assert result['status'] == 'memory_limit', result


def test_swallowed_memory_error_ends(healthy):
  result = healthy.run(
      'x = []\nwhile True:\n  try: x.append(bytearray(2**24))\n'
      '  except MemoryError: pass',
      memory_mb=128, timeout_s=1,
  )
  assert result['status'] in ('timeout', 'memory_limit')


def test_deep_recursion(healthy):
  result = healthy.run('def f(): f()\nf()')
  assert result['status'] == 'runtime_error'
  assert 'RecursionError' in result['stderr']


def test_unlimited_recursion_in_c(healthy):
  result = healthy.run(
      'import sys\nsys.setrecursionlimit(10**9)\n'
      'class A:\n  def __getattr__(self, n): return getattr(self, n)\nA().x',
      memory_mb=256, timeout_s=10,
  )
  assert result['status'] in ('killed', 'memory_limit'), result
  if result['status'] == 'killed':
    assert result['signal'] == 11 and 'SIGSEGV' in result['message']


def server_rss_kb(server) -> int:
  with open(f'/proc/{server.process.pid}/status') as file:
    return next(
        int(line.split()[1]) for line in file if line.startswith('VmRSS')
    )


FLOODS = {
    'one write': 'import os; os.write(1, b"x" * (100 << 20))',
    'prints': 'while True: print("x" * 1000)',
    'stderr': 'import sys\nwhile True: sys.stderr.write("x" * 1000)',
    'bytes': 'import os\nwhile True: os.write(1, b"y")',
}


@pytest.mark.parametrize('name', FLOODS)
def test_output_limit(healthy, name):
  before = server_rss_kb(healthy)
  result = healthy.run(FLOODS[name], timeout_s=60)
  assert result['status'] == 'output_limit', result['status']
  assert result['wall_ms'] < 55_000
  total = result['stdout_bytes'] + result['stderr_bytes']
  assert total > 4 << 20
  assert len(result['stdout']) + len(result['stderr']) < 70_000
  assert server_rss_kb(healthy) - before < 32 << 10


def test_both_streams_beyond_a_pipe(server):
  result = server.run(
      'import os\nfor _ in range(200):\n'
      '  os.write(1, b"o" * 1000)\n  os.write(2, b"e" * 1000)'
  )
  assert result['status'] == 'success'
  assert result['stdout_bytes'] == result['stderr_bytes'] == 200_000
  assert result['stdout_truncated'] and result['stderr_truncated']
  assert result['stdout'].startswith('o' * 49152 + '\n... 134464 bytes omitted')
  assert result['stdout'].endswith('o' * 16384)


@pytest.mark.parametrize('extra', [-1, 0, 1])
def test_output_about_what_is_kept(server, extra):
  size = (64 << 10) + extra
  result = server.run(f'import os; os.write(1, b"x" * {size})\npass')
  assert result['stdout_bytes'] == size
  assert result['stdout_truncated'] == (extra > 0)
  if extra <= 0:
    assert result['stdout'] == 'x' * size


def test_output_is_cut_between_characters(server):
  result = server.run('print("a" + "\U0001f600" * 40_000)')
  assert result['stdout_truncated'] and '\ufffd' not in result['stdout']


def test_closed_streams(healthy):
  result = healthy.run('import os\nos.close(1)\nos.close(2)')
  assert (result['status'], result['stdout']) == ('success', '')
  healthy.check_healthy()


def test_non_blocking_stdout_does_not_outlive_the_call(server):
  for _ in range(8):
    server.run('import os; os.set_blocking(1, False)')
  for _ in range(8):
    result = server.run('import os\nprint(os.get_blocking(1))')
    assert result['stdout'] == 'True\n'


@pytest.mark.parametrize('code, error', [
    ('f = open("/tmp/a", "wb", 0)\nfor _ in range(80): f.write(bytes(2**20))',
     ('File too large', 'No space left')),
    ('for i in range(3):\n  with open(f"/tmp/{i}", "wb", 0) as f:\n'
     '    for _ in range(40): f.write(bytes(2**20))', ('No space left',)),
    ('for i in range(10_000): open(f"/tmp/{i}", "w").close()',
     ('No space left',)),
    ('import os\nfor i in range(10_000): os.mkdir(f"/tmp/{i}")',
     ('No space left',)),
    ('f = open("/dev/shm/a", "wb", 0)\nfor _ in range(80): '
     'assert f.write(bytes(2**20)) == 2**20', ('No space left', 'Assertion')),
])
def test_disk_limits(healthy, code, error):
  result = healthy.run(code, timeout_s=20)
  assert result['status'] == 'runtime_error', result
  assert any(text in result['stderr'] for text in error)


def test_files_do_not_stay(healthy):
  for _ in range(8):
    healthy.run(
        'import os\nos.makedirs("/tmp/d/e")\nopen("/tmp/d/f", "w").write("x")\n'
        'os.chmod("/tmp/d", 0)\nopen("/dev/shm/g", "w").write("x")\n'
        'os.chmod("/tmp", 0o700)'
    )
  for _ in range(8):
    result = healthy.run(
        'import os\nprint(os.listdir("/tmp"), os.listdir("/dev/shm"), '
        'oct(os.stat("/tmp").st_mode))'
    )
    assert result['stdout'] == '[] [] 0o41777\n'


def test_nothing_is_left_in_the_machines_tmp(server):
  before = set(os.listdir('/tmp'))
  server.run('open("/tmp/left_behind", "w").write("x")')
  assert 'left_behind' not in set(os.listdir('/tmp')) - before
