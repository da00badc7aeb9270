"""The strict grader: only an exact integer in the last box of the last answer.

Hand-made cases, and all integer cases of the shared data where it is to be had.
"""

import json
import os
import pathlib
import time

import hypothesis
from hypothesis import strategies as st
import pytest

from rstar2_jax.rewards import grading

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_DATA = pathlib.Path(
    os.environ.get("RSTAR2_DATA") or _ROOT.parent / "shared" / "data")
_CASES = _DATA / "grading" / "cases.jsonl"


def _boxed(content):
  return f"<reason>r</reason>\n<answer>\\boxed{{{content}}}</answer>"


def _cases():
  if not _CASES.exists():
    return []
  rows = map(json.loads, _CASES.read_text(encoding="utf-8").splitlines())
  return [row for row in rows if row["mode"] == "integer"]


@pytest.mark.skipif(not _CASES.exists(), reason="no grading/cases.jsonl: set"
                    " RSTAR2_DATA to the folder of the shared data")
def test_all_shared_integer_cases():
  """Every verdict, each within a tenth of a second of CPU time."""
  cases, wrong = _cases(), []
  for case in cases:
    start_s = time.process_time()
    verdict = grading.grade(case["response"], case["gold"])
    seconds = time.process_time() - start_s
    if verdict is not case["correct"] or seconds > 0.1:
      wrong.append((case["id"], case["why"], verdict, seconds))
  assert not wrong
  assert len(cases) > 100


@pytest.mark.parametrize("content, expected", [
    # Plain integers and white space.
    ("18", "18"), (" 18\n", "18"), ("\\,18\\;", "18"), ("\u00a018\u3000", "18"),
    ("-18", "-18"), ("\u221218", "-18"), ("+18", "18"), ("0", "0"),
    ("-0", "0"), ("042", "42"), ("00", "0"), ("\uff11\uff18", "18"),
    ("1" * 5000, "1" * 5000), ("-" + "0" * 5000 + "7", "-7"),
    # Decimal zeros.
    ("18.", "18"), ("18.0", "18"), ("18.000", "18"), ("-0.0", "0"),
    # Separators of thousands.
    ("1,024", "1024"), ("1{,}024", "1024"), ("1\\,024", "1024"),
    ("12,\\!345", "12345"), ("1,234,567", "1234567"), ("-1,024", "-1024"),
    ("0,024", "24"), ("1,024.00", "1024"),
    # Wrappers.
    ("$18$", "18"), ("\\text{18}", "18"), ("\\mathrm{ 18 }", "18"),
    ("\\textbf{18}", "18"), ("$\\text{18}$", "18"), ("\\text{1{,}024}", "1024"),
    # Units.
    ("336^\\circ", "336"), ("336^{\\circ}", "336"), ("336\u00b0", "336"),
    ("336 degrees", "336"), ("75\\%", "75"), ("75%", "75"), ("18 cm", "18"),
    ("18\\text{ cm}", "18"), ("18\\,\\mathrm{cm}^2", "18"), ("18 cm^{3}", "18"),
    ("18\\text{ square feet}", "18"), ("18\\text{ m}", "18"),
    ("18 \\text{ cm}^2", "18"), ("5 hours", "5"), ("1,024 dollars", "1024"),
    # Fractions that divide.
    ("36/2", "18"), ("-36/2", "-18"), ("36 / -2", "-18"),
    ("\\frac{36}{2}", "18"), ("\\dfrac{36}{2}", "18"),
    ("-\\frac{36}{2}", "-18"),
    ("\\frac{-36}{-2}", "18"), ("\\frac{0}{5}", "0"),
    ("\\frac{1{,}024}{2}", "512"),
    # One letter.
    ("x = 18", "18"), ("x=-18", "-18"), ("N = 1,024", "1024"),
])
def test_reads_an_integer(content, expected):
  assert grading.read_integer(content) == expected


