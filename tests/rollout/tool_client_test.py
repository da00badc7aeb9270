"""Policy errors are results; our own failures are retried, then typed (P19)."""

import asyncio
import http.server
import json
import threading
import time

import pytest

from rstar2_jax import types
from rstar2_jax.rollout import sandbox_process

Status = types.ToolStatus
DEAD = "http://127.0.0.1:1"  # nothing listens there
OK = {"status": "success", "stdout": "fine\n"}


class Node:
  """A server in the place of a sandbox that answers as a test says.

  Attributes:
    answers: one for each request, the last for all further ones: a JSON value,
      bytes, an HTTP status, "close" or "hang".
    bodies: the requests.
  """

  def __init__(self, answers):
    self.answers = list(answers)
    self.bodies = []
    self._done = threading.Event()
    node = self

    class Handler(http.server.BaseHTTPRequestHandler):
      """Answers from the list."""

      protocol_version = "HTTP/1.1"

      def do_POST(self):
        node.bodies.append(json.loads(
            self.rfile.read(int(self.headers["Content-Length"]))))
        answer = node.answers[min(len(node.bodies), len(node.answers)) - 1]
        if answer in ("close", "hang"):
          if answer == "hang":
            node._done.wait(30)
          self.close_connection = True
          return
        code = answer if isinstance(answer, int) else 200
        data = (answer if isinstance(answer, bytes)
                else json.dumps(answer).encode())
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

      def log_message(self, *args):
        pass

    self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    self._server.daemon_threads = True
    self.url = f"http://127.0.0.1:{self._server.server_port}"
    threading.Thread(
        target=self._server.serve_forever, args=(0.01,), daemon=True).start()

  def close(self):
    self._done.set()
    self._server.shutdown()
    self._server.server_close()


@pytest.fixture(name="make_node")
def _make_node():
  nodes = []

  def make(*answers):
    nodes.append(Node(answers))
    return nodes[-1]

  yield make
  for node in nodes:
    node.close()


@pytest.fixture(name="execute")
def _execute(make_tools):
  """Runs programs one after another; returns results and the client."""

  def run(codes, *urls, stdin="", **kwargs):
    async def main():
      tools = make_tools(*urls, **kwargs)
      try:
        return [await tools.execute(code, stdin) for code in codes], tools
      finally:
        await tools.close()

    return asyncio.run(main())

  return run


# --- the real sandbox --------------------------------------------------------


@pytest.mark.parametrize("code, status, fields", [
    ("print(6 * 7)", Status.SUCCESS, {"stdout": "42\n", "exit_code": 0}),
    ("6 * 7", Status.SUCCESS, {"stdout": "", "value": "42"}),
    ("None", Status.SUCCESS, {"stdout": "", "value": ""}),
    ("print(input() + '!')", Status.SUCCESS, {"stdout": "é 7!\n"}),
    ("print('a')\n1 / 0", Status.RUNTIME_ERROR,
     {"stdout": "a\n", "exit_code": 1}),
    ("import sys; sys.exit(3)", Status.RUNTIME_ERROR, {"exit_code": 3}),
    ("print(", Status.SYNTAX_ERROR, {}),
    ("while True: pass", Status.TIMEOUT, {}),
    ("import time; time.sleep(60)", Status.TIMEOUT, {}),
    ("import os; os.kill(os.getpid(), 11)", Status.KILLED, {"signal": 11}),
    ("#" * (1 << 20) + "\n", Status.INVALID_REQUEST, {}),
])
def test_what_a_program_does_is_a_result(execute, code, status, fields):
  """The sandbox's status arrives as ours; nothing is tried twice."""
  (result,), tools = execute([code], stdin="é 7", timeout_s=0.4)
  assert result.status is status
  assert {name: getattr(result, name) for name in fields} == fields
  assert tools.num_retries == 0


def test_many_calls_at_once_keep_their_results(make_tools):
  async def main():
    tools = make_tools()
    results = await asyncio.gather(*(
        tools.execute(f"print({i} + int(input()))", str(i))
        for i in range(40)))
    await tools.close()
    return [r.stdout for r in results]

  assert asyncio.run(main()) == [f"{2 * i}\n" for i in range(40)]


def test_a_sandbox_that_dies_is_an_infra_error_and_another_takes_over(
    execute, sandbox):
  """Calls after its death fail with a type, or go to the node that is left."""
  process = sandbox_process.SandboxProcess()
  (result,), _ = execute(["print(1)"], process.url)
  assert result.status is Status.SUCCESS
  process.close()
  (result,), tools = execute(["print(1)"], process.url, deadline_s=0.4)
  assert result.status is Status.SANDBOX_UNAVAILABLE
  assert process.url in result.message and tools.num_retries > 0
  (result,), _ = execute(["print(1)"], process.url, sandbox.url)
  assert result.stdout == "1\n"


def test_a_sandbox_that_cannot_start_says_why():
  with pytest.raises(ConnectionError, match="did not start .*isolation"):
    sandbox_process.SandboxProcess(isolation="moat")


# --- a server that fails -----------------------------------------------------


