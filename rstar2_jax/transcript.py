"""A trajectory as text for people."""

from rstar2_jax import types

_RULE = "=" * 78


def render(trajectory: types.Trajectory, *, is_trained: bool = False) -> str:
  """Everything that happened, in order.

  Args:
    trajectory: any.
    is_trained: whether it was among those trained on.

  Returns:
    Text that ends with a newline: facts, problem, then turns and tool results.
  """
  t = trajectory
  facts = [
      f"prompt {t.prompt.id}  sample {t.sample}"
      f"  source {t.prompt.source or '-'}"
      f"  level {t.prompt.level}",
      f"reward {t.reward}  stop {t.stop_reason}  turns {t.num_turns}"
      f"  response tokens {t.num_response_tokens}"
      f" ({t.num_sampled_tokens} sampled)"
      f"  trained on {'yes' if is_trained else 'no'}",
      f"gold answer {t.prompt.answer}",
  ]
  parts = [_RULE, *facts, _RULE, f"[problem] {t.prompt.problem}"]
  results = list(zip(t.tool_calls, t.tool_results, strict=False))
  for turn, text in enumerate(t.turn_texts):
    parts.append(f"[assistant, turn {turn}] {text}")
    parts += [_tool(result) for call, result in results if call.turn == turn]
  return "\n".join(parts) + "\n"


def _tool(result: types.ToolResult) -> str:
  said = "\n".join(
      text.rstrip("\n") for text in (
          result.stdout, result.value, result.stderr, result.message) if text)
  return f"[tool: {result.status}, {result.wall_ms:.1f} ms] {said}"
