"""Talk to a policy that runs Python, in the terminal.

    python -m experiments.chat                                # stage 2's policy
    python -m experiments.chat --policy.path=DIR --history
    python -m experiments.chat --policy.path=DIR --rollout.urls=http://HOST:30000
    echo "What is the least common multiple of 20 and 45?" \\
        | python -m experiments.chat

Each line is a problem of its own, as in training; with --history it goes on
with the conversation. /example asks a held-out problem; the laptop's policy
knows problems of those kinds and nothing else. Programs run in the sandbox as
they do in a rollout; the typed result, its time and what the model was shown
are printed. Ctrl-C gives up an answer, and ends at the prompt, as Ctrl-D does.
--seed, --eval.temperature and --rollout.max_response_tokens count as in
evaluation.
"""

from collections.abc import Iterator
import dataclasses
import itertools
import os
import sys
from typing import TextIO

from experiments import config_flags
from experiments import evaluate
from experiments import predecessor
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import types
from rstar2_jax.chat import parsing
from rstar2_jax.chat import template
from rstar2_jax.chat import tool_text

CONFIGS = evaluate.CONFIGS
_DIM, _BOLD, _RED, _GREEN, _PLAIN = (
    f"\033[{code}m" for code in ("2", "1", "31", "32", "0"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How to talk."""

  history: bool = config_fields.field(
      False, "Each line goes on with the conversation, within"
      " --engine.max_seq_len tokens; /new starts another.")
  served: bool = config_fields.field(
      False, "The servers of --rollout.urls have the weights already; of"
      " --policy.path only the tokenizer is read.")


def main(options: Options, argv: list[str]) -> None:
  """Answers line after line."""
  cfg = config_flags.build(argv, CONFIGS)
  path = cfg.policy.path or predecessor.finished_policy(cfg)
  # Here, so that --help and wrong flags are answered without loading JAX.
  from rstar2_jax import assembly  # pylint: disable=g-import-not-at-top
  examples = itertools.cycle(assembly.heldout_prompts(cfg))
  with assembly.open_sampling(cfg, path, served=options.served) as workers:
    screen = Screen(sys.stdout, max_chars=cfg.tool.max_response_chars)
    screen.say(f"{path}; /example asks for you, Ctrl-D ends")
    before = gold = None
    for number, text in enumerate(_lines()):
      if text == "/new":
        before = None
        continue
      if text == "/quit":
        return
      if text == "/example":
        text, gold = _ask(examples, screen)
      elif text.startswith("/"):
        screen.say("/example asks a held-out problem, /new starts another"
                   " conversation, /quit ends")
        continue
      try:
        answer = workers.converse(
            text, before=before, number=number, on_event=screen.show)
      except KeyboardInterrupt:
        screen.say("given up")
        continue
      screen.say(ending(answer, gold))
      gold = None
      if options.history and not answer.is_masked_out:
        before = answer


def _ask(
    examples: Iterator[types.Prompt], screen: "Screen"
) -> tuple[str, str | None]:
  """The next held-out problem and its answer."""
  example = next(examples, None)
  if example is None:
    raise errors.UserError("--eval.num_problems=0: there are no examples")
  screen.say(example.problem)
  return example.problem, example.answer


def _lines() -> Iterator[str]:
  """What the person says, without empty lines; ends with the input."""
  is_terminal = sys.stdin.isatty()
  if is_terminal:
    import readline  # pylint: disable=g-import-not-at-top,unused-import
    del readline  # its import gives `input` editing and history
  while True:
    try:
      line = input("\n> ") if is_terminal else sys.stdin.readline()
    except (EOFError, KeyboardInterrupt):
      print()
      return
    if not is_terminal and not line:
      return
    if line.strip():
      if not is_terminal:
        print(f"\n> {printable(line.strip())}", flush=True)
      yield line.strip()


class Screen:
  """Prints turns and results, with colors on a terminal."""

  def __init__(self, file: TextIO, *, max_chars: int):
    """Takes the file and how much the model sees of a result [characters]."""
    self._file = file
    self._max_chars = max_chars
    self._has_color = file.isatty() and "NO_COLOR" not in os.environ

  def show(self, event: str | types.ToolResult) -> None:
    """Prints a turn of the model, or what came of a call."""
    if isinstance(event, types.ToolResult):
      self._print_result(event)
      return
    # The header of a turn, which the model did not write, opens its reasoning.
    for text, is_code in turn_parts(f"<reason>{event}"):
      if is_code:
        self._print("\n".join(f"  | {line}" for line in text.splitlines()),
                    _BOLD)
      elif text.strip():
        self._print(text.strip("\n"))

  def say(self, text: str) -> None:
    """Prints a remark that is not the model's."""
    self._print(f"[{text}]", _DIM)

  def _print_result(self, result: types.ToolResult) -> None:
    is_good = result.status is types.ToolStatus.SUCCESS
    self._print(f"  {result.status}, {result.wall_ms:.1f} ms",
                _GREEN if is_good else _RED)
    shown = tool_text.render(result, max_chars=self._max_chars)
    self._print("\n".join(f"  {line}" for line in shown.splitlines()))

  def _print(self, text: str, color: str = "") -> None:
    text = printable(text)
    if self._has_color and color:
      text = f"{color}{text}{_PLAIN}"
    print(text, file=self._file, flush=True)


def turn_parts(text: str) -> list[tuple[str, bool]]:
  """A turn's text cut at its calls: (text, whether it is a call's program).

  Programs are shown as programs, not as JSON strings; calls that cannot be
  read stay as they are.
  """
  text = text.replace(template.IM_END, "").replace(template.END_OF_TEXT, "")
  parts: list[tuple[str, bool]] = []
  for call in parsing.parse_tool_calls(text, turn=0):
    if call.status is None:
      before, _, text = text.partition(f"<tool_call>{call.raw}</tool_call>")
      program = call.arguments["code"]
      if call.arguments["input"]:
        program += f"\n# standard input:\n{call.arguments['input']}"
      parts += [(before, False), (program, True)]
  return [*parts, (text, False)]


def ending(trajectory: types.Trajectory, gold: str | None = None) -> str:
  """How an answer ended, in a line; says what to do where it is no answer.

  Args:
    trajectory: the answer.
    gold: what is right, if that is known.
  """
  hints = {
      types.StopReason.MAX_TOKENS: "; more room:"
      " --rollout.max_response_tokens, --engine.max_seq_len",
      types.StopReason.MAX_TURNS: "; more turns: --rollout.max_turns",
      types.StopReason.INFRA_ERROR: "; the server or the sandbox did not answer"
      " in time, see above",
  }
  t = trajectory
  if not t.num_turns and t.stop_reason is types.StopReason.MAX_TOKENS:
    return ("no room to answer: what was said fills --engine.max_seq_len"
            + _right(gold))
  return (f"{t.stop_reason}: {t.num_turns} turns, {t.num_sampled_tokens} tokens"
          f" in {t.timings['wall_s']:.1f} s{hints.get(t.stop_reason, '')}"
          + _right(gold))


def _right(gold: str | None) -> str:
  return f"; right is {gold}" if gold is not None else ""


def printable(text: str) -> str:
  """Text that cannot command a terminal: control characters are spelled out.

  Programs and models are not trusted; an escape sequence can retitle windows,
  hide text or answer on the keyboard's behalf.
  """
  return "".join(c if c in "\n\t" or c.isprintable()
                 else c.encode("unicode_escape").decode() for c in text)


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, CONFIGS)
