"""Demonstrations for SFT: format and tool use, not reasoning.

Like an unfiltered tool-use corpus (paper, section 4.1: non-reasoning SFT):
some programs are slips, which answer a neighboring question, and the answer is
then what the tool printed, hence wrong; some first calls fail and the next turn
repairs them. What is right is left for reinforcement learning to find out.

A demonstration is a record of turns; the chat room renders it into text.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import hashlib
import io
import random
import traceback

from rstar2_jax import types
from rstar2_jax.data import problems

# Said before a call and before an answer; a few words at most.
_PLANS = ("", "Use Python.", "Compute it.")
_REPAIRS = ("", "Fix the error.", "Try again.")
_FILENAME = "main.py"  # as the sandbox calls a program


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolTurn:
  """An assistant turn with one call, and how the call went."""

  reason: str
  code: str
  result: types.ToolResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demonstration:
  """A conversation that ends with an answer, not always a right one."""

  prompt: types.Prompt
  turns: tuple[ToolTurn, ...]
  answer: str  # what the last call printed

  @property
  def is_correct(self) -> bool:
    """Whether the answer is the problem's."""
    return self.answer == self.prompt.answer


def demonstration(
    seed: int,
    index: int,
    *,
    families: Sequence[str] = (),
    max_level: int,
    slip_rate: float,
    fault_rate: float,
) -> Demonstration:
  """The demonstration at `index`, about a training problem.

  Args:
    seed: of the stream; the problems differ from those of RL with this seed.
    index: position in the stream, from 0.
    families: names of families; empty: all.
    max_level: highest difficulty, 1 to 3.
    slip_rate: share whose program answers a neighboring question.
    fault_rate: share whose first call fails and is repaired.

  Returns:
    A demonstration that depends on nothing but the arguments.
  """
  prompt, instance = problems.draw(
      "train", _seed("demonstration problems", seed), index,
      families=families, max_level=max_level)
  rng = random.Random(_seed("demonstration", seed, index))
  is_slip = rng.random() < slip_rate
  is_fault = rng.random() < fault_rate
  code = rng.choice(instance.slips) if is_slip else instance.program
  turns = []
  if is_fault:
    faulty = rng.choice(faults(code))
    turns.append(ToolTurn(
        reason=rng.choice(_PLANS), code=faulty, result=execute(faulty)))
  result = execute(code)
  turns.append(ToolTurn(
      reason=rng.choice(_REPAIRS if is_fault else _PLANS), code=code,
      result=result))
  return Demonstration(prompt=prompt, turns=tuple(turns),
                       answer=result.stdout.strip())


def faults(code: str) -> tuple[str, ...]:
  """Versions of a program that fail when they are run.

  Args:
    code: a program of this room: it prints once, in its last line.

  Returns:
    At least two programs: a parenthesis left out, a name misspelled, and,
    where the program has one, its import forgotten.
  """
  head, _, tail = code.rpartition("print(")
  found = [code[:-1], f"{head}pint({tail}"]
  if code.startswith("import math\n"):
    found.append(code.removeprefix("import math\n"))
  return tuple(found)


@functools.lru_cache(maxsize=4096)
def execute(code: str) -> types.ToolResult:
  """Runs a program of this room in this process, with the sandbox's result.

  Only for programs that the families made: nothing contains them here. A test
  compares with the real sandbox.

  Args:
    code: Python source.

  Returns:
    Its status, stdout and stderr; times are 0.
  """
  stdout = io.StringIO()
  try:
    with contextlib.redirect_stdout(stdout):
      exec(compile(code, _FILENAME, "exec"), {"__name__": "__main__"})  # pylint: disable=exec-used
  except SyntaxError as e:
    return types.ToolResult(status=types.ToolStatus.SYNTAX_ERROR, exit_code=1,
                            stderr="".join(traceback.format_exception_only(e)))
  except Exception as e:  # pylint: disable=broad-exception-caught
    # The first frame is this function's.
    rest = e.__traceback__.tb_next if e.__traceback__ else None
    trace = traceback.format_exception(type(e), e, rest)
    return types.ToolResult(status=types.ToolStatus.RUNTIME_ERROR, exit_code=1,
                            stdout=stdout.getvalue(), stderr="".join(trace))
  return types.ToolResult(status=types.ToolStatus.SUCCESS, exit_code=0,
                          stdout=stdout.getvalue())


def _seed(*parts: int | str) -> int:
  text = "\x1f".join(map(str, parts))
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big")
