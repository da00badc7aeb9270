"""Every shape of a tool call gives one typed call; none raises or vanishes."""

import json

import hypothesis
from hypothesis import strategies as st
import pytest

from rstar2_jax import types
from rstar2_jax.chat import parsing
from rstar2_jax.chat import template

NAME = "execute_python_code_with_standard_io"
MALFORMED = types.ToolStatus.MALFORMED_CALL
UNKNOWN = types.ToolStatus.UNKNOWN_TOOL
BAD = types.ToolStatus.BAD_ARGUMENTS


def _call(**fields):
  """A call of the given JSON fields, tags included."""
  return f"<tool_call>\n{json.dumps(fields)}\n</tool_call>"


def _arguments(**arguments):
  return _call(name=NAME, arguments=arguments)


GOOD = _arguments(code="print(1)", input="")


def _parse(text):
  return parsing.parse_tool_calls(text, 3)


def test_a_good_call():
  text = f"So: {_arguments(code='print(input())', input='7')}<|im_end|>"
  (call,) = _parse(text)
  assert call.status is None and call.message == ""
  assert (call.turn, call.name) == (3, NAME)
  assert call.arguments == {"code": "print(input())", "input": "7"}
  assert call.raw in text


def test_what_the_template_writes_is_a_good_call():
  code = 'for i in range(3):\n\tprint("é", i, \'<b>\', "\\n")'
  (call,) = _parse(template.call_text(code, "1\n2"))
  assert call.status is None
  assert call.arguments == {"code": code, "input": "1\n2"}


def test_raw_control_characters_in_code_are_read():
  """Models write newlines and tabs as they are."""
  (call,) = _parse(f'<tool_call>{{"name": "{NAME}", "arguments": {{"code":'
                   ' "a = 1\n\tprint(a)", "input": ""}}</tool_call>')
  assert call.arguments["code"] == "a = 1\n\tprint(a)"


@pytest.mark.parametrize("body, message", [
    ("", "not valid JSON"),
    ("   \n", "not valid JSON"),
    ("print(1)", "not valid JSON"),
    ("{", "not valid JSON"),
    ('{"name": "x", "arguments": {}', "not valid JSON"),
    ("{'name': 'x'}", "not valid JSON"),
    ('{"name": "x",}', "not valid JSON"),
    ('{"name": "x"} {"name": "y"}', "not valid JSON"),
    ("9" * 5000, "not valid JSON"),
    ("[" * 100_000, "nested too deeply"),
    ("[]", "not a JSON object"),
    ("null", "not a JSON object"),
    ("3", "not a JSON object"),
    (f'"{NAME}"', "not a JSON object"),
    ("{}", "field 'name' is missing"),
    ('{"arguments": {"code": "", "input": ""}}', "field 'name' is missing"),
    (f'{{"name": "{NAME}"}}', "field 'arguments' is missing"),
    ('{"name": null, "arguments": {}}', "field 'name' is not a string"),
    ('{"name": ["a"], "arguments": {}}', "field 'name' is not a string"),
])
def test_a_malformed_call(body, message):
  (call,) = _parse(f"<tool_call>{body}</tool_call>")
  assert call.status is MALFORMED
  assert call.message.startswith("malformed tool call: ")
  assert message in call.message and "\n" not in call.message
  assert (call.raw, call.arguments) == (body, {})


@pytest.mark.parametrize("name", [
    "", "math", "python", NAME.upper(), f"{NAME} ", "x" * 500, "a\nb",
    "\ud800"])
def test_an_unknown_tool(name):
  (call,) = _parse(_call(name=name, arguments={"code": "", "input": ""}))
  assert call.status is UNKNOWN
  assert call.message.startswith("unknown tool ")
  assert call.message.endswith(f"the tool is {NAME}")
  assert len(call.message) < 150 and "\n" not in call.message
  call.message.encode()  # no lone surrogate reaches the tokenizer


@pytest.mark.parametrize("arguments, message", [
    ("print(1)", "arguments are not a JSON object"),
    ('{"code": "print(1)", "input": ""}', "arguments are not a JSON object"),
    (["print(1)", ""], "arguments are not a JSON object"),
    (None, "arguments are not a JSON object"),
    (7, "arguments are not a JSON object"),
    ({}, "argument 'code' is missing"),
    ({"input": ""}, "argument 'code' is missing"),
    ({"code": "print(1)"}, "argument 'input' is missing"),
    ({"code": None, "input": ""}, "argument 'code' is not a string"),
    ({"code": ["a"], "input": ""}, "argument 'code' is not a string"),
    ({"code": {"a": 1}, "input": ""}, "argument 'code' is not a string"),
    ({"code": 1, "input": ""}, "argument 'code' is not a string"),
    ({"code": "", "input": None}, "argument 'input' is not a string"),
    ({"code": "", "input": 5}, "argument 'input' is not a string"),
    ({"code": "\ud800", "input": ""}, "argument 'code' holds a character"),
    ({"code": "", "input": "\udfff"}, "argument 'input' holds a character"),
    ({"code": "", "input": "", "timeout": 9}, "unknown argument 'timeout'"),
])
def test_bad_arguments(arguments, message):
  (call,) = _parse(_call(name=NAME, arguments=arguments))
  assert call.status is BAD and call.name == NAME
  assert call.message.startswith(message)
  assert call.arguments == {}


