"""What a program must not reach: processes, files, network, privileges."""

import concurrent.futures
import os
import platform
import socket
import sys
import time

import pytest

from tests.sandbox_runner import servers

# A program sees the folders that lead to its interpreter, and no more of them.
_TO_INTERPRETER = {
    os.path.realpath(prefix).split('/')[1]
    for prefix in (sys.prefix, sys.base_prefix)
}

PROCESS_BOMBS = {
    'fork bomb': (
        'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'
    ),
    'fork bomb with setsid': (
        'import os\nwhile True:\n  try:\n    if os.fork() == 0: os.setsid()\n'
        '  except OSError: pass'
    ),
}


@pytest.mark.parametrize('name', PROCESS_BOMBS)
def test_fork_bombs(healthy, name):
  result = healthy.run(PROCESS_BOMBS[name], timeout_s=0.5)
  assert result['status'] == 'timeout'


def test_number_of_processes_is_bounded(healthy):
  result = healthy.run(
      'import os, time\nn = 0\ntry:\n  while True:\n'
      '    if os.fork() == 0: time.sleep(30)\n    n += 1\n'
      'except BlockingIOError: print(n)'
  )
  assert result['status'] == 'success' and 50 <= int(result['stdout']) <= 64


def test_number_of_threads_is_bounded(healthy):
  result = healthy.run(
      'import threading, time\nn = 0\ntry:\n  for _ in range(10_000):\n'
      '    threading.Thread(target=time.sleep, args=(30,), daemon=True)'
      '.start()\n'
      '    n += 1\nexcept RuntimeError as e: print(n, e)'
  )
  assert "can't start new thread" in result['stdout'], result


DAEMONS = {
    'double fork': (
        'import os, time\nif os.fork() == 0:\n  os.setsid()\n'
        '  if os.fork() == 0: time.sleep(100)\n  os._exit(0)\nos.wait()'
    ),
    'holds stdout': (
        'import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(100)'
    ),
    'shell background': (
        'import subprocess; subprocess.Popen("sleep 100 &", shell=True)'
    ),
    'ignores signals': (
        'import os, signal, time\nif os.fork() == 0:\n  os.setsid()\n'
        '  signal.signal(signal.SIGTERM, signal.SIG_IGN)\n  time.sleep(100)'
    ),
    'stopped': (
        'import os, signal\nif os.fork() == 0:\n'
        '  os.kill(os.getpid(), signal.SIGSTOP)'
    ),
}


@pytest.mark.parametrize('name', DAEMONS)
def test_daemons_die_with_the_call(healthy, name):
  start = time.monotonic()
  result = healthy.run(DAEMONS[name] + '\nprint("done")', timeout_s=30)
  assert result['status'] == 'success' and result['stdout'] == 'done\n'
  assert time.monotonic() - start < 5
  pids = servers.processes_below(healthy.process.pid)
  names = [_command(pid) for pid in pids]
  assert not any('sleep' in name for name in names)


def _command(pid: int) -> str:
  try:
    with open(f'/proc/{pid}/cmdline') as file:
      return file.read()
  except OSError:
    return ''


def test_kill_all_reaches_only_oneself(healthy):
  before = healthy.num_processes()
  result = healthy.run(
      'import os\ntry: os.kill(-1, 9)\n'
      'except ProcessLookupError: print("nobody else")'
  )
  assert result['stdout'] == 'nobody else\n'
  result = healthy.run('import os\nos.kill(os.getpid(), 9)')
  assert (result['status'], result['signal']) == ('killed', 9)
  assert 'SIGKILL' in result['message']
  result = healthy.run('import os\nos.kill(1, 9)\nprint("on")')
  assert result['stdout'] == 'on\n'
  assert healthy.num_processes() >= before - 1


def test_abort_is_killed_by_sigabrt(healthy):
  result = healthy.run('import os; os.abort()')
  assert (result['status'], result['signal']) == ('killed', 6)
  assert result['exit_code'] is None


