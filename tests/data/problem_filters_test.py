"""Filters on problems with a known outcome."""

from rstar2_jax.data import math_schemas
from rstar2_jax.data import problem_filters


def _problems(*pairs):
  return [math_schemas.Problem(f"f:{i}", "", text, answer, "")
          for i, (text, answer) in enumerate(pairs, 1)]


def _where(rejects):
  return [(r.where, r.reason) for r in rejects]


def test_integers_are_kept_in_plain_digits():
  kept, rejects = problem_filters.keep_integers(
      _problems(("a", "1,000"), ("b", "x+1"), ("c", "9" * 19)), max_digits=18)
  assert [p.answer for p in kept] == ["1000"]
  assert [r.where for r in rejects] == ["f:2", "f:3"]


def test_duplicates_keep_the_first_and_drop_what_disagrees():
  kept, rejects = problem_filters.drop_duplicates(_problems(
      ("What is $2 + 2$?", "4"), ("what is  $2+2$", "4"),
      ("How many?", "5"), ("Other?", "1"), ("how MANY", "6")))
  assert [p.where for p in kept] == ["f:1", "f:4"]
  assert _where(rejects) == [
      ("f:2", "duplicate"), ("f:3", "copies disagree on the answer"),
      ("f:5", "copies disagree on the answer")]
  assert rejects[1].detail == "5 / 6"


def test_texts_without_words_are_told_apart():
  kept, _ = problem_filters.drop_duplicates(_problems(("+", "1"), ("-", "1")))
  assert len(kept) == 2


def test_one_shared_8gram_is_contamination():
  words = [f"w{i}" for i in range(20)]
  contamination = problem_filters.Contamination([" ".join(words)])
  near = "x y " + " ".join(words[3:11]) + " z"  # words 3 to 10: one 8-gram
  far = "x y " + " ".join(words[3:10]) + " z w q r t"  # seven in a row
  # 11 words are four 8-grams.
  assert contamination.share(near) == 0.25
  assert contamination.share(far) == 0.0
  kept, rejects = contamination.drop(_problems((near, "1"), (far, "2")))
  assert [p.where for p in kept] == ["f:2"]
  assert _where(rejects) == [("f:1", "overlaps an evaluation set")]
  kept, _ = contamination.drop(_problems((near, "1")), max_share=0.25)
  assert len(kept) == 1


def test_short_evaluation_problems_are_found_whole_only():
  contamination = problem_filters.Contamination(["What is 2+2?"])
  assert contamination.share("what is 2 + 2") == 1.0
  assert contamination.share("what is 2 + 3") == 0.0
  assert contamination.share("???") == 0.0


def test_long_problems_are_left_out():
  kept, rejects = problem_filters.drop_long(
      _problems(("abc", "1"), ("abcd", "1")), max_chars=3)
  assert [p.text for p in kept] == ["abc"]
  assert _where(rejects) == [("f:2", "problem is too long")]
