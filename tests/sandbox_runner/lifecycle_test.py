"""How a server starts, stops, refuses, and leaves nothing behind."""

import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from tests.sandbox_runner import servers

_LOOP = 'import time\nwhile True: time.sleep(0.1)'


def start_briefly(*flags: str, prefix=(), command=None, environment=None):
  """A server that is expected to refuse; its exit code and stderr lines."""
  command = command or [sys.executable]
  done = subprocess.run(
      [*prefix, *command, '-m', 'sandbox_runner', '--port=0', *flags],
      cwd=servers.ROOT, capture_output=True, text=True, timeout=60,
      env=environment,
  )
  return done.returncode, done.stderr.strip().splitlines()


def workspaces() -> list[str]:
  return glob.glob('/tmp/sandbox_runner-*')


def hang(server, num_calls: int = 3) -> list[threading.Thread]:
  """Calls that run until somebody ends them."""
  threads = []
  for _ in range(num_calls):
    def call():
      try:
        server.post('/v1/execute', {'code': _LOOP, 'timeout_s': 60})
      except OSError:  # the server went away
        pass
    threads.append(threading.Thread(target=call, daemon=True))
    threads[-1].start()
  servers.wait_until(lambda: count_held(server) >= num_calls, 20)
  return threads


def count_held(server) -> int:
  """Calls that run, or wait because one front-end got more than its share."""
  return sum(
      int(line.rsplit(' ', 1)[1])
      for line in server.get('/metrics')[1].splitlines()
      if re.match(r'sandbox_(running|queued)\b', line)
  )


@pytest.mark.parametrize('flags', [
    (), ('--isolation=namespaces', '--exit_with_parent'), ('--processes=2',),
    ('--isolation=landlock',), ('--isolation=none',),
])
def test_ready_line(start, flags):
  weak = any('landlock' in f or 'none' in f for f in flags)
  server = start(*flags, plain_user=weak and os.geteuid() == 0)
  level = next(
      (f.split('=')[1] for f in flags if 'isolation' in f), 'namespaces'
  )
  assert re.fullmatch(
      r'sandbox_runner ready at http://127\.0\.0\.1:\d+ isolation=' + level
      + '\n', server.ready_line,
  )
  result = server.run('print(1)')
  assert (result['stdout'], result['isolation']) == ('1\n', level)
  server.stop()
  assert server.process.returncode == 0
  assert not [w for w in workspaces() if not os.listdir(w)]


@pytest.mark.parametrize('first', ['--processes=1', '--processes=2'])
@pytest.mark.parametrize('second', ['--processes=1', '--processes=2'])
def test_port_in_use(start, first, second):
  server = start(first)
  code, errors = start_briefly(f'--port={server.port}', second)
  assert code == 2
  assert errors == [
      f'error: 127.0.0.1:{server.port}: Address already in use'
  ]


@pytest.mark.parametrize('flags, text', [
    (['--port=70000'], '--port'), (['--max_running=0'], '--max_running'),
    (['--processes=0'], '--processes'), (['--isolation=vm'], '--isolation'),
    (['--unknown'], '--unknown'),
])
def test_bad_flags(flags, text):
  code, errors = start_briefly(*flags)
  assert code == 2 and text in errors[-1]


@pytest.mark.parametrize('processes', [1, 2])
def test_sigterm_ends_running_calls_and_everything(start, processes):
  server = start(f'--processes={processes}')
  threads = hang(server)
  before = time.monotonic()
  server.stop()  # asserts that no process stays
  assert time.monotonic() - before < 10
  for thread in threads:
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize('processes', [1, 2])
@pytest.mark.parametrize('level', ['namespaces', 'landlock', 'none'])
def test_sigkill_of_the_server_ends_everything(start, level, processes):
  # At the weaker levels root's programs may be unable to read its Python.
  plain = level != 'namespaces' and os.geteuid() == 0
  server = start(
      f'--isolation={level}', f'--processes={processes}', plain_user=plain
  )
  hang(server, 2)
  below = servers.processes_below(server.process.pid)
  assert len(below) >= 3
  server.process.kill()
  server.process.communicate()
  servers.wait_until(lambda: not any(map(servers.is_running, below)), 10)


def test_what_a_killed_server_left_is_removed_by_the_next(start):
  plain = os.geteuid() == 0
  server = start('--isolation=none', plain_user=plain)
  server.run('open("left", "w").write("x")')
  before = set(workspaces())
  server.process.kill()
  server.process.communicate()
  assert before & set(workspaces())
  second = start('--isolation=none', plain_user=plain)
  second.stop()
  assert not before & set(workspaces())


@pytest.mark.parametrize('processes', [1, 2])
def test_exit_with_parent(processes):
  program = (
      'import subprocess, sys\n'
      'server = subprocess.Popen([sys.executable, "-m", "sandbox_runner",'
      ' "--port=0", "--exit_with_parent", sys.argv[1]],'
      ' stdout=subprocess.PIPE, text=True)\n'
      'print(server.pid, server.stdout.readline(), flush=True)\n'
      'server.wait()\n'
  )
  parent = subprocess.Popen(
      [sys.executable, '-c', program, f'--processes={processes}'],
      cwd=servers.ROOT, stdout=subprocess.PIPE, text=True,
  )
  try:
    line = servers.read_line(parent.stdout, 60)
    pid = int(line.split()[0])
    assert 'ready at' in line
    below = [pid, *servers.processes_below(pid)]
  finally:
    parent.kill()
    parent.communicate()
  servers.wait_until(lambda: not any(map(servers.is_running, below)), 15)