@pytest.mark.parametrize('path', [
    '/etc/shadow', '/root/.bashrc', '/home', '/etc/ssl', '/sys', '/run', '/var',
    '/boot', '/proc/1/root/etc/shadow', '/tmp/../etc/shadow',
    '/proc/self/root/../etc/shadow', '/proc/self/cwd/../../etc/shadow',
    '/proc/1/cwd', '/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/tty',
    '/sys/fs/cgroup', __file__, servers.__file__,
])
def test_host_files_are_not_there(server, path):
  if path.lstrip('/') in _TO_INTERPRETER:
    pytest.skip(f'{path} leads to the interpreter of these tests')
  result = server.run(
      f'import os\ntry: os.listdir({path!r})\n'
      f'except NotADirectoryError: print(open({path!r}, "rb").read(10))'
  )
  assert result['status'] == 'runtime_error', result
  assert any(
      name in result['stderr'] for name in ('FileNotFound', 'PermissionError')
  )


def test_links_do_not_lead_out(server):
  result = server.run(
      'import os\nos.symlink("/etc/shadow", "/tmp/a")\n'
      'os.symlink("../../../../..", "/tmp/b")\n'
      'print(os.path.exists("/tmp/a"), sorted(os.listdir("/tmp/b")))'
  )
  assert result['status'] == 'success'
  host_only = {'boot', 'home', 'var', 'run', 'sys', 'srv', 'mnt', 'media'}
  host_only -= _TO_INTERPRETER
  assert result['stdout'].startswith('False ')
  assert not any(f"'{name}'" in result['stdout'] for name in host_only)


@pytest.mark.parametrize('path', [
    '/usr/x', '/etc/x', '/x', '/dev/x', '/bin/sh', '/etc/passwd', '/dev/null/x',
    '/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/proc/1/oom_score_adj',
])
def test_root_is_read_only(server, path):
  result = server.run(f'open({path!r}, "w").write("x")')
  assert result['status'] == 'runtime_error', result
  assert any(
      text in result['stderr'] for text in
      ('Read-only', 'Permission denied', 'Not a directory', 'No such file')
  ), result['stderr']


def test_interpreter_and_libraries_are_read_only(server):
  result = server.run(
      'import os, sys, json\n'
      'for path in (sys.executable, json.__file__, sys.prefix + "/x",'
      ' [p for p in sys.path if "site-packages" in p][0] + "/x"):\n'
      '  try: open(path, "r+b" if os.path.exists(path) else "wb")\n'
      '  except OSError as e: print(e.strerror)\n'
      '  else: print("writable", path)'
  )
  assert result['stdout'] and 'writable' not in result['stdout'], result


@pytest.mark.parametrize(
    'name', ['mem', 'environ', 'maps', 'fd', 'root', 'cwd'])
def test_slot_is_opaque(server, name):
  result = server.run(
      f'import os\np = "/proc/1/{name}"\n'
      'try: print(os.listdir(p))\n'
      'except NotADirectoryError: print(open(p, "rb").read(1))'
  )
  assert 'PermissionError' in result['stderr'], result


def test_host_mounts_and_processes_are_invisible(server):
  result = server.run(
      'import os\nprint(open("/proc/self/mounts").read())\n'
      'print([p for p in os.listdir("/proc") if p.isdigit()])'
  )
  assert 'cgroup' not in result['stdout'] and '/home' not in result['stdout']
  assert len(eval(result['stdout'].splitlines()[-1])) == 2


def test_only_standard_descriptors_are_open(server):
  result = server.run(
      'import os\nopen_fds = []\n'
      'for fd in range(256):\n'
      '  try: os.fstat(fd)\n  except OSError: continue\n'
      '  open_fds.append(fd)\nprint(open_fds)\n'
      'for fd in range(3, 256):\n'
      '  try: os.write(fd, b"forged")\n  except OSError: pass\n'
      '  else: print("wrote to", fd)'
  )
  assert result['stdout'] == '[0, 1, 2]\n'


