"""Progress: bars on a terminal, few plain lines elsewhere, tables."""

import os
import pathlib
import pty
import subprocess
import sys
import termios
import threading

from rstar2_jax import progress

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def test_bar_yields_the_steps_that_are_left():
  assert list(progress.bar(range(3, 7), "name")) == [3, 4, 5, 6]
  assert list(progress.bar(range(7, 7), "name")) == []


def test_without_a_terminal_the_first_and_the_last_are_lines(capsys):
  said = iter(["reward 1", *[""] * 97, "reward 9"])
  for _ in progress.bar(range(1, 100), "stage2", lambda: next(said)):
    pass
  first, last = capsys.readouterr().err.splitlines()
  assert first.startswith("stage2: 2/100 after 0 s, ")
  assert first.endswith(" s left; reward 1")
  assert last.startswith("stage2: 100/100 after ")
  assert last.endswith(" 0 s left; reward 9")


def test_counter_counts_from_many_threads(capsys):
  def work():
    for _ in range(1000):
      counter.advance()

  with progress.counter(8000, "evaluate") as counter:
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  lines = capsys.readouterr().err.splitlines()
  assert lines[-1].startswith("evaluate: 8000/8000 ")
  assert sum("8000/8000" in line for line in lines) == 1


def test_an_error_in_a_step_goes_through(capsys):
  try:
    for step in progress.bar(range(5), "stage"):
      if step == 2:
        raise KeyError("step")
  except KeyError:
    pass
  assert "5/5" not in capsys.readouterr().err


def test_say_is_on_stdout(capsys):
  progress.say("one\ntwo")
  assert capsys.readouterr() == ("one\ntwo\n", "")


def test_on_a_terminal_there_is_a_bar_that_say_does_not_tear():
  code = ("from rstar2_jax import progress\n"
          "for i in progress.bar(range(3), 'stage2', lambda: 'reward 0.5'):\n"
          "  progress.say(f'said {i}')\n")
  leader, follower = pty.openpty()
  termios.tcsetwinsize(follower, (24, 80))
  done = subprocess.run(
      [sys.executable, "-c", code], cwd=_ROOT, timeout=60, check=True,
      stdout=follower, stderr=follower)
  os.close(follower)
  shown = b""
  while True:
    try:
      part = os.read(leader, 65536)
    except OSError:  # how Linux says that a terminal has ended
      break
    if not part:
      break
    shown += part
  os.close(leader)
  assert done.returncode == 0
  text = shown.decode()
  assert "stage2: 100%" in text
  assert "3/3" in text
  assert "reward 0.5" in text
  for i in range(3):
    assert f"\rsaid {i}\r\n" in text


def test_a_terminal_without_width_gets_lines():
  leader, follower = pty.openpty()
  code = ("from rstar2_jax import progress\n"
          "for _ in progress.bar(range(3), 'stage2'): pass\n")
  subprocess.run([sys.executable, "-c", code], cwd=_ROOT, timeout=60,
                 check=True, stdout=follower, stderr=follower)
  shown = os.read(leader, 65536).decode()
  os.close(leader)
  os.close(follower)
  assert "stage2: 1/3 after 0 s" in shown


def test_table_aligns_names_left_and_numbers_right():
  assert progress.table(
      ["stage", "pass@1"], [["sft", "9.0 %"], ["stage1", "41.5 %"]]) == (
          "stage   pass@1\n"
          "------  ------\n"
          "sft      9.0 %\n"
          "stage1  41.5 %")


def test_table_without_rows():
  assert progress.table(["a", "bc"], []) == "a  bc\n-  --"
