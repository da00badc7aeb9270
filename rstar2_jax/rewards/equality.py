r"""The lenient grader's own part: what math-verify would misjudge.

Evaluation compares LaTeX that is no integer (MATH-500, HMMT). math-verify does
that, as a call in the sandbox; but it multiplies the letters of words (`seat`
is `east`), drops the base of numerals, and reads neither repeating decimals nor
`\pm` inside a fraction. These are decided or rewritten here. Nothing is
evaluated, and the time is linear.
"""

from collections.abc import Awaitable, Callable
import re

from rstar2_jax.rewards import grading

# Of an answer; longer ones are not answers, and cost the comparison seconds.
_MAX_CHARS = 2000
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox|textit)\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z][A-Za-z ]*[A-Za-z]")
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_BASE = re.compile(r"([0-9A-Za-z]+)_\{?([0-9]{1,2})\}?")
_REPEATING = re.compile(
    r"(?<![0-9])([0-9]{0,40})\.([0-9]{0,40})\\overline\{([0-9]{1,40})\}")
_PLUS_MINUS = re.compile(
    r"\\d?frac\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\\pm"
    r"([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\{([^{}]*)\}")
_MIN_WORD = 3


async def grade(
    response: str, gold: str,
    verify: Callable[[str, str], Awaitable[bool | None]],
) -> bool | None:
  """Whether the final answer of a response equals `gold`.

  Args:
    response: the model's text, of all turns or of the last.
    gold: LaTeX of any kind.
    verify: (answer, gold) to a verdict of math-verify, isolated and with a
      time limit; None where our infrastructure failed.

  Returns:
    The verdict; None if `verify` gave none.
  """
  box = grading.boxed_answer(grading.last_turn(response))
  if box is None or not box.strip():
    return False
  verdict = decide(box, gold)
  if verdict is not None:
    return verdict
  return await verify(rewrite(box), rewrite(gold))


def decide(answer: str, gold: str) -> bool | None:
  """The verdict where no mathematics is needed; None where it is.

  Args:
    answer: content of the box.
    gold: the reference.
  """
  if len(answer) > _MAX_CHARS:
    return answer.strip() == gold.strip()
  integer, expected = grading.read_integer(answer), grading.read_integer(gold)
  if integer is not None and expected is not None:
    return integer == expected
  word, given = _plain(gold), _plain(answer)
  if _CHOICE.fullmatch(word) and _CHOICE.fullmatch(given):
    return word.strip("()") == given.strip("()")
  is_text = _TEXT.fullmatch(gold.strip()) is not None
  if _WORD.fullmatch(word) and (is_text or len(word) >= _MIN_WORD):
    return " ".join(word.casefold().split()) == (
        " ".join(given.casefold().split()))
  numeral, other = _BASE.fullmatch(word), _BASE.fullmatch(given)
  if numeral and other:
    return numeral.groups() == other.groups()
  if "_" in given and "__" in given:
    return False  # no mathematics has a double underscore; programs do
  return None


def rewrite(text: str) -> str:
  r"""Forms that math-verify does not read, in forms that it does.

  `0.1\overline{6}` becomes a fraction, `\frac{a\pm b}{c}` two of them; the
  dollar sign of an amount goes.
  """
  text = text.replace(r"\$", "")
  text = _REPEATING.sub(_as_fraction, text)
  found = _PLUS_MINUS.fullmatch(text.strip())
  if found:
    a, b, c = found.groups()
    return rf"\frac{{{a}+{b}}}{{{c}}}, \frac{{{a}-{b}}}{{{c}}}"
  return text


def _plain(text: str) -> str:
  return _TEXT.sub(r"\1", text).strip().strip("$").strip()


def _as_fraction(found: re.Match) -> str:
  """0.ab(c) is (abc - ab) over 9...90...0."""
  whole, fixed, repeated = found.groups()
  denominator = int("9" * len(repeated) + "0" * len(fixed))
  numerator = int(whole + fixed + repeated) - int((whole + fixed) or "0")
  return rf"\frac{{{numerator}}}{{{denominator}}}"
