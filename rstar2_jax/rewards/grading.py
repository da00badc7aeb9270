r"""The strict grader: does the final answer equal an integer? (Paper, Eq. 3.)

1. The last assistant turn; what a tool printed is not in it.
2. Its last `<answer>`, which must be closed.
3. In that the last `\boxed{}` (of nested ones the innermost).
4. The box holds one integer literal, alone but for forms of writing that leave
   no doubt (separators, unit, `\text{}`, a fraction that divides ...).

Nothing is evaluated, nothing raises, and the time is linear in the text. The
paper uses math-verify; its training answers are integers, for which exact
comparison has no false accepts (the released grader takes 11000 for 110).
"""

import re

_ANSWER, _ANSWER_END = "<answer>", "</answer>"
_BOXES = (r"\boxed{", r"\fbox{")

_ALIKE = str.maketrans({"\u2212": "-"} | {
    chr(0xFF10 + i): str(i) for i in range(10)})
_BLANKS = (" \t\n\r\f\v\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
           "\u2007\u2008\u2009\u200a\u202f\u205f\u3000")
# Possessive (`*+`): no backtracking, so the time stays linear.
_SPACE = rf"(?:[{_BLANKS}]|\\[,;!])*+"
_LEFT_EDGE = re.compile(_SPACE)

# One to three digits, then groups of exactly three, all with one separator.
_DIGITS = (r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:\{,\}[0-9]{3})+"
           r"|[0-9]{1,3}(?:\\,[0-9]{3})+|[0-9]{1,3}(?:,\\![0-9]{3})+|[0-9]+)")
_LITERAL = rf"[+-]?{_DIGITS}(?:\.0*)?"
_PLAIN = re.compile(r"[+-]?[0-9]+")
_NOT_DIGITS = re.compile(r"[^0-9]")

_UNIT_NAMES = """
mm cm dm km nm inch inches ft foot feet yd yard yards mi mile miles
meter meters metre metres centimeter centimeters centimetre centimetres
millimeter millimeters kilometer kilometers kilometre kilometres
mg kg gram grams kilogram kilograms lb lbs pound pounds oz ounce ounces ton
tons ml liter liters litre litres gallon gallons
sec second seconds min minute minutes hr hrs hour hours day days week weeks
month months year years mph cent cents dollar dollars euro euros
unit units degree degrees deg percent
""".split()
# Single letters are variables in plain text, units in \text{} only.
_LETTERS = ["m", "g", "s", "h", "L", "l"]
_QUALIFIER = r"(?:(?:square|cubic|sq\.?|cu\.?) +)?"
_POWER = r"(?:\^[23]|\^\{[23]\}|[\u00b2\u00b3])?"


def _unit_pattern() -> str:
  names = "|".join(sorted(_UNIT_NAMES, key=len, reverse=True))
  letters = "|".join(_LETTERS)
  plain = rf"{_QUALIFIER}(?:{names})(?: +(?:squared|cubed))?\.?"
  boxed = (rf"\\(?:text|mathrm)\{{{_SPACE}(?:{_QUALIFIER}(?:{names}|{letters})"
           rf"(?: +(?:squared|cubed))?\.?{_POWER}|\\?%){_SPACE}\}}")
  degree = r"\^\\circ|\^\{\\circ\}|\u00b0"
  return rf"(?:{degree}|\\?%|(?:{plain}|{boxed}){_POWER})"


_UNIT = _unit_pattern()
_INTEGER = re.compile(rf"({_LITERAL})(?:{_SPACE}{_UNIT})?")
_EQUATION = re.compile(rf"[A-Za-z]{_SPACE}={_SPACE}({_LITERAL})")
_SLASH = re.compile(
    rf"([+-]?{_DIGITS}){_SPACE}/{_SPACE}([+-]?{_DIGITS})")
_FRACTION = re.compile(
    rf"(-?)\\d?frac\{{{_SPACE}([+-]?{_DIGITS}){_SPACE}\}}"
    rf"\{{{_SPACE}([+-]?{_DIGITS}){_SPACE}\}}")
_WRAPPER = re.compile(r"\\(?:text|mathrm|textbf)\{([^{}]*(?:\{,\}[^{}]*)*)\}")
# Python refuses to convert longer literals; division is not linear either.
_MAX_FRACTION_DIGITS = 1000


