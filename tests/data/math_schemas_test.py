"""Hand-written rows of each published schema."""

import pytest

from rstar2_jax.data import math_schemas
from rstar2_jax.data import row_files

_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your"
    " response should be of the form Answer: $Answer (without quotes) where"
    " $Answer is the answer to the problem.\n\n")
_DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def _convert(values):
  return math_schemas.convert(row_files.Row("f:1", values))


@pytest.mark.parametrize("values,text,answer,source", [
    ({"id": "a", "problem": "What?", "answer": 7}, "What?", "7", ""),
    ({"question": "How many?", "answer": "2+3=<<2+3=5>>5\n#### 1,005"},
     "How many?", "1,005", ""),
    ({"problem": "Find x.", "solution": r"So $x=\boxed{\frac{1}{2}}$.",
      "level": "Level 1"}, "Find x.", r"\frac{1}{2}", ""),
    ({"problem": "Find y.", "answer": r"\pi", "solution": r"\boxed{3}"},
     "Find y.", r"\pi", ""),
    ({"data_source": "math_dapo",
      "prompt": [{"role": "user",
                  "content": f"{_DAPO_BEFORE}Is it?{_DAPO_AFTER}"}],
      "reward_model": {"ground_truth": "34", "style": "rule"}},
     "Is it?", "34", "math_dapo"),
    ({"prompt": "Is it?", "solution": "34",
      "reward_model": {"ground_truth": "34", "style": "rule"}},
     "Is it?", "34", ""),
    ({"problem": "Prove?", "expected_answer": "12", "problem_source":
      "aops_c4_high_school_math", "problem_type": "has_answer_extracted",
      "generated_solution": r"\boxed{13}"},
     "Prove?", "12", "aops_c4_high_school_math"),
    ({"number": 1, "title": "Multiples", "description": "Sum below 1000.",
      "answer": 233168.0}, "Sum below 1000.", "233168", ""),
    ({"answer": 70, "prompt": "Find b.\nPlease reason step by step, and put"
      " your final answer within \\boxed{}."}, "Find b.", "70", ""),
])
def test_schemas(values, text, answer, source):
  found = _convert(values)
  assert (found.text, found.answer, found.source) == (text, answer, source)
  assert found.where == "f:1"


@pytest.mark.parametrize("values,reason", [
    ({"answer": 1}, "no problem"),
    ({"problem": "  ", "answer": 1}, "no problem"),
    ({"problem": 5, "answer": 1}, "no problem"),
    ({"prompt": [{"role": "user", "content": "a"},
                 {"role": "user", "content": "b"}], "answer": 1},
     "no problem"),
    ({"problem": "p"}, "no answer"),
    ({"problem": "p", "answer": " "}, "no answer"),
    ({"problem": "p", "solution": r"no box \boxed{1"}, "no answer"),
    ({"problem": "p", "expected_answer": None, "problem_type":
      "converted_proof"}, "no answer extracted"),
])
def test_rows_that_are_left_out(values, reason):
  found = _convert(values)
  assert isinstance(found, row_files.Reject)
  assert (found.reason, found.where) == (reason, "f:1")


@pytest.mark.parametrize("answer,digits", [
    ("042", "42"), ("$1,024$", "1024"), ("-7", "-7"), ("3.0", "3"),
    ("12345", None), ("1.5", None), ("x=3", None), ("3 apples", None),
    ("1/2", None), ("", None)])
def test_integer_rule(answer, digits):
  problem = math_schemas.Problem("f:1", "", "p", answer, "")
  assert math_schemas.integer_answer(problem, max_digits=4) == digits


@pytest.mark.parametrize("text,box", [
    (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{1", None), ("none", None)])
def test_last_box(text, box):
  assert math_schemas.last_box(text) == box