@pytest.mark.parametrize("text, statuses", [
    ("", []),
    ("no call <answer>1</answer>", []),
    ("< tool_call >{}</ tool_call >", []),
    ("<TOOL_CALL>{}</TOOL_CALL>", []),
    ("<tool_response>\n1\n</tool_response>", []),
    ("<tool_call>", [MALFORMED]),
    ("</tool_call>", [MALFORMED]),
    (GOOD.removesuffix("</tool_call>"), [MALFORMED]),
    (GOOD.removesuffix(">"), [MALFORMED]),
    (GOOD.removeprefix("<tool_call>"), [MALFORMED]),
    (GOOD + "</tool_call>", [None, MALFORMED]),
    ("<tool_call>" + GOOD, [MALFORMED, None]),
    (f"<tool_call>{GOOD}</tool_call>", [MALFORMED, None, MALFORMED]),
    (GOOD + "<tool_call>", [None, MALFORMED]),
    (GOOD * 3, [None] * 3),
    (f"{GOOD}\nthen\n{_arguments(code='a')} {GOOD}", [None, BAD, None]),
    (f"<reason>{GOOD}</reason>", [None]),
    (f"<reason>one {GOOD} two {GOOD}", [None, None]),
    (f"{GOOD}<answer>\\boxed{{1}}</answer>", [None]),
    (f"<answer>{GOOD}</answer>", [None]),
])
def test_one_call_for_each_tag_in_order(text, statuses):
  calls = _parse(text)
  assert [c.status for c in calls] == statuses
  assert all(bool(c.message) == (c.status is not None) for c in calls)
  assert all(c.turn == 3 for c in calls)


def test_tags_inside_a_string_of_the_code_are_tags():
  """As the server sees them: the body ends at the first closing tag."""
  calls = _parse(_arguments(code="print('</tool_call>')", input=""))
  assert [c.status for c in calls] == [MALFORMED, MALFORMED]


def test_several_calls_keep_their_arguments_apart():
  calls = _parse("".join(
      _arguments(code=f"print({i})", input=str(i)) for i in range(4)))
  assert [c.arguments["code"] for c in calls] == [
      "print(0)", "print(1)", "print(2)", "print(3)"]
  assert [c.arguments["input"] for c in calls] == ["0", "1", "2", "3"]


_PIECES = st.sampled_from([
    "<tool_call>", "</tool_call>", GOOD, _arguments(code=1), "{", "}", '"',
    f'{{"name": "{NAME}", "arguments": ', "<answer>", "\\boxed{", "\x00"])


@hypothesis.settings(max_examples=200, deadline=None, derandomize=True,
                     database=None)
@hypothesis.given(st.lists(st.one_of(_PIECES, st.text(max_size=8)),
                           max_size=8).map("".join))
def test_nothing_raises_and_no_opening_tag_vanishes(text):
  calls = _parse(text)
  assert text.count("<tool_call>") <= len(calls) <= (
      text.count("<tool_call>") + text.count("</tool_call>"))
  for call in calls:
    assert (call.status is None) == (set(call.arguments) == {"code", "input"})
    assert not call.message or call.status in (MALFORMED, UNKNOWN, BAD)


@pytest.mark.parametrize("text, expected", [
    ("<answer>\\boxed{1}</answer>", True),
    ("<answer></answer>", True),
    ("text <answer>1</answer> text", True),
    ("<answer>1", False),
    ("1</answer>", False),
    ("</answer><answer>", False),
    ("<answer>1</answer><answer>2", False),  # cut off while correcting
    ("<answer>1</answer></answer>", True),
    ("\\boxed{1}", False),
    ("", False),
])
def test_has_answer(text, expected):
  assert parsing.has_answer(text) is expected


def test_num_answer_tags():
  assert parsing.num_answer_tags("<answer></answer></answer> a") == (1, 2)
  assert parsing.num_answer_tags("none") == (0, 0)
