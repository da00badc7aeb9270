"""Sessions keep their state from cell to cell, and say when they lose it."""

import concurrent.futures
import time
import urllib.error
import urllib.request

import pytest

from tests.sandbox_runner import servers


class Session:
  """A session of a server."""

  def __init__(self, server, **fields):
    code, answer = server.post('/v1/sessions', {'tier': 'bare', **fields})
    assert code == 200, answer
    self.server = server
    self.path = f'/v1/sessions/{answer["session_id"]}'

  def run(self, code: str, **fields) -> dict:
    return self.server.post(self.path + '/exec', {'code': code, **fields})[1]

  def delete(self) -> int:
    request = urllib.request.Request(
        self.server.url + self.path, method='DELETE'
    )
    try:
      return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as e:
      return e.code


@pytest.fixture
def session(server):
  made = Session(server)
  yield made
  made.delete()


def test_state_is_kept(session):
  assert session.run('x = 20\ndef f(): return x + 1')['status'] == 'success'
  assert session.run('x += 1\nf()')['value'] == '22'
  result = session.run('print(x)')
  assert (result['stdout'], result['value']) == ('21\n', None)


def test_errors_leave_the_session_alive(session):
  session.run('x = 1')
  result = session.run('x = 2\n1/0')
  assert result['status'] == 'runtime_error' and not result['session_lost']
  assert '  File "cell 2", line 2, in <module>\n    1/0\n' in result['stderr']
  result = session.run('x = = 2')
  assert result['status'] == 'syntax_error' and not result['session_lost']
  assert session.run('import sys; sys.exit(4)')['exit_code'] == 4
  assert session.run('x')['value'] == '2'


def test_functions_of_earlier_cells_show_their_lines(session):
  session.run('def f(x):\n  return 1 / x')
  result = session.run('f(0)')
  assert '  File "cell 1", line 2, in f\n    return 1 / x\n' in result['stderr']


def test_stdin_per_cell(session):
  assert session.run('input()', stdin='one')['value'] == "'one'"
  assert session.run('input()', stdin='two')['value'] == "'two'"
  assert 'EOFError' in session.run('input()')['stderr']


def test_files_and_large_cells(session):
  session.run('open("/tmp/a", "w").write("kept")')
  big = '# ' + 'x' * 200_000 + '\nopen("/tmp/a").read()'
  assert session.run(big)['value'] == "'kept'"


def test_timeout_loses_the_session(session):
  session.run('x = 1')
  result = session.run('print("a")\nwhile True: pass', timeout_s=0.3)
  assert (result['status'], result['timeout_kind']) == ('timeout', 'wall')
  assert result['session_lost'] and result['stdout'] == 'a\n'
  result = session.run('x')
  assert result['session_lost'] and result['status'] == 'sandbox_unavailable'


@pytest.mark.parametrize('code, status', [
    ('import os; os._exit(3)', 'runtime_error'),
    ('import os; os.kill(os.getpid(), 9)', 'killed'),
    ('print("x" * (5 << 20))', 'output_limit'),
])
def test_the_end_of_the_process_loses_the_session(session, code, status):
  result = session.run(code, timeout_s=20)
  assert result['status'] == status and result['session_lost'], result


def test_memory_limit_of_a_session(server):
  session = Session(server, memory_mb=200)
  result = session.run(
      'import os, time\nfor _ in range(3): os.fork()\n'
      'x = bytearray(b"x") * (80 << 20)\ntime.sleep(10)', timeout_s=15,
  )
  assert result['status'] == 'memory_limit' and result['session_lost'], result


def test_a_fork_does_not_answer_for_the_session(session):
  result = session.run('import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)')
  assert result['status'] == 'success'
  assert session.run('1 + 1')['value'] == '2'


def test_idle_sessions_end(server):
  session = Session(server, idle_ttl_s=0.3)
  assert session.run('1')['value'] == '1'
  held = server.num_processes()
  servers.wait_until(lambda: server.num_processes() < held, 10)
  assert session.run('1')['session_lost']


def test_delete_ends_processes(server):
  session = Session(server)
  session.run('import os\nfor _ in range(3):\n  if os.fork() == 0:\n'
              '    import time; time.sleep(100)')
  held = server.num_processes()
  assert session.delete() == 200
  servers.wait_until(lambda: server.num_processes() < held, 5)
  assert session.delete() == 404


def test_sessions_are_apart(server):
  first, second = Session(server), Session(server)
  first.run('x = 1')
  assert 'NameError' in second.run('x')['stderr']
  assert first.run('x')['value'] == '1'
  for session in (first, second):
    session.delete()


def test_libraries_in_a_session(server):
  session = Session(server, tier='full', seed=3)
  session.run('import sympy as sp\nx = sp.symbols("x")', timeout_s=60)
  result = session.run('sp.solve(x**2 - 9, x)', timeout_s=60)
  assert result['value'] == '[-3, 3]'
  session.delete()


def test_cells_of_one_session_run_in_order(session):
  session.run('seen = []')
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    futures = []
    for i in range(8):
      futures.append(pool.submit(session.run, f'seen.append({i})'))
      time.sleep(0.01)
    assert all(f.result()['status'] == 'success' for f in futures)
  assert session.run('len(seen)')['value'] == '8'


def test_bad_session_requests(server):
  code, answer = server.post('/v1/sessions', {'tier': 'huge'})
  assert code == 422 and answer['message'].startswith('tier: ')
  code, answer = server.post('/v1/sessions/none/exec', {'code': '1'})
  assert code == 404 and answer['session_lost']
