"""`experiments.chat`: what is shown of an answer, and what a person can do."""

import fcntl
import http.server
import io
import os
import pty
import select
import subprocess
import termios
import threading
import time

import pytest

from experiments import chat
from rstar2_jax import types
from rstar2_jax.chat import template
from tests.experiments import tiny

_END = "<|im_end|>"


class _Terminal(io.StringIO):

  def isatty(self):
    return True


def _shown(*events, file=None):
  file = file or io.StringIO()
  screen = chat.Screen(file, max_chars=256)
  for event in events:
    screen.show(event)
  return file.getvalue()


def test_programs_are_shown_as_programs():
  first = template.call_text("x = 1\nprint(x)")
  second = template.call_text("input()", "a b")
  turn = f"Let me compute.</reason>\n{first}{second}{_END}"
  assert _shown(turn) == (
      "<reason>Let me compute.</reason>\n"
      "  | x = 1\n  | print(x)\n"
      "  | input()\n  | # standard input:\n  | a b\n")


def test_a_call_that_cannot_be_read_stays_as_it_is():
  turn = f"a</reason><tool_call>{{</tool_call>b{_END}"
  assert _shown(turn) == "<reason>a</reason><tool_call>{</tool_call>b\n"
  # The program of the good call is shown, what is before it is not lost.
  turn = f"<tool_call>x</tool_call>{template.call_text('print(1)')}<answer>"
  assert chat.turn_parts(turn) == [
      ("<tool_call>x</tool_call>", False), ("print(1)", True),
      ("<answer>", False)]


def test_results_say_status_time_and_what_the_model_reads():
  good = types.ToolResult(
      status=types.ToolStatus.SUCCESS, stdout="42\n", wall_ms=1.26)
  bad = types.ToolResult(status=types.ToolStatus.TIMEOUT, wall_ms=5000.0)
  assert _shown(good, bad) == (
      "  success, 1.3 ms\n  42\n"
      "  timeout, 5000.0 ms\n  tool call failed\n  \n"
      "  reason: time limit exceeded\n")


@pytest.mark.parametrize("text, shown", [
    ("a\tb\nc", "a\tb\nc"),
    ("größer 漢字 🙂", "größer 漢字 🙂"),
    ("\033]0;owned\007", "\\x1b]0;owned\\x07"),
    ("safe\rhidden", "safe\\rhidden"),
    ("\x9b2J", "\\x9b2J"),  # CSI in one character
    ("abc\u202edef", "abc\\u202edef"),  # turns the reading direction
])
def test_nothing_commands_the_terminal(text, shown):
  assert chat.printable(text) == shown
  result = types.ToolResult(status=types.ToolStatus.SUCCESS, stdout=text)
  for event in (f"{text}{_END}", result):
    assert "\033" not in _shown(event)


def test_colors_are_for_terminals(monkeypatch):
  result = types.ToolResult(status=types.ToolStatus.SUCCESS, stdout="1")
  monkeypatch.delenv("NO_COLOR", raising=False)
  assert "\033[32m" in _shown(result, file=_Terminal())
  assert "\033" not in _shown(result)
  monkeypatch.setenv("NO_COLOR", "1")
  assert "\033" not in _shown(result, file=_Terminal())


def _chat(place, text, *flags):
  return subprocess.run(
      place.command("chat", f"--policy.path={place.run('stage1')}/policy",
                    *flags), cwd=tiny.ROOT, input=text, text=True,
      capture_output=True, timeout=300, check=False)


def test_lines_are_problems_and_answers_repeat(finished):
  """Each line is alone: the same line as first and as only one."""
  done = _chat(finished, "What is 2 + 2?\n\nWhat is 3 + 3?\n/help\n"
               "/example\n/quit\nWhat is 4 + 4?\n")
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("\n> ") == 5
  assert done.stdout.count(" turns, ") == 3
  assert "\n  | print(" in done.stdout
  assert "success, " in done.stdout
  assert "; right is 4]\n\n> /quit" in done.stdout
  again = _chat(finished, "What is 2 + 2?\n")
  assert _told(again.stdout) == _told(done.stdout)[:len(_told(again.stdout))]
  assert _told(again.stdout)


def test_history_grows_until_it_is_full(finished):
  """At 64 tokens a second answer has no room, and the hint says so."""
  line = "What is 2 + 2?\n"
  done = _chat(finished, line + line + "/new\n" + line, "--history")
  assert done.returncode == 0, done.stderr
  endings = [s for s in done.stdout.splitlines()
             if " turns, " in s or "no room" in s]
  assert len(endings) == 3
  assert "--engine.max_seq_len" in endings[1]
  assert endings[2].startswith("[answered: ")


def test_without_a_policy_there_is_one_line(finished):
  done = finished.call("chat")  # stage 2 has not run
  assert done.returncode == 2
  assert done.stderr == (
      f"error: {finished.run('stage2')} holds no finished policy; run python -m"
      f" experiments.stage2 --workdir={finished.workdir} first, or give"
      " --policy.path=DIR\n")


class _SilentServer(http.server.BaseHTTPRequestHandler):
  """A rollout server that says who it is and never answers a request."""

  def do_GET(self):
    body = b'{"max_total_num_tokens": 1000, "context_length": 64}'
    self.send_response(200)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def do_POST(self):
    self.rfile.read()  # until the client closes

  def log_message(self, *unused):
    pass


@pytest.fixture(name="silent_url")
def _silent_url():
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SilentServer)
  server.daemon_threads = True
  threading.Thread(target=server.serve_forever, daemon=True).start()
  yield f"http://127.0.0.1:{server.server_port}"
  server.shutdown()
  server.server_close()


def test_ctrl_c_gives_up_an_answer_and_ctrl_d_ends(finished, silent_url):
  main, side = pty.openpty()
  command = finished.command(
      "chat", f"--policy.path={finished.run('stage1')}/policy",
      f"--rollout.urls={silent_url}", "--served")
  process = subprocess.Popen(
      command, cwd=tiny.ROOT, stdin=side, stdout=side, stderr=subprocess.PIPE,
      start_new_session=True, preexec_fn=_take_terminal)
  os.close(side)
  _read_until(main, "\n> ")
  os.write(main, b"What is 2 + 2?\n")
  said = ""
  for _ in range(10):  # a key that comes while the line is read may be lost
    end_s = time.monotonic() + 3
    while "[given up]" not in said and time.monotonic() < end_s:
      said += _read_for(main, 0.1)
    if "[given up]" in said:
      break
    os.write(main, b"\x03")
  assert "[given up]" in said
  said = said.partition("[given up]")[2]
  while "\n> " not in said:  # before the prompt the end would be lost
    said += _read_for(main, 1.0)
  os.write(main, b"\x04")
  assert process.wait(timeout=60) == 0
  assert process.stderr.read() == b""
  os.close(main)


def _take_terminal():
  fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _told(output):
  """Lines of an answer, without seconds and milliseconds."""
  lines = output.partition("\n> ")[2].splitlines()
  return [line.split(",")[0] for line in lines if " turns, " not in line]


def _read_until(file, *marks):
  """What a terminal shows until all marks have come."""
  text, deadline_s = "", time.monotonic() + 120
  while not all(mark in text for mark in marks):
    assert time.monotonic() < deadline_s, text
    text += _read_for(file, 1.0)
  return text


def _read_for(file, seconds):
  """What a terminal shows within some time; returns early if it shows any."""
  ready, _, _ = select.select([file], [], [], seconds)
  return os.read(file, 4096).decode() if ready else ""
