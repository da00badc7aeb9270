"""What the model is shown of a tool result.

Paper form (Figures 10 and 11): on success the bare output, and without output
the value of the final expression, as IPython would show it; on failure `tool
call failed`, a blank line and the reason. Instead of the whole traceback the
reason is its last line with the line number in the program. The same result
always gives the same text: it holds no times and no paths.
"""

import re

from rstar2_jax import types

FAILED = "tool call failed\n\nreason: "
TRUNCATED = "...(truncated)..."

_REASONS = {
    types.ToolStatus.TIMEOUT: "time limit exceeded",
    types.ToolStatus.MEMORY_LIMIT: "memory limit exceeded",
    types.ToolStatus.OUTPUT_LIMIT: "output limit exceeded",
    types.ToolStatus.KILLED: "the program was killed",
}
_LINE = re.compile(r'^ *File "main\.py", line (\d+)', re.MULTILINE)
_UNINDENTED = re.compile(r"^\S.*", re.MULTILINE)
# Python prints suggestions or not depending on its version and on how the
# traceback was printed; without them the text depends on the program alone.
_SUGGESTION = re.compile(r"\. Did you (?:mean|forget).*")


def render(result: types.ToolResult, *, max_chars: int) -> str:
  """The text between the response tags.

  Args:
    result: how the call went.
    max_chars: longer texts lose their middle [characters]; the mark that says
      so comes on top, as in the original.

  Returns:
    One or more lines without a newline at the end.
  """
  if result.status is types.ToolStatus.SUCCESS:
    text = result.stdout.rstrip("\n") or result.value or "(no output)"
  else:
    text = FAILED + _reason(result)
    if result.stdout.strip():
      text += f"\n\nstdout: {result.stdout.rstrip()}"
  return cut_middle(text, max_chars)


def cut_middle(text: str, max_chars: int) -> str:
  """The text, or its two ends with a mark between [characters]."""
  if len(text) <= max_chars:
    return text
  head = max_chars // 2
  tail = max_chars - head
  return text[:head] + TRUNCATED + text[len(text) - tail:]


def _reason(result: types.ToolResult) -> str:
  if result.status in _REASONS:
    return _REASONS[result.status]
  if result.message:
    return result.message
  error = _last_exception(result.stderr)
  if error:
    return error
  return f"exit code {result.exit_code}"


def _last_exception(stderr: str) -> str:
  """`line N: Type: message` from a traceback; else the last line; else ''."""
  frames = list(_LINE.finditer(stderr))
  # Frames and source lines are indented, the exception after them is not.
  found = frames and _UNINDENTED.search(stderr, frames[-1].end())
  if not found:
    return stderr.strip().rpartition("\n")[2]
  error = _SUGGESTION.sub("", found.group())
  return f"line {frames[-1].group(1)}: {error}"