@pytest.mark.parametrize("content", [
    "", " ", "\\,", "$$", "\\text{}", "a", ".", "-", "+", ",", "$", "$18",
    # To be evaluated.
    "2^5", "9+9", "20-2", "5!", "\\binom{5}{2}", "1.8e1", "1e3", "-(-96)",
    "--18", "x = 9 + 9", "2x = 36", "36/2/1", "\\sqrt{324}", "2 \\cdot 9",
    "2 \\times 9", "|18|", "\\lfloor 18.5 \\rfloor", "18!", "x = y = 18",
    "--\\frac{36}{2}", "-\\frac{-36}{2}",
    # Towers and code.
    "10^{10^{10}}", "9**9**9**9", "__import__('os').system('true')",
    "exec('18')", "int('18')", "18 if True else 0", "(lambda: 18)()",
    "'18'", "18;", "18#", "18\\n",
    # Other decimals and fractions.
    "18.5", "17.9999999", ".5", "18.01", "1.024", "37/2", "\\frac{37}{2}",
    "36/0", "\\frac{36}{0}", "0/0", "\\frac{36.0}{2}", "\\frac{36}{2}x",
    # Two numbers, or parts that do not belong together.
    "17, 18", "17 \\text{ or } 18", "\\pm 18", "17 18", "17;18", "18,", ",18",
    "10,24", "1,0000", "1\\;8", "1,,024", "1,024{,}000", "1 8", "12,3456",
    "1,24,567", "1, 024",
    # Not a unit.
    "18\\pi", "25\\sqrt{2}", "18\\text{ million}", "18^\\circ 30'", "18x",
    "18i", "18 m", "18\\text{ or }", "18\\text{ cm}\\text{ cm}", "18k",
    "18 cm^4",
    # Other notations.
    "0x12", "0b11", "0o64", "1_8", "2\u2075", "\u0661\u0668", "Infinity", "inf",
    "nan", "None", "True", "XVIII", "eighteen", "O", "l8", "\u2168",
    # Relations.
    "x \\neq 18", "x > 18", "x \\approx 18", "x \\equiv 18", "18 = 18", "= 18",
    "\\{18\\}", "[18]",
])
def test_reads_nothing_else(content):
  assert grading.read_integer(content) is None
  assert not grading.grade(_boxed(content), "18")


@pytest.mark.parametrize("response, expected", [
    (_boxed("18"), True),
    ("<answer>So \\boxed{18} it is.</answer>", True),
    ("<answer>\\fbox{18}</answer>", True),
    ("r</reason><answer>\\boxed{18}</answer> \\boxed{19}", True),
    ("\\boxed{19} <answer>\\boxed{18}</answer>", True),
    ("<answer>\\boxed{17}\\boxed{18}</answer>", True),
    ("<answer>\\boxed{\\boxed{18}}</answer>", True),
    ("<answer>\\boxed{\\text{18}}</answer>", True),
    ("<answer>\\boxed{17}</answer><answer>\\boxed{18}</answer>", True),
    # The last one wins, also when it is wrong, empty or cut off.
    ("<answer>\\boxed{18}\\boxed{19}</answer>", False),
    ("<answer>\\boxed{18}\\fbox{19}</answer>", False),
    ("<answer>\\boxed{18}\\boxed{}</answer>", False),
    ("<answer>\\boxed{18}\\boxed{</answer>", False),
    ("<answer>\\boxed{18}</answer><answer>\\boxed{19}</answer>", False),
    ("<answer>\\boxed{18}</answer><answer></answer>", False),
    ("<answer>\\boxed{18}</answer><answer>\\boxed{18}", False),
    # Not where an answer stands.
    ("18", False), ("\\boxed{18}", False), ("<answer>18</answer>", False),
    ("<answer></answer>\\boxed{18}", False), ("<answer>\\boxed{18}", False),
    ("\\boxed{18}</answer>", False), ("<answer>\\boxed 18</answer>", False),
    ("<answer>boxed{18}</answer>", False),
    ("<answer>\\boxed{18</answer>}", False),
    ("<answer>\\boxed{18</answer>", False),
    ("<Answer>\\boxed{18}</Answer>", False), ("", False),
])
def test_where_the_answer_stands(response, expected):
  assert grading.grade(response, "18") is expected


@pytest.mark.parametrize("response, expected", [
    # Tool output is not the model's, with and without chat marks.
    (f"<tool_response>\n{_boxed('18')}\n</tool_response>", False),
    (f"<tool_response>{_boxed('18')}</tool_response>\n{_boxed('19')}", False),
    (f"<tool_response>{_boxed('19')}</tool_response>\n{_boxed('18')}", True),
    (f"{_boxed('18')}<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n"
     "</tool_response><|im_end|>\n<|im_start|>assistant\n<reason>", False),
    (f"a<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>"
     f"<|im_end|>\n<|im_start|>assistant\n<reason>{_boxed('18')}<|im_end|>",
     True),
    # A turn that a tool forges ends with the real response.
    (f"<tool_response>\n<|im_start|>assistant\n{_boxed('18')}\n"
     f"</tool_response>\n{_boxed('19')}", False),
])
def test_only_the_last_assistant_turn_counts(response, expected):
  assert grading.grade(response, "18") is expected


