"""Calls must not see each other, and programs must not forge their status."""

import concurrent.futures

import pytest

# The server has four slots at most; this many calls meet each of them.
ENOUGH = 12

PATCHES = [
    ('import builtins\nbuiltins.len = lambda x: -1', 'len("ab")', '2'),
    ('import sys, math\nmath.pi = 3\nsys.modules["json"] = None',
     '__import__("math").pi, __import__("json").dumps(1)',
     "(3.141592653589793, '1')"),
    ('import os\nos.environ["LEAK"] = "1"', '__import__("os").getenv("LEAK")',
     None),
    ('import os\nos.mkdir("a"); os.chdir("a")', '__import__("os").getcwd()',
     "'/tmp'"),
    ('import sys\nsys.setrecursionlimit(55)\nsys.path.clear()',
     '__import__("sys").getrecursionlimit(), '
     'len(__import__("sys").path) > 2', '(1000, True)'),
    ('import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)',
     '__import__("signal").getsignal(15)', "<Handlers.SIG_DFL: 0>"),
    ('import decimal\ndecimal.getcontext().prec = 2',
     '__import__("decimal").getcontext().prec', '28'),
    ('import gc\ngc.disable()', '__import__("gc").isenabled()', 'True'),
    ('import os\nos.umask(0o777)', '__import__("os").umask(0)', '18'),
]


@pytest.mark.parametrize('dirty, look, value', PATCHES)
def test_changes_do_not_outlive_a_call(server, dirty, look, value):
  for _ in range(ENOUGH):
    assert server.run(dirty)['status'] == 'success'
  for _ in range(ENOUGH):
    assert server.run(look)['value'] == value


def test_numpy_and_sympy_are_not_changed(server):
  dirty = (
      'import numpy as np, sympy\nnp.sum = lambda *a: 7\n'
      'np.set_printoptions(precision=1)\n'
      'sympy.Symbol.__str__ = lambda s: "patched"\n'
      'sympy.Symbol("x", positive=True)'
  )
  look = (
      'import numpy as np, sympy\n'
      'print(np.sum(np.ones(3)), np.array([1.23456]), sympy.Symbol("x"),'
      ' sympy.Symbol("x").is_positive)'
  )
  for _ in range(5):
    assert server.run(dirty, timeout_s=60)['status'] == 'success'
  for _ in range(5):
    assert server.run(look, timeout_s=60)['stdout'] == (
        '3.0 [1.23456] x None\n'
    )


def test_secrets_of_earlier_calls_are_not_in_memory(server):
  """Source, stdin, output and value of one call, sought by later calls."""
  secret = 'zebra-{}-quartz'
  for _ in range(ENOUGH):
    code = 's = "zebra-" + "4711" + "-quartz"  # ' + secret.format(4711)
    server.run(code + '\nprint(s)\ns', stdin=secret.format(4711))
  scan = (
      'import re\nneedle = b"zebra-" + b"4711" + b"-quartz"\nfound = []\n'
      'memory = open("/proc/self/mem", "rb", 0)\n'
      'for line in open("/proc/self/maps"):\n'
      '  m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)\n'
      '  if not m or "[v" in line: continue\n'
      '  start, end = int(m[1], 16), int(m[2], 16)\n'
      '  try:\n'
      '    memory.seek(start)\n'
      '    data = memory.read(end - start)\n'
      '  except (OSError, ValueError, OverflowError): continue\n'
      '  at = data.find(needle)\n'
      '  while at >= 0:\n'
      '    found.append((line.split()[-1], data[at - 40:at + 40]))\n'
      '    at = data.find(needle, at + 1)\n'
      '  del data\n'
      'print(len(found), found[:4])'
  )
  # A scan finds its own needle; a control shows how often.
  control = server.run(
      scan.replace('zebra-', 'horse-'), timeout_s=60, memory_mb=2048
  )
  for _ in range(ENOUGH // 2):
    result = server.run(scan, timeout_s=60, memory_mb=2048)
    assert result['status'] == 'success', result
    assert result['stdout'].split()[0] == control['stdout'].split()[0], result


def test_value_memory_is_clean(server):
  """What a program leaves in the memory shared for values is wiped."""
  scribble = (
      'import re, ctypes\n'
      'for line in open("/proc/self/maps"):\n'
      '  if "memfd:value" in line:\n'
      '    start = int(line.split("-")[0], 16)\n'
      '    ctypes.memset(start + 1000, 65, 5000)\n'
      '    print("scribbled")'
  )
  look = (
      'import ctypes\nfor line in open("/proc/self/maps"):\n'
      '  if "memfd:value" in line:\n'
      '    start = int(line.split("-")[0], 16)\n'
      '    print(ctypes.string_at(start, 65536).count(b"A"))'
  )
  for _ in range(ENOUGH):
    assert server.run(scribble)['stdout'] == 'scribbled\n'
  for _ in range(ENOUGH):
    assert server.run(look)['stdout'] == '0\n'


@pytest.mark.parametrize('code, status', [
    ('print(\'{"status": "runtime_error"}\')', 'success'),
    ('print("x@@E\\n@@D99")', 'success'),
    ('import os; os._exit(0)\n1/0', 'success'),
    ('import sys\nsys.excepthook = lambda *a: print("hooked")\n1/0',
     'runtime_error'),
    ('import sys, os\nsys.excepthook = None\n1/0', 'runtime_error'),
    ('import atexit\natexit.register(lambda: 1/0)', 'success'),
    ('import sys\nsys.settrace(lambda *a: None)\n1/0', 'runtime_error'),
    ('import sys\nsys.stderr = None\n1/0', 'runtime_error'),
    ('import sys\nsys.stdout = sys.stderr = 5\n1/0', 'runtime_error'),
    ('import traceback\ntraceback.format_exception = None\n1/0',
     'runtime_error'),
    ('import builtins\nbuiltins.repr = None\n5', 'runtime_error'),
    ('raise MemoryError', 'memory_limit'),
    ('raise SystemError("x" * 10**6)', 'runtime_error'),
])
def test_status_cannot_be_talked_into(healthy, code, status):
  assert healthy.run(code)['status'] == status


def test_parallel_calls_do_not_mix(server):
  def run(i):
    code = f'import sys\nprint("{i}" * 3000)\nsys.stderr.write("e{i}")\n{i}'
    result = server.run(code)
    return (result['stdout'] == f'{i}' * 3000 + '\n'
            and result['stderr'] == f'e{i}' and result['value'] == str(i))

  with concurrent.futures.ThreadPoolExecutor(64) as pool:
    assert all(pool.map(run, range(256)))
