"""The chat protocol as text (paper, section 2.1 and Figure 3).

One system message (general instruction and, in Hermes style, the tool), one
user message (format reminder and problem), then assistant and user turns in
turn. Every assistant turn starts after `<reason>`, which the header contains.
Tool responses stand in a user turn, each in its own tags. History is never
edited: each prompt is the one before with something appended (P04).

`JINJA` is the same protocol as a Hugging Face chat template. It adds no
reminder to user messages and changes no assistant message, so that it renders
histories and other people's conversations, too.
"""

from collections.abc import Mapping, Sequence
import json
from typing import Any

import jinja2
import jinja2.sandbox

TOOL_NAME = "execute_python_code_with_standard_io"

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
MARKS = (IM_START, IM_END, END_OF_TEXT)
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
        "<reason>", "</reason>", "<answer>", "</answer>")

SYSTEM = (
    "A user asks and an assistant solves. The assistant thinks first and then"
    " answers. Thinking is written as <reason> thinking here </reason> and the"
    " answer as <answer> answer here </answer>.")
REMINDER = (
    "Give the answer inside <answer> </answer> tags. The final result is read"
    " from the \\boxed{} in that answer.")

# The paper's Figure 3 schema, with its `return` field.
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": (
            "Run Python code with the given standard input and return what it"
            " prints, or the error message if it fails."),
        "parameters": {
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "description": "The Python code to run.",
                },
                "input": {
                    "type": "string",
                    "description": "What the code reads from standard input.",
                },
            },
            "required": ["code", "input"],
        },
        "return": {
            "type": "string",
            "description": "Standard output, or the error message.",
        },
    },
}

# Wording of Qwen2.5 and Qwen3 (Hermes style), which such models have seen.
_TOOLS_HEAD = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user"
    " query.\n\nYou are provided with function signatures within"
    " <tools></tools> XML tags:\n<tools>")
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function"
    " name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>"
    '\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>")

ASSISTANT_HEAD = f"{IM_START}assistant\n<reason>"
RESPONSE_HEAD = "\n<tool_response>\n"
RESPONSE_TAIL = "\n</tool_response>"
# A call is `<tool_call>` CALL_HEAD code CALL_TAIL `</tool_call>`.
CALL_HEAD = f'\n{{"name": "{TOOL_NAME}", "arguments": {{"code": "'
CALL_TAIL = '", "input": ""}}\n'

JINJA = (
    "{%- if messages[0]['role'] == 'system' -%}\n"
    "  {%- set system, turns = messages[0]['content'], messages[1:] -%}\n"
    "{%- else -%}\n"
    "  {%- set system, turns = " + json.dumps(SYSTEM) + ", messages -%}\n"
    "{%- endif -%}\n"
    "{{- '<|im_start|>system\\n' + system -}}\n"
    "{%- if tools -%}\n"
    "  {{- " + json.dumps(_TOOLS_HEAD) + " -}}\n"
    "  {%- for tool in tools -%}\n"
    "    {{- '\\n' -}}{{- tool | tojson -}}\n"
    "  {%- endfor -%}\n"
    "  {{- " + json.dumps(_TOOLS_TAIL) + " -}}\n"
    "{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- for message in turns -%}\n"
    "  {%- if message['role'] == 'tool' -%}\n"
    "    {%- if loop.first or loop.previtem['role'] != 'tool' -%}\n"
    "      {{- '<|im_start|>user' -}}\n"
    "    {%- endif -%}\n"
    "    {{- '\\n<tool_response>\\n' + message['content']"
    " + '\\n</tool_response>' -}}\n"
    "    {%- if loop.last or loop.nextitem['role'] != 'tool' -%}\n"
    "      {{- '<|im_end|>\\n' -}}\n"
    "    {%- endif -%}\n"
    "  {%- else -%}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n'"
    " + message['content'] -}}\n"
    "    {%- for call in message['tool_calls'] or [] -%}\n"
    "      {%- set call = call['function'] or call -%}\n"
    "      {{- '\\n<tool_call>\\n{\"name\": ' -}}\n"
    "      {{- call['name'] | tojson -}}\n"
    "      {{- ', \"arguments\": ' -}}\n"
    "      {%- if call['arguments'] is string -%}\n"
    "        {{- call['arguments'] -}}\n"
    "      {%- else -%}\n"
    "        {{- call['arguments'] | tojson -}}\n"
    "      {%- endif -%}\n"
    "      {{- '}\\n</tool_call>' -}}\n"
    "    {%- endfor -%}\n"
    "    {{- '<|im_end|>\\n' -}}\n"
    "  {%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "  {{- '<|im_start|>assistant\\n<reason>' -}}\n"
    "{%- endif -%}\n")


# What the user says: the format reminder, then the problem.
USER_HEAD = f"{REMINDER}\nThis is the problem:\n"


def user_content(problem: str) -> str:
  """What the user says about a problem."""
  return USER_HEAD + problem


def system_text(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
  """The system turn, with its end mark and newline."""
  block = ""
  if tools:
    lines = (f"\n{json.dumps(tool, ensure_ascii=False)}" for tool in tools)
    block = _TOOLS_HEAD + "".join(lines) + _TOOLS_TAIL
  return f"{IM_START}system\n{system}{block}{IM_END}\n"


def call_text(code: str, stdin: str = "") -> str:
  """A call of the tool as the assistant writes it."""
  call = {"name": TOOL_NAME, "arguments": {"code": code, "input": stdin}}
  return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def render(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] = (TOOL,),
    add_generation_prompt: bool = False,
) -> str:
  """Renders messages through the Jinja template, in one go.

  Args:
    messages: dicts with `role` and `content`, as Hugging Face has them.
    tools: OpenAI function schemas; empty: no tools block.
    add_generation_prompt: end with the header of an assistant turn.

  Returns:
    The text.
  """
  return _TEMPLATE.render(messages=messages, tools=list(tools),
                          add_generation_prompt=add_generation_prompt)


def _make_template() -> jinja2.Template:
  # As transformers sets it up, so that both render the same text.
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True)
  environment.filters["tojson"] = (
      lambda x: json.dumps(x, ensure_ascii=False))
  return environment.from_string(JINJA)


_TEMPLATE = _make_template()

# Everything before the problem: constant system turn and format reminder.
PROMPT_HEAD = f"{system_text(SYSTEM, (TOOL,))}{IM_START}user\n{USER_HEAD}"