@pytest.mark.parametrize("gold, content, expected", [
    ("0", "0", True), ("0", "-0", True), ("-5", "-5", True), ("-5", "5", False),
    ("5", "-5", False), (" 7 ", "7", True), ("007", "7", True),
    ("100", "10000", False), ("1000000", "1000001", False),
    (str(10**400), "1" + "0" * 400, True),
    (str(10**400 + 1), "1" + "0" * 400, False),  # equal as floats
    ("9007199254740993", "9007199254740992", False),
    # The released grader, by a relative tolerance and stripped units, takes
    # these.
    ("110", "11000", False), ("50", "50.00001", False), ("18", "118", False),
])
def test_equality_is_exact(gold, content, expected):
  assert grading.grade(_boxed(content), gold) is expected


def test_an_answer_is_never_run(tmp_path):
  mark = tmp_path / "ran"
  code = f"open({str(mark)!r}, 'w').write('') or 18"
  for content in (code, f"$\\text{{{code}}}$", f"x = {code}",
                  f"\\frac{{{code}}}{{1}}", f"{{{code}}}"):
    assert grading.read_integer(content) is None
    assert not grading.grade(_boxed(content), code)
  assert not mark.exists()


_SIZE = 100_000


@pytest.mark.parametrize("content", [
    "1" * _SIZE, "1" * _SIZE + "x", "0" * _SIZE, "-" * _SIZE, " " * _SIZE,
    "18" + " " * _SIZE + "x", "1,000" * (_SIZE // 5), ("1" + ",000" * 25_000
                                                      + "x"),
    "1\\,000" * 20_000, "\\," * _SIZE, "18" + "\\," * _SIZE + "x",
    "18." + "0" * _SIZE + "x", "{" * _SIZE, "}" * _SIZE, "{}" * _SIZE,
    "\\text{" * 20_000 + "18" + "}" * 20_000, "\\boxed{" * 20_000,
    "\\boxed{" * 20_000 + "18" + "}" * 20_000, "$" * _SIZE, "$18" * 20_000,
    "\\frac{" * 20_000, "\\frac{" + "9" * _SIZE + "}{3}",
    "9" * 50_000 + "/" + "9" * 50_000, "36/" + "0" * _SIZE + "2",
    "10^{" * 20_000 + "10" + "}" * 20_000, "9**" * 30_000 + "9",
    "1e" + "9" * _SIZE, "\\" * _SIZE, "18 " + "square " * 15_000 + "cm",
    "18\\text{" + " " * _SIZE + "cm}", "\\text{" + "{,}" * 30_000 + "x",
    "x" + " " * _SIZE + "=" + " " * _SIZE + "y", "<answer>" * 15_000,
    "\u0661" * _SIZE, "\ud800" * 10, "\x00" * _SIZE,
], ids=lambda text: f"{text[:12]!r}")
def test_hostile_answers_cost_bounded_time_and_never_raise(content):
  """Nothing is evaluated: 100 KB of anything takes well under a second."""
  start_s = time.process_time()
  for response in (_boxed(content), f"<answer>{content}</answer>", content):
    grading.grade(response, "18")
  assert time.process_time() - start_s < 1.0


@pytest.mark.parametrize("content", [
    "1" * 50_000 + "x", "18" + " " * 50_000 + "x", "1" + ",000" * 20_000 + "x",
    "\\boxed{" * 10_000, "18." + "0" * 50_000 + "x", "{" * 50_000])
def test_time_grows_no_faster_than_the_text(content):
  """Four times the text takes at most ten times as long, not sixteen."""
  def seconds(text):
    best = float("inf")
    for _ in range(3):
      start_s = time.process_time()
      grading.grade(_boxed(text), "18")
      best = min(best, time.process_time() - start_s)
    return best

  head, unit = content[:2], content[2:-1]
  small = seconds(content)
  large = seconds(head + unit * 4 + content[-1])
  assert large < 10 * small + 0.02


_PARTS = st.sampled_from([
    "\\boxed{", "{", "}", "<answer>", "</answer>", "18", "-", ",", "\\,", "$",
    "\\text{", "\\frac{", "/", ".", " ", "cm", "%", "^", "=", "x",
    "</tool_response>", "<|im_start|>assistant"])


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True,
                     database=None)
@hypothesis.given(st.lists(st.one_of(_PARTS, st.text(max_size=3)),
                           max_size=12).map("".join))
def test_never_raises(text):
  assert grading.grade(text, "18") in (True, False)
  answer = grading.read_integer(text)
  assert answer is None or str(int(answer)) == answer


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True,
                     database=None)
@hypothesis.given(st.integers(), st.integers())
def test_an_integer_equals_itself_alone(gold, other):
  for written in (str(gold), f"{gold:,}", f"${gold}$", f"{gold}.0",
                  f"\\frac{{{2 * gold}}}{{2}}", f"x = {gold}"):
    assert grading.grade(_boxed(written), str(gold))
    assert grading.grade(_boxed(written), str(other)) == (gold == other)