@pytest.mark.parametrize('family, kind', [
    ('AF_INET', 'SOCK_STREAM'), ('AF_INET', 'SOCK_DGRAM'),
    ('AF_INET6', 'SOCK_STREAM'), ('AF_INET', 'SOCK_RAW'),
    ('AF_NETLINK', 'SOCK_RAW'), ('AF_PACKET', 'SOCK_RAW'),
    ('AF_VSOCK', 'SOCK_STREAM'),
])
def test_no_network_sockets(server, family, kind):
  result = server.run(
      f'import socket\nsocket.socket(socket.{family}, socket.{kind})')
  assert result['status'] == 'runtime_error'
  assert 'Permission' in result['stderr'] or 'not permitted' in result['stderr']


def test_own_service_and_dns_are_out_of_reach(server):
  result = server.run(
      'import socket, urllib.request\n'
      f'for f in (lambda: urllib.request.urlopen("{server.url}/healthz"),\n'
      '          lambda: socket.create_connection(("1.1.1.1", 53), 2),\n'
      '          lambda: socket.getaddrinfo("example.com", 80)):\n'
      '  try: print(f())\n  except OSError as e: print("refused")'
  )
  assert result['stdout'] == 'refused\n' * 3, result


def test_abstract_sockets_do_not_join_slots(server):
  bind = (
      'import socket, time\ns = socket.socket(socket.AF_UNIX)\n'
      's.bind("\\0meeting")\ns.listen()\ntime.sleep(1.5)\nprint("bound")'
  )
  connect = (
      'import socket, time\ntime.sleep(0.4)\n'
      's = socket.socket(socket.AF_UNIX)\n'
      'try: s.connect("\\0meeting"); print("met")\n'
      'except OSError as e: print("refused")'
  )
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    first = pool.submit(server.run, bind)
    second = pool.submit(server.run, connect)
    assert second.result()['stdout'] == 'refused\n'
    assert first.result()['stdout'] == 'bound\n'


def test_host_abstract_socket_is_out_of_reach(server):
  name = f'sandbox-test-{os.getpid()}'
  with socket.socket(socket.AF_UNIX) as listener:
    listener.bind('\0' + name)
    listener.listen()
    result = server.run(
        'import socket\ns = socket.socket(socket.AF_UNIX)\n'
        f's.connect("\\0{name}")'
    )
  assert 'ConnectionRefusedError' in result['stderr'], result


# name: (x86_64, aarch64), arguments
SYSTEM_CALLS = {
    'ptrace': ((101, 117), '0, 0, 0, 0'),
    'process_vm_readv': ((310, 270), '1, 0, 0, 0, 0, 0'),
    'mount': ((165, 40), 'b"none", b"/tmp", b"tmpfs", 0, 0'),
    'umount2': ((166, 39), 'b"/proc", 2'),
    'pivot_root': ((155, 41), 'b"/tmp", b"/tmp"'),
    'chroot': ((161, 51), 'b"/tmp"'),
    'unshare user': ((272, 97), '0x10000000'),
    'unshare net': ((272, 97), '0x40000000'),
    'setns': ((308, 268), '0, 0'),
    'bpf': ((321, 280), '0, 0, 0'),
    'perf_event_open': ((298, 241), '0, 0, 0, 0, 0'),
    'io_uring_setup': ((425, 425), '1, 0'),
    'userfaultfd': ((323, 282), '0'),
    'keyctl': ((250, 219), '0, 0, 0, 0, 0'),
    'add_key': ((248, 217), '0, 0, 0, 0, 0'),
    'memfd_create': ((319, 279), 'b"x", 0'),
    'shmget': ((29, 194), '0, 4096, 0o1600'),
    'semget': ((64, 190), '0, 1, 0o1600'),
    'msgget': ((68, 186), '0, 0o1600'),
    'mq_open': ((240, 180), 'b"x", 0o102, 0o600, 0'),
    'open_by_handle_at': ((304, 265), '0, 0, 0'),
    'clone new user': ((56, 220), '0x10000000 | 17, 0, 0, 0, 0'),
    'init_module': ((175, 105), '0, 0, 0'),
    'kexec_load': ((246, 104), '0, 0, 0, 0'),
    'reboot': ((169, 142), '0, 0, 0, 0'),
    'sethostname': ((170, 161), 'b"x", 1'),
    'syslog': ((103, 116), '3, 0, 0'),
}


