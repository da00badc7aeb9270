"""Conversations to imitate: messages by role, with or without the tool."""

import dataclasses
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclasses.dataclass(frozen=True)
class Message:
  """What one side said.

  An assistant's `content` is the whole turn, tool-call tags included, after
  the assistant header and before the end mark. A tool's `content` is the text
  between the response tags.
  """

  role: Role
  content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conversation:
  """Messages in order."""

  id: str
  messages: tuple[Message, ...]
  tools: tuple[dict, ...] = ()  # OpenAI function schemas; empty: no tools
  source: str = ""
