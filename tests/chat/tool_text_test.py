"""What the model is shown of a tool result: short, the same every time."""

import hypothesis
from hypothesis import strategies as st
import pytest

from rstar2_jax import types
from rstar2_jax.chat import tool_text

Status = types.ToolStatus

TRACEBACK = """Traceback (most recent call last):
  File "main.py", line 7, in <module>
    f(0)
  File "main.py", line 3, in f
    return 1 / x
           ~~^~~
ZeroDivisionError: division by zero
"""
LIBRARY_TRACEBACK = """Traceback (most recent call last):
  File "main.py", line 2, in <module>
    json.loads("{")
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting property name
"""
SYNTAX = """  File "main.py", line 4
    print(
         ^
SyntaxError: '(' was never closed
"""
CHAINED = """Traceback (most recent call last):
  File "main.py", line 2, in <module>
    int("x")
ValueError: invalid literal

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "main.py", line 4, in <module>
    raise KeyError("k")
KeyError: 'k'
"""


def _render(status, max_chars=1000, **fields):
  return tool_text.render(
      types.ToolResult(status=status, **fields), max_chars=max_chars)


@pytest.mark.parametrize("fields, expected", [
    ({"stdout": "42\n"}, "42"),
    ({"stdout": "1\n2\n\n"}, "1\n2"),
    ({"stdout": "  42  \n"}, "  42  "),
    ({"value": "'abc'"}, "'abc'"),  # as IPython would show it
    ({"stdout": "\n", "value": "7"}, "7"),
    ({"stdout": "42\n", "value": "7"}, "42"),
    ({}, "(no output)"),
    ({"stdout": "42\n", "stderr": "DeprecationWarning: old"}, "42"),
    ({"stdout": "standard error = 0.13"}, "standard error = 0.13"),
])
def test_success_is_the_bare_output(fields, expected):
  assert _render(Status.SUCCESS, **fields) == expected


@pytest.mark.parametrize("status, fields, reason", [
    (Status.RUNTIME_ERROR, {"stderr": TRACEBACK},
     "line 3: ZeroDivisionError: division by zero"),
    (Status.RUNTIME_ERROR, {"stderr": LIBRARY_TRACEBACK},
     "line 2: json.decoder.JSONDecodeError: Expecting property name"),
    (Status.RUNTIME_ERROR, {"stderr": CHAINED}, "line 4: KeyError: 'k'"),
    (Status.RUNTIME_ERROR, {"stderr": "warning\n" + TRACEBACK},
     "line 3: ZeroDivisionError: division by zero"),
    (Status.SYNTAX_ERROR, {"stderr": SYNTAX},
     "line 4: SyntaxError: '(' was never closed"),
    (Status.RUNTIME_ERROR, {"stderr": "NameError: name 'pint' is not defined."
                            " Did you mean: 'print'?"},
     "NameError: name 'pint' is not defined. Did you mean: 'print'?"),
    (Status.RUNTIME_ERROR, {"stderr": TRACEBACK.replace(
        "division by zero", "no. Did you mean: 'print'?")},
     "line 3: ZeroDivisionError: no"),
    (Status.RUNTIME_ERROR, {"stderr": "gave up\n"}, "gave up"),
    (Status.RUNTIME_ERROR, {"exit_code": 3}, "exit code 3"),
    (Status.TIMEOUT, {"message": "exceeded the wall limit of 4 s"},
     "time limit exceeded"),
    (Status.MEMORY_LIMIT, {"stderr": TRACEBACK}, "memory limit exceeded"),
    (Status.OUTPUT_LIMIT, {}, "output limit exceeded"),
    (Status.KILLED, {"signal": 11}, "the program was killed"),
    (Status.INVALID_REQUEST, {"message": "code: 9 bytes, limit is 8"},
     "code: 9 bytes, limit is 8"),
    (Status.MALFORMED_CALL, {"message": "malformed tool call: x"},
     "malformed tool call: x"),
    (Status.UNKNOWN_TOOL, {"message": "unknown tool 'x'"}, "unknown tool 'x'"),
    (Status.BAD_ARGUMENTS, {"message": "argument 'code' is missing"},
     "argument 'code' is missing"),
])
def test_failure_says_why(status, fields, reason):
  assert _render(status, **fields) == f"tool call failed\n\nreason: {reason}"


def test_failure_keeps_what_was_printed_before():
  assert _render(Status.RUNTIME_ERROR, stderr=TRACEBACK, stdout="step 1\n") == (
      "tool call failed\n\nreason: line 3: ZeroDivisionError: division by zero"
      "\n\nstdout: step 1")


@pytest.mark.parametrize("status", list(Status))
def test_every_status_has_a_text_without_times_and_paths(status):
  """Equal outcomes give equal texts, however long they took and where."""
  fields = {"stderr": LIBRARY_TRACEBACK, "stdout": "a\n"}
  slow = _render(status, wall_ms=900.0, cpu_ms=4.0, queue_ms=70.0, **fields)
  assert slow and slow == _render(status, **fields)
  assert "/usr" not in slow and not slow.endswith("\n")


@pytest.mark.parametrize("text, max_chars, expected", [
    ("abcdefghij", 10, "abcdefghij"),
    ("abcdefghijk", 10, "abcde...(truncated)...ghijk"),
    ("abcdefghijk", 5, "ab...(truncated)...ijk"),  # head is the shorter end
    ("abc", 1, "...(truncated)...c"),
    ("", 4, ""),
])
def test_cut_middle(text, max_chars, expected):
  assert tool_text.cut_middle(text, max_chars) == expected


def test_output_of_256_characters_is_whole_and_of_257_loses_its_middle():
  assert _render(Status.SUCCESS, 256, stdout="x" * 256) == "x" * 256
  assert _render(Status.SUCCESS, 256, stdout="a" * 200 + "b" * 200) == (
      "a" * 128 + "...(truncated)..." + "b" * 128)


def test_a_long_error_is_cut_as_well():
  text = _render(Status.RUNTIME_ERROR, 40, stderr=f"E: {'x' * 100}\n")
  assert text == "tool call failed\n\nre" + "...(truncated)..." + "x" * 20


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True,
                     database=None)
@hypothesis.given(st.text(max_size=60), st.integers(1, 60))
def test_a_cut_text_keeps_both_ends(text, max_chars):
  cut = tool_text.cut_middle(text, max_chars)
  if len(text) <= max_chars:
    assert cut == text
  else:
    head, tail = cut.split("...(truncated)...", 1)
    assert len(head) + len(tail) == max_chars
    assert text.startswith(head) and text.endswith(tail)