@pytest.mark.parametrize('name', SYSTEM_CALLS)
def test_system_call_is_refused(server, name):
  numbers, arguments = SYSTEM_CALLS[name]
  number = numbers[platform.machine() == 'aarch64']
  result = server.run(
      'import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n'
      f'print(libc.syscall({number}, {arguments}), ctypes.get_errno())'
  )
  assert result['stdout'] == '-1 1\n', result


def test_clone3_falls_back(server):
  result = server.run(
      'import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n'
      'print(libc.syscall(435, 0, 0), ctypes.get_errno())'
  )
  assert result['stdout'] == '-1 38\n'


@pytest.mark.parametrize('code', [
    'import os; os.setuid(0)', 'import os; os.setgid(0)',
    'import os; os.setgroups([0])', 'import os; os.chown("/tmp", 0, 0)',
    'import os; os.mknod("/tmp/a", 0o60600, os.makedev(254, 0))',
])
def test_no_privilege_is_left(server, code):
  result = server.run(code)
  assert 'PermissionError' in result['stderr'] or (
      'Invalid argument' in result['stderr']
  ), result


def test_no_capability_is_left_and_none_comes_back(server):
  result = server.run(
      'import os, subprocess\n'
      'wanted = ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs",'
      ' "Seccomp")\n'
      'show = lambda text: print([l.split()[1] for l in text.splitlines()'
      ' if l.split(":")[0] in wanted])\n'
      'show(open("/proc/self/status").read())\n'
      'show(subprocess.run(["cat", "/proc/self/status"],'
      ' capture_output=True, text=True).stdout)'
  )
  zero = '0' * 16
  line = str([zero] * 4 + ['1', '2'])
  assert result['stdout'] == f'{line}\n{line}\n', result


def test_limits_cannot_be_raised(server):
  result = server.run(
      'import resource as r\n'
      'for limit in (r.RLIMIT_AS, r.RLIMIT_NPROC, r.RLIMIT_NOFILE,'
      ' r.RLIMIT_FSIZE, r.RLIMIT_CPU, r.RLIMIT_CORE):\n'
      '  try: r.setrlimit(limit, (r.RLIM_INFINITY, r.RLIM_INFINITY))\n'
      '  except (ValueError, OSError): print("refused")'
  )
  assert result['stdout'] == 'refused\n' * 6


@pytest.mark.skipif(
    platform.machine() != 'x86_64', reason='machine code is for x86_64'
)
@pytest.mark.parametrize('code', [
    'b8 14 00 00 00 cd 80 c3',  # mov eax, 20; int 0x80; ret
    'b8 27 00 00 40 0f 05 c3',  # mov eax, x32 | 39; syscall; ret
])
def test_foreign_system_calls_kill(server, code):
  result = server.run(
      'import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n'
      f'm.write(bytes.fromhex("{code}"))\n'
      'address = ctypes.addressof(ctypes.c_char.from_buffer(m))\n'
      'print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())'
  )
  assert (result['status'], result['signal']) == ('killed', 31), result


def test_terminal_injection_is_refused(server):
  result = server.run(
      'import fcntl\ntry: fcntl.ioctl(0, 0x5412, b"x")\n'
      'except OSError as e: print(e.errno)'
  )
  assert result['stdout'] == '1\n'
