"""The client: deadlines, bounded retries, several nodes, failover."""

import asyncio
import concurrent.futures
import signal
import socket
import time

import pytest

from sandbox_runner import client as client_lib
from sandbox_runner import protocol
from tests.sandbox_runner import servers

Status = protocol.Status


@pytest.fixture
def client(server):
  with client_lib.Client([server.url]) as made:
    yield made


def count_calls(server) -> int:
  """Calls that a server has answered."""
  return sum(
      int(line.rsplit(' ', 1)[1])
      for line in server.get('/metrics')[1].splitlines()
      if line.startswith('sandbox_calls_total')
  )


@pytest.mark.parametrize('code, status', [
    ('print(6 * 7)', Status.SUCCESS), ('1/0', Status.RUNTIME_ERROR),
    ('1 +', Status.SYNTAX_ERROR), ('while True: pass', Status.TIMEOUT),
])
def test_what_a_program_does_is_a_result_and_never_retried(
    server, client, code, status
):
  before = count_calls(server)
  result = client.run(code, timeout_s=0.3, request_id='a')
  assert (result.status, result.request_id) == (status, 'a')
  assert count_calls(server) == before + 1
  assert client.num_retries == 0


def test_invalid_requests_are_not_retried(client):
  result = client.run('print(1)', timeout_s=-1)
  assert result.status is Status.INVALID_REQUEST
  assert result.message.startswith('timeout_s: ')
  results = client.execute_batch([
      protocol.ExecuteRequest(code='print(1)'),
      protocol.ExecuteRequest(code='print(1)', memory_mb=0),
  ])
  assert [r.status for r in results] == [
      Status.SUCCESS, Status.INVALID_REQUEST
  ]
  assert client.num_retries == 0


def test_batches_keep_their_order(client):
  requests = [
      protocol.ExecuteRequest(code=f'print({i})', request_id=str(i))
      for i in range(230)
  ]
  results = client.execute_batch(requests)
  assert [r.stdout for r in results] == [f'{i}\n' for i in range(230)]
  assert [r.request_id for r in results] == [r.request_id for r in requests]
  assert client.execute_batch([]) == []


def test_verify(client):
  assert client.verify('1,000', '1000').equal
  assert client.verify(r'\frac{1}{2}', '0.5', timeout_s=30).equal
  assert not client.verify('1', '2').equal


def test_a_session_on_a_node_that_died_is_lost():
  """Not an error of the client's own, and its message names the node."""
  server = servers.Server()
  try:
    with client_lib.Client([server.url]) as client:
      session = client.create_session(protocol.SessionRequest(tier='bare'))
      assert session.run('1 + 1').value == '2'
      server.process.kill()
      server.process.wait()
      with pytest.raises(client_lib.SessionLost) as error:
        session.run('1 + 1')
    result = error.value.result
    assert result.status is Status.SANDBOX_UNAVAILABLE
    assert result.session_lost and server.url in result.message
  finally:
    server.process.kill()
    server.process.communicate()


def test_sessions(client):
  session = client.create_session(protocol.SessionRequest(tier='bare'))
  session.run('x = 20')
  assert session.run('x + 1').value == '21'
  assert session.run('1/0').status is Status.RUNTIME_ERROR
  with pytest.raises(client_lib.SessionLost) as error:
    session.run('while True: pass', timeout_s=0.2)
  assert error.value.result.status is Status.TIMEOUT
  with pytest.raises(client_lib.SessionLost, match='no such session'):
    session.run('x')
  session.close()


def test_session_of_an_invalid_request_raises(client):
  with pytest.raises(protocol.InvalidRequest, match='memory_mb'):
    client.create_session(protocol.SessionRequest(memory_mb=1))


def test_threads_share_a_client(client):
  with concurrent.futures.ThreadPoolExecutor(16) as pool:
    results = list(pool.map(lambda i: client.run(f'print({i})'), range(64)))
  assert [r.stdout for r in results] == [f'{i}\n' for i in range(64)]


