"""Filters of RL problems: answers, duplicates, overlap with evaluations.

Paper, sections 4.2 and 5.1. Each takes and gives a list and the rejects, so
that a report can count every step.
"""

from collections.abc import Iterable, Sequence
import hashlib
import re

from rstar2_jax.data import math_schemas
from rstar2_jax.data import row_files

Problem = math_schemas.Problem
Filtered = tuple[list[Problem], list[row_files.Reject]]

_WORD = re.compile(r"[^\W_]+")
NGRAM = 8


def keep_integers(
    problems: Sequence[Problem], *, max_digits: int
) -> Filtered:
  """Problems with an integer answer, which is rewritten in plain digits."""
  kept, rejects = [], []
  for p in problems:
    digits = math_schemas.integer_answer(p, max_digits)
    if digits is None:
      rejects.append(row_files.Reject(
          p.where, "answer is no integer of bounded length",
          row_files.quote(p.answer)))
    else:
      kept.append(Problem(p.where, p.id, p.text, digits, p.source))
  return kept, rejects


def drop_long(problems: Sequence[Problem], *, max_chars: int) -> Filtered:
  """Problems of at most `max_chars` characters."""
  kept, rejects = [], []
  for p in problems:
    if len(p.text) <= max_chars:
      kept.append(p)
    else:
      rejects.append(row_files.Reject(p.where, "problem is too long",
                                      f"{len(p.text)} characters"))
  return kept, rejects


def drop_duplicates(problems: Sequence[Problem]) -> Filtered:
  """One of each text; all of those whose copies disagree on the answer.

  Texts are compared by their words, without case and punctuation.
  """
  answers: dict[str, set[str]] = {}
  for p in problems:
    answers.setdefault(_key(p.text), set()).add(p.answer)
  kept, rejects = [], []
  seen: dict[str, str] = {}
  for p in problems:
    key = _key(p.text)
    if len(answers[key]) > 1:
      rejects.append(row_files.Reject(
          p.where, "copies disagree on the answer",
          " / ".join(sorted(answers[key]))))
    elif key in seen:
      rejects.append(row_files.Reject(p.where, "duplicate",
                                      f"as {seen[key]}"))
    else:
      seen[key] = p.where
      kept.append(p)
  return kept, rejects


class Contamination:
  """What evaluation problems are made of: their word 8-grams.

  A text of fewer words counts as one n-gram, so short evaluation problems are
  found where they are repeated whole.
  """

  def __init__(self, texts: Iterable[str], *, ngram: int = NGRAM):
    self._ngram = ngram
    self._known: set[int] = set()
    for text in texts:
      self._known |= set(self._hashes(words(text)))

  def share(self, text: str) -> float:
    """Share of a text's n-grams that an evaluation problem has too."""
    found = self._hashes(words(text))
    return sum(h in self._known for h in found) / len(found) if found else 0.0

  def drop(
      self, problems: Sequence[Problem], *, max_share: float = 0.0
  ) -> Filtered:
    """Problems whose share is at most `max_share`; 0: no overlap (paper)."""
    kept, rejects = [], []
    for p in problems:
      share = self.share(p.text)
      if share > max_share:
        rejects.append(row_files.Reject(
            p.where, "overlaps an evaluation set",
            f"{share:.0%} of its {self._ngram}-grams"))
      else:
        kept.append(p)
    return kept, rejects

  def _hashes(self, found: Sequence[str]) -> list[int]:
    if not found:
      return []
    n = min(self._ngram, len(found))
    return [_hash(found[i:i + n]) for i in range(len(found) - n + 1)]


def words(text: str) -> list[str]:
  """Lower-case runs of letters and digits."""
  return _WORD.findall(text.lower())


def _key(text: str) -> str:
  # A text of signs only has no words; then the text itself.
  return " ".join(words(text)) or text


def _hash(found: Sequence[str]) -> int:
  digest = hashlib.blake2b(" ".join(found).encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big")
