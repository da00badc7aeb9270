"""The HTTP surface: bad input is answered with its reason, never with a 500."""

import json
import random
import socket
import time

import pytest

from tests.sandbox_runner import servers
from sandbox_runner import protocol

_PATHS = (
    '/v1/execute', '/v1/execute_batch', '/v1/sessions', '/v1/verify',
    '/v1/verify_batch', '/run', '/run/batch', '/run/long-batch', '/judge',
    '/judge/batch', '/run_code',
)


@pytest.mark.parametrize('body, field', [
    ({}, 'code'), ({'code': None}, 'code'), ({'code': 5}, 'code'),
    ({'code': ['print(1)']}, 'code'), ({'code': '1', 'cod': '2'}, 'cod'),
    ({'code': '1', 'stdin': 5}, 'stdin'),
    ({'code': '1', 'timeout_s': 'long'}, 'timeout_s'),
    ({'code': '1', 'timeout_s': 0}, 'timeout_s'),
    ({'code': '1', 'timeout_s': True}, 'timeout_s'),
    ({'code': '1', 'timeout_s': 1e999}, 'timeout_s'),
    ({'code': '1', 'cpu_timeout_s': -1}, 'cpu_timeout_s'),
    ({'code': '1', 'memory_mb': 1.5}, 'memory_mb'),
    ({'code': '1', 'memory_mb': 10**400}, 'memory_mb'),
    ({'code': '1', 'deadline_s': []}, 'deadline_s'),
    ({'code': '1', 'seed': -1}, 'seed'), ({'code': '1', 'tier': 'x'}, 'tier'),
    ({'code': '1', 'tenant': 'x' * 300}, 'tenant'),
    ({'code': '1', 'request_id': {}}, 'request_id'),
    ({'code': 'x' * (protocol.MAX_SOURCE_BYTES + 1)}, 'code'),
    ({'code': '1', 'stdin': 'x' * (protocol.MAX_STDIN_BYTES + 1)}, 'stdin'),
    ({'code': '\u20ac' * (protocol.MAX_SOURCE_BYTES // 2)}, 'code'),
])
def test_schema_errors_name_the_field(server, body, field):
  code, answer = server.post('/v1/execute', body)
  assert (code, answer['status']) == (422, 'invalid_request')
  assert answer['message'].startswith(f'{field}: '), answer['message']
  assert len(answer['message']) < 300


@pytest.mark.parametrize('body', [
    b'', b'{', b'\xff\xfe', b'[1]', b'5', b'null', b'"x"', b'NaN',
    b'[' * 100_000, b'{"a":' * 50_000, b'{"code": "1"}}',
])
def test_bodies_that_are_no_request(server, body):
  for path in _PATHS:
    code, answer = server.post(path, body)
    if path == '/v1/sessions' and not body:  # all defaults
      continue
    assert code == 422, (path, answer)


def test_bytes_that_are_not_utf8_are_replaced(server):
  code, answer = server.post(
      '/v1/execute', b'{"code": "print(\'\xff\')"}'
  )
  assert (code, answer['stdout']) == (200, '\ufffd\n')
  answer = server.run('print(ascii(input()))', stdin='\ud800')
  assert answer['status'] == 'success'


def test_oversized_bodies_and_batches(server):
  code, answer = server.post('/v1/execute', b' ' * ((64 << 20) + 1))
  assert code == 413 and answer['status'] == 'invalid_request'
  assert 'body is larger than' in answer['message']
  items = [{'code': '1'}] * (protocol.MAX_BATCH_ITEMS + 1)
  code, answer = server.post('/v1/execute_batch', {'requests': items})
  assert code == 422 and answer['message'].startswith('requests: 1001 items')
  code, answer = server.post('/run/batch', {'submissions': [{}] * 1001})
  assert code == 422 and 'submissions' in answer['detail']
  assert server.post('/v1/execute_batch', {'requests': []}) == (
      200, {'results': []}
  )
  server.check_healthy()


def test_unknown_paths_and_methods(server):
  assert server.get('/')[0] == 404
  assert server.get('/v1/execute')[0] == 405
  assert server.get('/v1/sessions/../../etc/passwd')[0] == 404


def random_json(rng: random.Random, depth: int = 0):
  """Any JSON value, often shaped like a request."""
  kind = rng.randrange(9 if depth < 3 else 6)
  if kind == 0:
    return rng.choice([None, True, False, 0, -1, 1e308, 2**70, 0.1])
  if kind in (1, 2):
    return rng.choice([
        '', 'print(1)', 'x' * 200, '\x00', '\ud800', 'python', 'bare', '1/0',
    ])
  if kind in (3, 4):
    return rng.randrange(-5, 5)
  if kind in (5, 6):
    return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
  names = [
      'code', 'stdin', 'timeout_s', 'memory_mb', 'tier', 'requests', 'type',
      'solution', 'input', 'submissions', 'language', 'answer', 'reference',
      'sub_id', 'expected_output', 'run_timeout', 'deadline_s', 'files',
      'memory_limit_MB', 'idle_ttl_s', 'request_id', 'seed', 'options',
  ]
  return {
      rng.choice(names): random_json(rng, depth + 1)
      for _ in range(rng.randrange(6))
  }


@pytest.mark.parametrize('path', _PATHS)
def test_random_json_never_breaks_a_route(healthy, path):
  rng = random.Random(path)
  deleted = 0
  for _ in range(120):
    body = random_json(rng)
    if rng.random() < 0.5 and not isinstance(body, dict):
      body = {rng.choice(['requests', 'submissions', 'code']): body}
    code, answer = healthy.post(path, body)
    assert code in (200, 422, 429), (body, code, answer)
    if 'session_id' in answer:
      _delete(healthy, answer['session_id'])
      deleted += 1
  assert path != '/v1/sessions' or deleted


def _delete(server, session_id: str) -> None:
  _exchange(server, (
      f'DELETE /v1/sessions/{session_id} HTTP/1.1\r\nHost: a\r\n'
      'Connection: close\r\n\r\n'
  ).encode())


def _exchange(server, data: bytes, timeout_s: float = 10.0) -> bytes:
  """What a server answers to raw bytes until it closes, or is silent."""
  with socket.create_connection(('127.0.0.1', server.port)) as sock:
    sock.settimeout(timeout_s)
    answer = b''
    try:
      sock.sendall(data)
      while part := sock.recv(65536):
        answer += part
    except OSError:
      pass
    return answer


@pytest.mark.parametrize('data', [
    b'\r\n\r\n', b'GET\r\n\r\n', b'\x16\x03\x01\x02\x00' * 50,
    b'POST /v1/execute HTTP/9.9\r\n\r\n', b'A' * 70_000 + b'\r\n\r\n',
    b'GET / HTTP/1.1\r\nHost: a\r\nX: ' + b'y' * 70_000 + b'\r\n\r\n',
    b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n',
    b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n',
    b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n'
    b'\r\nZZ\r\n',
    b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n'
    b'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
])
def test_broken_http_is_refused(server, data):
  answer = _exchange(server, data, 2.0)
  assert answer == b'' or b' 400 ' in answer.split(b'\r\n')[0], answer
  assert b'Traceback' not in answer
  server.check_healthy()


def test_random_bytes_do_no_harm(server):
  rng = random.Random(7)
  for _ in range(60):
    data = rng.randbytes(rng.randrange(1, 3000))
    if rng.random() < 0.5:
      data = b'POST /v1/execute HTTP/1.1\r\n' + data
    with socket.create_connection(('127.0.0.1', server.port)) as sock:
      sock.sendall(data)
  server.check_healthy()


def test_connections_that_never_finish_do_not_block_others(server):
  """Half a header, half a body, half a chunk, and nothing at all."""
  starts = [
      b'', b'POST /v1/exe', b'POST /v1/execute HTTP/1.1\r\nHost: a\r\n',
      b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{',
      b'POST /v1/execute HTTP/1.1\r\nHost: a\r\n'
      b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"c',
  ]
  sockets = []
  for i in range(100):
    sock = socket.create_connection(('127.0.0.1', server.port))
    sock.sendall(starts[i % len(starts)])
    if i % 2:
      sock.shutdown(socket.SHUT_WR)
    sockets.append(sock)
  for _ in range(5):
    begin = time.monotonic()
    server.check_healthy()
    assert time.monotonic() - begin < 5
  for sock in sockets:
    sock.close()
  servers.wait_until(lambda: _num_connections(server) <= 2, 10)


def _num_connections(server) -> int:
  port = f':{server.port:04X} '
  with open('/proc/net/tcp') as file:
    return sum(
        line.split()[1].endswith(port.strip()) and line.split()[3] == '01'
        for line in file.readlines()[1:]
    )


def test_answers_are_json_with_every_field(server):
  result = server.run('print("\\x00\\u20ac")')
  decoded = protocol.ExecuteResult.from_json(result)
  assert json.loads(json.dumps(decoded.to_json())) == result
  assert decoded.stdout == '\x00\u20ac\n'


def test_retry_after_where_a_retry_helps(start):
  server = start('--max_running=1', '--max_queued=1')
  held = []
  for _ in range(2):
    body = json.dumps({'code': 'import time; time.sleep(9)'}).encode()
    sock = socket.create_connection(('127.0.0.1', server.port))
    sock.sendall(
        b'POST /v1/execute HTTP/1.1\r\nHost: a\r\nContent-Length: '
        + str(len(body)).encode() + b'\r\n\r\n' + body
    )
    held.append(sock)
    time.sleep(0.3)
  for path, body in (
      ('/v1/execute', {'code': '1'}),
      ('/run_code', {'code': '1', 'language': 'python'}),
  ):
    data = json.dumps(body).encode()
    answer = _exchange(server, (
        f'POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n'
        f'Content-Length: {len(data)}\r\n\r\n'
    ).encode() + data)
    assert answer.split()[1] in (b'429', b'504')
    assert b'Retry-After: ' in answer
  for sock in held:
    sock.close()
