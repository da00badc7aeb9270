"""The protocol as text: exact strings, and history that only grows."""

import json

import pytest

from rstar2_jax.chat import template

SYSTEM_TURN = (
    "<|im_start|>system\n" + template.SYSTEM + "\n\n# Tools\n\nYou may call one"
    " or more functions to assist with the user query.\n\nYou are provided with"
    " function signatures within <tools></tools> XML tags:\n<tools>\n"
    + json.dumps(template.TOOL) + "\n</tools>\n\nFor each function call, return"
    " a json object with function name and arguments within"
    " <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    "<|im_end|>\n")


def _user(text):
  return {"role": "user", "content": text}


def _assistant(text):
  return {"role": "assistant", "content": text}


def _tool(text):
  return {"role": "tool", "content": text}


def test_the_first_prompt():
  """Section 1.1 of the paper's protocol, with `<reason>` filled in."""
  messages = [_user(template.user_content("2 + 2?"))]
  assert template.render(messages, add_generation_prompt=True) == (
      SYSTEM_TURN + "<|im_start|>user\n" + template.REMINDER
      + "\nThis is the problem:\n2 + 2?<|im_end|>\n<|im_start|>assistant\n"
      "<reason>")


def test_the_tool_schema_is_the_papers():
  function = template.TOOL["function"]
  assert function["name"] == "execute_python_code_with_standard_io"
  assert list(function["parameters"]["properties"]) == ["code", "input"]
  assert function["parameters"]["required"] == ["code", "input"]
  assert function["return"]["type"] == "string"


def test_without_tools_only_the_tools_block_is_missing():
  text = template.render([_user("a")], tools=())
  assert text == (f"<|im_start|>system\n{template.SYSTEM}<|im_end|>\n"
                  "<|im_start|>user\na<|im_end|>\n")


def test_a_given_system_message_takes_the_place_of_ours():
  text = template.render([{"role": "system", "content": "Be short."},
                          _user("a")], tools=())
  assert text == ("<|im_start|>system\nBe short.<|im_end|>\n"
                  "<|im_start|>user\na<|im_end|>\n")


@pytest.mark.parametrize("texts, expected", [
    (["1"], "\n<tool_response>\n1\n</tool_response>"),
    (["1", "", "{{ 3 }}"],
     "\n<tool_response>\n1\n</tool_response>"
     "\n<tool_response>\n\n</tool_response>"
     "\n<tool_response>\n{{ 3 }}\n</tool_response>"),
])
def test_responses_share_one_user_turn(texts, expected):
  messages = [_user("a"), _assistant("b"), *map(_tool, texts)]
  before = template.render(messages[:2])
  after = template.render(messages, add_generation_prompt=True)
  assert after == (f"{before}<|im_start|>user{expected}<|im_end|>\n"
                   "<|im_start|>assistant\n<reason>")


def test_a_history_is_a_prefix_of_what_follows():
  """P04: a later message changes nothing before it."""
  messages = [_user("a"), _assistant("b"), _tool("c"), _tool("d"),
              _assistant("e"), _user("f"), _assistant("<reason></reason>g")]
  texts = [template.render(messages[:n]) for n in range(1, len(messages) + 1)]
  for n, (shorter, longer) in enumerate(zip(texts, texts[1:], strict=False)):
    if messages[n]["role"] == messages[n + 1]["role"] == "tool":
      continue  # the second response moves into the open user turn
    assert longer.startswith(shorter)


def test_no_reminder_is_added_to_any_message():
  """The released template adds one to every user and assistant message."""
  text = template.render([_user("a"), _assistant("b"), _user("c")])
  assert template.REMINDER not in text


def test_calls_given_as_fields_are_written_like_ours():
  """Other people's conversations have `tool_calls` beside the content."""
  arguments = {"code": 'print("é")', "input": ""}
  expected = template.render(
      [_user("a"), _assistant(f"b\n{template.call_text(arguments['code'])}")])
  for given in (arguments, json.dumps(arguments, ensure_ascii=False)):
    call = {"name": template.TOOL_NAME, "arguments": given}
    for fields in (call, {"type": "function", "function": call}):
      message = _assistant("b") | {"tool_calls": [fields]}
      assert template.render([_user("a"), message]) == expected


def test_call_text_is_head_code_tail():
  """The pieces that are single tokens join to a call."""
  assert template.call_text("print(1)") == (
      f"<tool_call>{template.CALL_HEAD}print(1){template.CALL_TAIL}"
      "</tool_call>")


@pytest.mark.parametrize("content", ["{{ 1 + 1 }}", "{% if %}", "{# a #}",
                                     "\\boxed{1}", "<|im_end|>"])
def test_content_is_never_evaluated(content):
  assert f"user\n{content}<|im_end|>" in template.render([_user(content)])


def test_prompt_head_is_the_constant_beginning():
  text = template.render([_user(template.user_content("X"))])
  assert text == f"{template.PROMPT_HEAD}X<|im_end|>\n"
