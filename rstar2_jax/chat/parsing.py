"""Tool calls and answers in the text of one assistant turn.

Calls are read from a turn's own text, never from history or tool output. No
shape of a call raises or disappears: what cannot be run becomes a `ToolCall`
with a status and a message that the model is shown (P06). The original's
parser takes an unclosed call for no call, which ends the trajectory in
silence; here it is a malformed call like any other.
"""

import json
import re
from typing import Any

from rstar2_jax import types
from rstar2_jax.chat import template

TOOL_NAME = template.TOOL_NAME
# Both are required by the schema (paper, Figure 3).
ARGUMENTS = ("code", "input")

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_TAG = re.compile(r"</?tool_call>")
_MAX_QUOTED_CHARS = 40


def parse_tool_calls(turn_text: str, turn: int) -> list[types.ToolCall]:
  """All calls of a turn in order, malformed ones with a status.

  Args:
    turn_text: decoded text of one assistant turn; end marks do no harm.
    turn: 0-based index of that turn.

  Returns:
    One ToolCall per opening tag; empty where the turn makes no call. A closing
    tag without an opening one is a malformed call, too.
  """
  calls = []
  start = None  # where the body of the open call starts
  for tag in _TAG.finditer(turn_text):
    if tag.group() == _OPEN:
      if start is not None:
        calls.append(_malformed(turn, turn_text[start:tag.start()],
                                f"{_OPEN} inside {_OPEN}"))
      start = tag.end()
    elif start is None:
      calls.append(_malformed(turn, "", f"{_CLOSE} without {_OPEN}"))
    else:
      calls.append(_parse_call(turn_text[start:tag.start()], turn))
      start = None
  if start is not None:
    calls.append(_malformed(turn, turn_text[start:], f"{_CLOSE} is missing"))
  return calls


def has_answer(turn_text: str) -> bool:
  """Whether a turn holds a complete answer: its last `<answer>` is closed."""
  start = turn_text.rfind("<answer>")
  return start >= 0 and turn_text.find("</answer>", start) >= 0


def num_answer_tags(turn_text: str) -> tuple[int, int]:
  """How many `<answer>` and how many `</answer>` tags a turn holds."""
  return turn_text.count("<answer>"), turn_text.count("</answer>")


def _parse_call(body: str, turn: int) -> types.ToolCall:
  try:
    call = json.loads(body, strict=False)
  except RecursionError:
    return _malformed(turn, body, "JSON is nested too deeply")
  except ValueError as e:
    return _malformed(turn, body, f"not valid JSON: {_first_line(e)}")
  if not isinstance(call, dict):
    return _malformed(turn, body, "not a JSON object")
  for field in ("name", "arguments"):
    if field not in call:
      return _malformed(turn, body, f"field {field!r} is missing")
  name = call["name"]
  if not isinstance(name, str):
    return _malformed(turn, body, "field 'name' is not a string")
  if name != TOOL_NAME:
    return types.ToolCall(
        turn=turn, name=name, raw=body, status=types.ToolStatus.UNKNOWN_TOOL,
        message=f"unknown tool {_quote(name)}; the tool is {TOOL_NAME}")
  message = _check_arguments(call["arguments"])
  if message:
    return types.ToolCall(
        turn=turn, name=name, raw=body, message=message,
        status=types.ToolStatus.BAD_ARGUMENTS)
  return types.ToolCall(turn=turn, name=name, arguments=call["arguments"],
                        raw=body)


def _check_arguments(arguments: Any) -> str:
  """What is wrong with the arguments of the tool; '' if nothing is."""
  if not isinstance(arguments, dict):
    return "arguments are not a JSON object"
  for name in ARGUMENTS:
    if name not in arguments:
      return f"argument {name!r} is missing"
    if not isinstance(arguments[name], str):
      return f"argument {name!r} is not a string"
    try:
      arguments[name].encode("utf-8")
    except UnicodeEncodeError:
      return f"argument {name!r} holds a character that is not valid Unicode"
  for name in arguments:
    if name not in ARGUMENTS:
      return f"unknown argument {_quote(name)}"
  return ""


def _malformed(turn: int, body: str, message: str) -> types.ToolCall:
  return types.ToolCall(
      turn=turn, raw=body, status=types.ToolStatus.MALFORMED_CALL,
      message=f"malformed tool call: {message}")


def _first_line(error: Exception) -> str:
  return str(error).partition("\n")[0]


def _quote(text: str) -> str:
  """Text of the model in a message: short and on one line."""
  if len(text) > _MAX_QUOTED_CHARS:
    text = f"{text[:_MAX_QUOTED_CHARS]}..."
  return repr(text)