def test_async_client(server):
  async def run():
    async with client_lib.AsyncClient([server.url]) as client:
      await client.check()
      results = await asyncio.gather(
          *(client.run(f'print({i})') for i in range(32))
      )
      session = await client.create_session()
      value = (await session.run('1 + 1')).value
      await session.close()
      return [r.stdout for r in results], value

  assert asyncio.run(run()) == ([f'{i}\n' for i in range(32)], '2')


def test_cancelling_a_call_cancels_it_on_the_server(server):
  async def run():
    async with client_lib.AsyncClient([server.url]) as client:
      with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
          await client.run('import time; time.sleep(30)', timeout_s=60)

  asyncio.run(run())
  # The slot is free again well before the sleep would be over.
  start = time.monotonic()
  for _ in range(8):
    assert server.run('print(1)')['status'] == 'success'
  assert time.monotonic() - start < 10


def test_a_node_that_hangs_costs_the_deadline_and_no_more():
  with socket.socket() as deaf:
    deaf.bind(('127.0.0.1', 0))
    deaf.listen()
    url = f'http://127.0.0.1:{deaf.getsockname()[1]}'
    with client_lib.Client([url]) as client:
      start = time.monotonic()
      result = client.run('print(1)', deadline_s=0.5)
      assert time.monotonic() - start < 4
  assert result.status is Status.SANDBOX_UNAVAILABLE


def test_no_node_at_all():
  policy = client_lib.Policy(deadline_s=0.5)
  with client_lib.Client(['http://127.0.0.1:9'], policy) as client:
    result = client.run('print(1)', request_id='x')
    assert result.status is Status.SANDBOX_UNAVAILABLE
    assert 'http://127.0.0.1:9' in result.message and result.request_id == 'x'
    assert client.num_retries > 0
    with pytest.raises(ConnectionError, match='http://127.0.0.1:9'):
      client.check()
    with pytest.raises(ConnectionError, match='no session'):
      client.create_session()
  with pytest.raises(ValueError, match='urls'):
    client_lib.Client([])


def test_attempts_are_bounded():
  policy = client_lib.Policy(deadline_s=60, max_attempts=3)
  with client_lib.Client(['http://127.0.0.1:9'], policy) as client:
    start = time.monotonic()
    assert not client.verify('x', 'y').equal
    assert client.num_retries == 2 and time.monotonic() - start < 5


def test_a_full_queue_is_tried_again(start):
  server = start('--max_running=1', '--max_queued=2')
  with client_lib.Client([server.url]) as client:
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
      results = list(pool.map(lambda i: client.run(f'print({i})'), range(96)))
    assert [r.stdout for r in results] == [f'{i}\n' for i in range(96)]
    assert client.num_retries > 0


def test_calls_go_to_the_node_with_the_fewest(start):
  busy, idle = start('--node=busy'), start('--node=idle')

  async def run():
    async with client_lib.AsyncClient([busy.url, idle.url]) as client:
      results = await asyncio.gather(
          *(client.run('import time; time.sleep(0.5)') for _ in range(8))
      )
      return sorted(r.node for r in results)

  assert asyncio.run(run()) == ['busy'] * 4 + ['idle'] * 4


def test_a_node_killed_under_load_loses_nothing(start):
  victim, survivor = start('--node=victim'), start('--node=survivor')
  with client_lib.Client([victim.url, survivor.url]) as client:
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
      code = 'import time\ntime.sleep(0.02)\nprint({0} * {0})'
      futures = [
          pool.submit(client.run, code.format(i)) for i in range(300)
      ]
      while sum(f.done() for f in futures) < 60:
        time.sleep(0.01)
      victim.process.send_signal(signal.SIGKILL)
      victim.process.communicate()
      results = [f.result() for f in futures]
    assert [r.stdout for r in results] == [f'{i * i}\n' for i in range(300)]
    assert {r.node for r in results} == {'victim', 'survivor'}
    assert client.num_retries > 0
