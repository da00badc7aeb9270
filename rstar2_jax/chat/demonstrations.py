"""Demonstrations as conversations in the protocol's text."""

from rstar2_jax.chat import template
from rstar2_jax.chat import tool_text
from rstar2_jax.data import conversations
from rstar2_jax.data import demonstrations


def conversation(
    demonstration: demonstrations.Demonstration, *, max_response_chars: int
) -> conversations.Conversation:
  """Renders a demonstration, word for word as a rollout would read.

  Args:
    demonstration: the record.
    max_response_chars: cut of tool texts, as in rollouts [characters].

  Returns:
    The conversation, first message the user's.
  """
  messages = [conversations.Message(
      "user", template.user_content(demonstration.prompt.problem))]
  for turn in demonstration.turns:
    messages += [
        conversations.Message(
            "assistant", f"<reason>{turn.reason}</reason>\n"
            f"{template.call_text(turn.code)}"),
        conversations.Message("tool", tool_text.render(
            turn.result, max_chars=max_response_chars))]
  messages.append(conversations.Message(
      "assistant", "<reason></reason>\n<answer>"
      f"\\boxed{{{demonstration.answer}}}</answer>"))
  return conversations.Conversation(
      id=demonstration.prompt.id, messages=tuple(messages),
      tools=(dict(template.TOOL),), source=demonstration.prompt.source)
