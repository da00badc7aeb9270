"""Plain programs: what they print, what they are worth, how they fail."""

import pytest

ZERO_DIVISION = '''Traceback (most recent call last):
  File "main.py", line 2, in <module>
    print(f(0))
          ^^^^
  File "main.py", line 1, in f
    def f(x): return 1 / x
                     ~~^~~
ZeroDivisionError: division by zero
'''


def test_print(healthy):
  result = healthy.run('print(1 + 1)')
  assert (result['status'], result['stdout'], result['stderr']) == (
      'success', '2\n', ''
  )
  assert result['exit_code'] == 0 and result['signal'] is None
  assert result['stdout_bytes'] == 2 and not result['stdout_truncated']
  assert result['isolation'] == 'namespaces' and result['tier'] == 'bare'


def test_error_has_true_lines_and_no_paths(server):
  for _ in range(3):
    result = server.run('def f(x): return 1 / x\nprint(f(0))\n')
    assert result['status'] == 'runtime_error' and result['exit_code'] == 1
    assert result['stderr'] == ZERO_DIVISION


def test_syntax_error(server):
  result = server.run('x = 1\nprint("a"\ny = (')
  assert result['status'] == 'syntax_error' and result['exit_code'] == 1
  assert result['stderr'].startswith('  File "main.py", line 2\n')
  assert 'SyntaxError: ' in result['stderr'] and result['stdout'] == ''


@pytest.mark.parametrize('code', [
    'a = "\x00"', 'return 1', '(' * 5000, 'x = ' + '-' * 100_000 + '1',
    '\u00b2', 'def f():\n\tif 1:\n        pass',
])
def test_what_does_not_compile_is_a_syntax_error(server, code):
  assert server.run(code)['status'] in ('syntax_error', 'killed')


def test_runtime_syntax_error_is_a_runtime_error(server):
  assert server.run('eval("1 +")')['status'] == 'runtime_error'


@pytest.mark.parametrize('code, status, exit_code, stderr', [
    ('import sys; sys.exit(0)', 'success', 0, ''),
    ('import sys; sys.exit()', 'success', 0, ''),
    ('import sys; sys.exit(3)', 'runtime_error', 3, ''),
    ('import sys; sys.exit("msg")', 'runtime_error', 1, 'msg\n'),
    ('exit(4)', 'runtime_error', 4, ''),
    ('import os; os._exit(5)', 'runtime_error', 5, ''),
    ('raise KeyboardInterrupt', 'runtime_error', 130, None),
])
def test_exit_codes(server, code, status, exit_code, stderr):
  result = server.run(code)
  assert (result['status'], result['exit_code']) == (status, exit_code)
  assert stderr is None or result['stderr'] == stderr


def test_stdin(server):
  result = server.run(
      'import sys\nprint(input())\nprint(sys.stdin.read())',
      stdin='first \u00e9\nrest',
  )
  assert result['stdout'] == 'first \u00e9\nrest\n'


def test_large_stdin_and_source(server):
  code = '# ' + 'x' * 300_000 + '\nimport sys\nprint(len(sys.stdin.read()))'
  result = server.run(code, stdin='y' * 500_000)
  assert result['stdout'] == '500000\n', result['stderr']


def test_missing_input_raises_eof(server):
  result = server.run('input()\ninput()', stdin='one\n')
  assert result['status'] == 'runtime_error'
  assert result['stderr'].endswith(
      'EOFError: EOF when reading a line\n'
  )


def test_future_import(server):
  code = ('from __future__ import annotations\ndef f(x: nowhere): pass\n'
          'f.__annotations__')
  result = server.run(code)
  assert result['status'] == 'success'
  assert result['value'] == "{'x': 'nowhere'}"


def test_unicode_and_bad_bytes(server):
  result = server.run(
      'import sys\nprint("\u00e9\u4e2d\U0001f600")\n'
      'n = sys.stdout.buffer.write(b"\\xff\\xfe\\x00!")'
  )
  assert result['status'] == 'success'
  assert result['stdout'] == '\u00e9\u4e2d\U0001f600\n\ufffd\ufffd\x00!'


@pytest.mark.parametrize('code', ['', '\n', '# nothing', 'pass'])
def test_empty_source(server, code):
  result = server.run(code)
  assert result['status'] == 'success' and result['value'] is None


@pytest.mark.parametrize('code, value', [
    ('1 + 1', '2'),
    ('x = 5\nx', '5'),
    ('None', None),
    ('print("a")', None),
    ('"a"', "'a'"),
    ('1 + 1;', None),
    ('1 + 1 ;  # muted', None),
    ('1 + 1  # not; muted', '2'),
    ('[i ** 2\n for i in range(3)]', '[0, 1, 4]'),
    ('x = 1', None),
    ('def f():\n  3\nf()', None),
])
def test_value_of_the_final_expression(server, code, value):
  result = server.run(code)
  assert result['status'] == 'success' and result['value'] == value


