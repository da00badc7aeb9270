"""What the level without namespaces holds, as an ordinary user."""

import os

import pytest

from tests.sandbox_runner import servers
from sandbox_runner import landlock

pytestmark = pytest.mark.skipif(
    landlock.abi() < landlock.MIN_ABI,
    reason=f'Landlock ABI is {landlock.abi()}, needed is {landlock.MIN_ABI}',
)


@pytest.fixture(scope='module')
def server():
  running = servers.Server(
      '--isolation=landlock', plain_user=os.geteuid() == 0
  )
  yield running
  running.stop()


@pytest.mark.parametrize('code', [
    'open("/etc/shadow")', 'import os; os.listdir("/root")',
    'import os; os.listdir("/proc")', 'open("/tmp/x", "w")',
    'open("/usr/x", "w")', 'import os; os.fork()',
    'import subprocess; subprocess.run(["true"])',
    'import socket; socket.socket()',
    'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)',
    'import os; os.kill(os.getppid(), 9)', 'import os; os.setuid(0)',
    'import os; os.chroot("/")', 'import os; os.setsid()',
])
def test_is_refused(server, code):
  result = server.run(code)
  assert result['status'] == 'runtime_error', result
  assert 'Error' in result['stderr'].splitlines()[-1]
  assert server.run('print(1)')['stdout'] == '1\n'


def test_plain_programs_work(server):
  result = server.run(
      'import threading, sympy\nopen("a", "w").write("kept")\n'
      't = threading.Thread(target=lambda: print(open("a").read()))\n'
      't.start()\nt.join()\nsympy.sqrt(16)'
  )
  assert (result['stdout'], result['value']) == ('kept\n', '4'), result
  assert result['isolation'] == 'landlock'
  result = server.run('import os\nprint(os.listdir("."))')
  assert result['stdout'] == '[]\n'


def test_limits_hold(server):
  assert server.run('while True: pass', timeout_s=0.3)['status'] == 'timeout'
  result = server.run('x = bytearray(2 << 30)', memory_mb=256)
  assert result['status'] == 'memory_limit'
  result = server.run('import os\nwhile True: os.write(1, b"x" * 65536)')
  assert result['status'] == 'output_limit'