def test_refuses_where_user_namespaces_are_off():
  if shutil.which('unshare') is None:
    pytest.skip('unshare(1) is not installed')
  command, environment = servers.server_command(os.geteuid() == 0)
  off = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
  prefix = ['unshare', '-Ur', 'sh', '-c', off, 'sh']
  if command[0] == 'setpriv':
    prefix, command = [*command[:-1], *prefix], command[-1:]
  probe = subprocess.run([*prefix, 'true'], capture_output=True)
  if probe.returncode:
    pytest.skip('cannot turn user namespaces off: '
                + probe.stderr.decode().strip())
  code, errors = start_briefly(
      prefix=prefix, command=command, environment=environment
  )
  assert code == 2 and len(errors) == 1, errors
  assert errors[0].startswith(
      'error: cannot provide isolation=namespaces: '
  )
  assert 'user.max_user_namespaces' in errors[0]
  assert '--isolation=landlock or --isolation=none' in errors[0]


def test_weaker_levels_work_where_user_namespaces_are_off():
  code = (
      'import json, urllib.request, subprocess, sys\n'
      'for level in ("landlock", "none"):\n'
      '  server = subprocess.Popen([sys.executable, "-m", "sandbox_runner",'
      ' "--port=0", "--isolation=" + level], stdout=subprocess.PIPE,'
      ' text=True)\n'
      '  url = server.stdout.readline().split()[3] + "/v1/execute"\n'
      '  body = json.dumps({"code": "print(6 * 7)"}).encode()\n'
      '  print(json.load(urllib.request.urlopen(url, body)))\n'
      '  server.terminate(); server.wait()\n'
  )
  off = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
  done = subprocess.run(
      ['unshare', '-Ur', 'sh', '-c', off, 'sh', sys.executable, '-c', code],
      cwd=servers.ROOT, capture_output=True, text=True, timeout=90,
  )
  if 'unshare' in done.stderr or 'max_user_namespaces' in done.stderr:
    pytest.skip(f'cannot turn user namespaces off: {done.stderr.strip()}')
  assert "'stdout': '42\\n'" in done.stdout, done
  assert "'isolation': 'landlock'" in done.stdout
  assert "'isolation': 'none'" in done.stdout


def test_refuses_an_interpreter_in_a_private_directory(tmp_path):
  if not str(tmp_path).startswith('/tmp/'):
    pytest.skip('the temporary directory of tests is not below /tmp')
  libraries = tmp_path / 'site-packages'
  libraries.mkdir()
  code = (
      'import sys; sys.path.append(sys.argv.pop())\n'
      'from sandbox_runner import __main__\n'
      'sys.exit(__main__.main(["--port=0"]))'
  )
  done = subprocess.run(
      [sys.executable, '-c', code, str(libraries)], cwd=servers.ROOT,
      capture_output=True, text=True, timeout=60,
  )
  assert done.returncode == 2
  assert str(libraries) in done.stderr and 'under /opt' in done.stderr
  assert len(done.stderr.strip().splitlines()) == 1


def test_refuses_an_interpreter_that_programs_cannot_read():
  private = [
      str(p) for p in pathlib.Path(sys.base_prefix).parents
      if not p.stat().st_mode & 1
  ]
  if os.geteuid() or not private:
    pytest.skip('not root with a Python that only root can read')
  code, errors = start_briefly('--isolation=none')
  assert code == 2 and len(errors) == 2
  assert 'install Python elsewhere' in errors[1]
  assert 'Traceback' not in errors[1]


def test_healthz_goes_through_a_slot(server):
  code, text = server.get('/healthz')
  assert code == 200 and '"status": "ok"' in text


def test_front_ends_share_sessions_and_metrics(start):
  server = start('--processes=3')
  ids = []
  for i in range(6):
    ids.append(server.post('/v1/sessions', {'tier': 'bare'})[1]['session_id'])
    path = f'/v1/sessions/{ids[-1]}/exec'
    for step in range(4):  # each request is a new connection
      code = f'x = {i}' if step == 0 else 'x'
      result = server.post(path, {'code': code})[1]
    assert result['value'] == str(i)
  assert len({i.split('-')[0] for i in ids}) > 1
  text = server.get('/metrics')[1]
  for process in range(3):
    assert f'sandbox_sessions{{process="{process}"}}' in text
  for session_id in ids:
    assert server.post(f'/v1/sessions/{session_id}/exec', {})[0] == 422
  assert server.post('/v1/sessions/9-none/exec', {'code': '1'})[0] == 404


def test_a_front_end_that_dies_is_replaced(start):
  server = start('--processes=2')
  with open(f'/proc/{server.process.pid}/task/{server.process.pid}/children'
            ) as file:
    victim = int(file.read().split()[0])
  below = servers.processes_below(victim)
  os.kill(victim, signal.SIGKILL)
  servers.wait_until(lambda: not any(map(servers.is_running, below)), 10)

  def both_answer() -> bool:
    return 'process="0"' in (text := server.get('/metrics')[1]) and (
        'process="1"' in text
    )

  servers.wait_until(both_answer, 20)
  for _ in range(8):
    assert server.run('print(1)')['stdout'] == '1\n'


def test_listens_on_loopback_only(server):
  address = f'{socket.inet_aton("127.0.0.1")[::-1].hex().upper()}'
  with open('/proc/net/tcp') as file:
    locals_ = [line.split()[1] for line in file.readlines()[1:]
               if line.split()[3] == '0A']
  port = f'{server.port:04X}'
  assert f'{address}:{port}' in locals_
  assert f'00000000:{port}' not in locals_