def grade(response: str, gold: str) -> bool:
  """Whether the final answer of a response is the integer `gold`.

  Args:
    response: the model's text, of all turns or of the last, with or without
      tool output and chat marks.
    gold: an integer in plain digits.

  Returns:
    True if and only if the answer is that integer; False for a reference
    that is no integer.
  """
  box = boxed_answer(last_turn(response))
  if box is None:
    return False
  answer = read_integer(box)
  gold = gold.strip()
  # Of another reference the digits alone would be compared: 12 for 1/2.
  return (answer is not None and _PLAIN.fullmatch(gold) is not None
          and answer == _canonical(gold))


def last_turn(response: str) -> str:
  """What follows the last tool response and the last assistant header."""
  response = response[_end_of_last(response, "</tool_response>"):]
  return response[_end_of_last(response, "<|im_start|>assistant"):]


def boxed_answer(turn: str) -> str | None:
  r"""Content of the last box in the last answer; None if there is none."""
  start = turn.rfind(_ANSWER)
  end = turn.find(_ANSWER_END, start)
  if start < 0 or end < 0:
    return None
  answer = turn[start + len(_ANSWER):end]
  start = max(_end_of_last(answer, box) for box in _BOXES)
  if not start:
    return None
  close = _closing_brace(answer, start)
  return None if close is None else answer[start:close]


def read_integer(text: str) -> str | None:
  r"""Reads the content of a box as one integer.

  Args:
    text: LaTeX, e.g. `1{,}024`, `18\text{ cm}`, `-\frac{36}{2}`, `x = 18`.

  Returns:
    The integer in plain digits without leading zeros or plus, of any length;
    None if the text is anything else.
  """
  text = _unwrap(text.translate(_ALIKE))
  if found := _INTEGER.fullmatch(text) or _EQUATION.fullmatch(text):
    return _canonical(found.group(1))
  if found := _SLASH.fullmatch(text):
    return _quotient("", *found.groups())
  if found := _FRACTION.fullmatch(text):
    return _quotient(*found.groups())
  return None


def _end_of_last(text: str, mark: str) -> int:
  """Index after the last occurrence of a mark; 0 without one."""
  start = text.rfind(mark)
  return start + len(mark) if start >= 0 else 0


def _closing_brace(text: str, start: int) -> int | None:
  """Index of the brace that closes the one before `start`."""
  depth = 1
  for found in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
    if found.group() == "{":
      depth += 1
    elif found.group() == "}":
      depth -= 1
      if not depth:
        return found.start()
  return None


def _unwrap(text: str) -> str:
  r"""Takes off white space, then one `$ $` and one `\text{}` around all."""
  text = _strip(text)
  for _ in range(2):
    if len(text) > 2 and text[0] == text[-1] == "$" and text.count("$") == 2:
      text = _strip(text[1:-1])
    elif found := _WRAPPER.fullmatch(text):
      text = _strip(found.group(1))
  return text


def _strip(text: str) -> str:
  edge = _LEFT_EDGE.match(text)
  start, end = edge.end() if edge else 0, len(text)
  while end > start:
    if text[end - 1] in _BLANKS:
      end -= 1
    elif text[end - 2:end] in (r"\,", r"\;", r"\!"):
      end -= 2
    else:
      break
  return text[start:end]


def _canonical(literal: str) -> str:
  """Sign and digits without separators, leading zeros and decimal zeros."""
  digits = _NOT_DIGITS.sub("", literal.partition(".")[0]).lstrip("0") or "0"
  return f"-{digits}" if literal[0:1] == "-" and digits != "0" else digits


def _quotient(sign: str, numerator: str, denominator: str) -> str | None:
  """The quotient if it is an integer."""
  if len(numerator) + len(denominator) > _MAX_FRACTION_DIGITS:
    return None
  if sign and (numerator[0] in "+-" or denominator[0] in "+-"):
    return None  # two signs would have to be evaluated
  over, under = int(_canonical(numerator)), int(_canonical(denominator))
  if not under or over % under:
    return None
  return str(-(over // under) if sign else over // under)