def test_final_expression_is_evaluated_once(server):
  result = server.run(
      'calls = []\ndef f():\n  print("called")\n  return 7\nf()')
  assert result['stdout'] == 'called\n' and result['value'] == '7'


def test_error_in_repr_is_the_programs(server):
  result = server.run(
      'class A:\n  def __repr__(self): raise ValueError("no")\nA()')
  assert result['status'] == 'runtime_error'
  assert 'ValueError: no' in result['stderr'] and result['value'] is None


def test_long_value_is_clipped(server):
  result = server.run('"x" * 1_000_000')
  assert result['status'] == 'success'
  assert len(result['value']) < 20_000


def test_exception_chain_and_notes(server):
  result = server.run(
      'try:\n  1/0\nexcept ZeroDivisionError as e:\n'
      '  e.add_note("a note")\n  raise ValueError("second") from e'
  )
  stderr = result['stderr']
  assert stderr.index('ZeroDivisionError') < stderr.index('a note')
  assert 'direct cause' in stderr and stderr.endswith('ValueError: second\n')
  assert 'harness' not in stderr


def test_threads_and_atexit_run_to_their_end(server):
  result = server.run(
      'import threading, atexit, time\n'
      'atexit.register(print, "at exit")\n'
      'def f():\n  time.sleep(0.05)\n  print("thread")\n'
      'threading.Thread(target=f).start()\nprint("main")'
  )
  assert result['stdout'] == 'main\nthread\nat exit\n'


def test_main_module(server):
  result = server.run(
      'import sys, __main__\nX = 3\n'
      'if __name__ == "__main__": print(__main__.X, sys.argv)'
  )
  assert result['stdout'] == "3 ['main.py']\n"


def test_libraries_and_tiers(server):
  for code, tier, out in (
      ('import numpy as np\nprint(np.arange(4).sum())', 'numpy', '6\n'),
      ('import sympy\nx = sympy.Symbol("x")\n'
       'print(sympy.solve(x**2 - 4, x))', 'full', '[-2, 2]\n'),
      ('from scipy.optimize import brentq\n'
       'print(round(brentq(lambda x: x - 1, 0, 3), 6))', 'full', '1.0\n'),
  ):
    result = server.run(code, timeout_s=60)
    assert (result['status'], result['stdout']) == ('success', out), result
    assert result['tier'] == tier
  # A wrong or an asked tier changes speed only.
  result = server.run(
      'm = __import__("num" + "py")\nprint(m.ones(2).sum())', timeout_s=60
  )
  assert (result['tier'], result['stdout']) == ('bare', '2.0\n')
  assert server.run('print(1)', tier='numpy')['tier'] == 'numpy'


def test_environment_is_fixed(server):
  code = (
      'import os, sys, time, socket, locale\n'
      'print(hash("a"), time.tzname, os.getcwd(), sys.argv,'
      ' socket.gethostname())\n'
      'print(os.environ["HOME"], os.environ["LANG"],'
      ' sys.getdefaultencoding())\n'
      'print(sorted(os.environ), os.getuid(), os.path.expanduser("~"))'
  )
  results = [server.run(code) for _ in range(4)]
  assert len({r['stdout'] for r in results}) == 1, results
  assert "('UTC', 'UTC') /tmp ['main.py'] sandbox" in results[0]['stdout']


def test_random_generators_differ_between_calls(server):
  code = ('import random, numpy as np\n'
          'print(random.random(), np.random.rand(), np.random.randint(10**9))')
  outputs = {server.run(code)['stdout'] for _ in range(6)}
  assert len(outputs) == 6


def test_random_generators_follow_the_seed(server):
  code = ('import random, numpy as np\n'
          'print(random.random(), np.random.rand(), np.random.randint(10**9))')
  assert len({server.run(code, seed=11)['stdout'] for _ in range(4)}) == 1
  assert server.run(code, seed=12)['stdout'] != server.run(code, seed=11)[
      'stdout'
  ]


def test_output_is_kept_when_time_is_up(server):
  result = server.run(
      'print("begin", end="")\nwhile True: pass', timeout_s=0.4
  )
  assert result['status'] == 'timeout' and result['stdout'] == 'begin'


def test_multiprocessing_pool(healthy):
  result = healthy.run(
      'import multiprocessing\ndef f(x): return x * x\n'
      'if __name__ == "__main__":\n'
      '  with multiprocessing.Pool(2) as pool: print(pool.map(f, range(4)))'
  )
  assert (result['status'], result['stdout']) == (
      'success', '[0, 1, 4, 9]\n'
  ), result['stderr']


def test_subprocess_and_shell(healthy):
  result = healthy.run(
      'import subprocess, sys\n'
      'print(subprocess.run("echo hi | tr a-z A-Z", shell=True,'
      ' capture_output=True, text=True).stdout)\n'
      'print(subprocess.run([sys.executable, "-c", "print(3)"],'
      ' capture_output=True, text=True).stdout)'
  )
  assert result['stdout'] == 'HI\n\n3\n\n', result