@pytest.mark.parametrize("failure", [
    500, 503, "close", b"<html>bad gateway</html>", b"", b"\xff\xfe", [], None,
    {}, {"status": "no such status"}, {"error": "not found"},
    {"status": "sandbox_unavailable"}, {"status": "queue_timeout"},
    {"status": "cancelled"},
])
def test_a_failure_is_tried_again(execute, make_node, failure):
  node = make_node(failure, failure, OK)
  (result,), tools = execute(["print(1)"], node.url)
  assert (result.status, result.stdout) == (Status.SUCCESS, "fine\n")
  assert tools.num_retries == 2 and len(node.bodies) == 3


@pytest.mark.parametrize("status", [
    s for s in Status if s.is_policy_error and s not in (
        Status.MALFORMED_CALL, Status.UNKNOWN_TOOL, Status.BAD_ARGUMENTS)])
def test_the_models_error_is_not_tried_again(execute, make_node, status):
  node = make_node({"status": str(status), "message": "m"}, OK)
  (result,), tools = execute(["1"], node.url)
  assert (result.status, result.message) == (status, "m")
  assert tools.num_retries == 0 and len(node.bodies) == 1


@pytest.mark.parametrize("answer, status", [
    (500, Status.SANDBOX_UNAVAILABLE),
    ("hang", Status.SANDBOX_UNAVAILABLE),
    ({"status": "queue_timeout"}, Status.QUEUE_TIMEOUT),
    ({"status": "cancelled"}, Status.CANCELLED),
])
def test_the_deadline_ends_the_tries_with_a_typed_error(
    execute, make_node, answer, status):
  """P18: no call takes much longer than its deadline."""
  node = make_node(answer)
  start_s = time.monotonic()
  (result,), _ = execute(["1"], node.url, deadline_s=0.5)
  assert time.monotonic() - start_s < 3
  assert result.status is status and result.status.is_infra_error


def test_each_try_gets_the_time_that_is_left(execute, make_node):
  """The sandbox is told the deadline, so that it drops what nobody awaits."""
  node = make_node(500, 500, OK)
  execute(["print(1)"], node.url, deadline_s=5.0, timeout_s=2.0, stdin="in")
  deadlines = [body["deadline_s"] for body in node.bodies]
  assert 5.0 > deadlines[0] > deadlines[1] > deadlines[2] > 0
  assert node.bodies[0] | {"deadline_s": 0} == {
      "code": "print(1)", "stdin": "in", "timeout_s": 2.0,
      "cpu_timeout_s": 2.0, "memory_mb": 256, "deadline_s": 0}


def test_a_dead_node_is_left_for_one_that_answers(execute, make_node):
  """After the first failure the calls go to the other node at once."""
  node = make_node(OK)
  results, tools = execute(["1"] * 5, DEAD, node.url)
  assert all(r.status is Status.SUCCESS for r in results)
  assert tools.num_retries == 1 and len(node.bodies) == 5


def test_a_node_that_failed_once_is_not_lost_beside_a_dead_one(
    execute, make_node):
  """Both have failed; the one that answers again must be found."""
  node = make_node(500, OK)
  results, _ = execute(["1"] * 3, DEAD, node.url, deadline_s=5.0)
  assert all(r.status is Status.SUCCESS for r in results)


def test_a_node_that_is_back_gets_calls_again(make_tools, make_node):
  """One failure does not leave all the work to the others for good."""
  first, second = make_node(500, OK), make_node(OK)

  async def main():
    tools = make_tools(first.url, second.url)
    end_s = time.monotonic() + 10
    while len(first.bodies) < 2 and time.monotonic() < end_s:
      result = await tools.execute("1", "")
      assert result.status is Status.SUCCESS
      await asyncio.sleep(0.05)
    await tools.close()

  asyncio.run(main())
  assert len(first.bodies) >= 2


def test_calls_spread_over_nodes(make_tools, make_node):
  """The node with the fewest calls in flight is next."""
  nodes = [make_node("hang"), make_node("hang"), make_node("hang")]

  async def main():
    tools = make_tools(*(n.url for n in nodes), deadline_s=0.5)
    await asyncio.gather(*(tools.execute("1", "") for _ in range(9)))
    await tools.close()

  asyncio.run(main())
  assert [len(n.bodies) for n in nodes] == [3, 3, 3]


def test_a_cancelled_call_is_no_longer_in_flight(make_tools, make_node):
  hanging, node = make_node("hang"), make_node(OK)

  async def main():
    tools = make_tools(hanging.url, node.url)
    task = asyncio.ensure_future(tools.execute("1", ""))
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    hanging.answers = [OK]
    await tools.execute("1", "")  # to the first node again
    await tools.close()

  asyncio.run(main())
  assert (len(hanging.bodies), len(node.bodies)) == (2, 0)


def test_check_names_the_node_that_does_not_answer(make_tools):
  async def main():
    tools = make_tools()
    await tools.check()
    await tools.close()
    tools = make_tools(DEAD)
    try:
      await tools.check()
    finally:
      await tools.close()

  with pytest.raises(ConnectionError, match=f"sandbox runner {DEAD} does not"):
    asyncio.run(main())
