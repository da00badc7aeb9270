"""Prompts by index: an index is all that a resumed run needs (P31)."""

import json

import pytest

from rstar2_jax import types
from rstar2_jax.data import prompts


def _given(num):
  return [types.Prompt(id=f"p{i}", problem=f"{i}?", answer=str(i))
          for i in range(num)]


def _ids(source, indices):
  return [source[i].id for i in indices]


def _procedural(**kwargs):
  return prompts.open_source("procedural", split="train", seed=3, **kwargs)


@pytest.mark.parametrize("make", [
    _procedural, lambda: prompts.Recorded(_given(7), seed=3)])
def test_a_fresh_source_goes_on_from_any_index(make):
  """Stopping after any number of prompts repeats and skips nothing."""
  whole = _ids(make(), range(30))
  for start in (0, 1, 6, 7, 8, 29):
    assert _ids(make(), range(start, 30)) == whole[start:]


@pytest.mark.parametrize("make", [
    _procedural, lambda: prompts.Recorded(_given(5), seed=3)])
def test_the_order_of_asking_changes_nothing(make):
  source = make()
  whole = _ids(make(), range(20))
  backwards = list(range(19, -1, -1))
  assert _ids(source, backwards) == whole[::-1]
  assert _ids(source, [17, 2, 17, 2]) == [whole[i] for i in (17, 2, 17, 2)]


def test_every_epoch_has_every_prompt_once_in_a_new_order():
  source = prompts.Recorded(_given(12), seed=0)
  assert len(source) == 12
  epochs = [_ids(source, range(12 * e, 12 * e + 12)) for e in range(4)]
  for epoch in epochs:
    assert sorted(epoch) == sorted(f"p{i}" for i in range(12))
  assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_seed_decides_the_order():
  def order(seed):
    return _ids(prompts.Recorded(_given(12), seed=seed), range(24))

  assert order(0) == order(0) != order(1)


def test_without_shuffling_the_given_order_repeats():
  source = prompts.Recorded(_given(3), seed=0, shuffle=False)
  assert _ids(source, range(7)) == ["p0", "p1", "p2", "p0", "p1", "p2", "p0"]


def test_one_prompt_is_enough():
  source = prompts.Recorded(_given(1), seed=0)
  assert _ids(source, range(3)) == ["p0"] * 3


def test_no_prompt_is_an_error_at_once():
  with pytest.raises(ValueError, match="no prompt"):
    prompts.Recorded([], seed=0)


def test_train_and_heldout_problems_are_apart():
  train = _procedural()
  heldout = prompts.open_source("procedural", split="heldout", seed=3)
  asked = {train[i].metadata["key"] for i in range(400)}
  assert not asked & {heldout[i].metadata["key"] for i in range(400)}


def test_levels_and_families_are_kept():
  source = _procedural(families=["gcd"], min_level=2, max_level=2)
  drawn = [source[i] for i in range(30)]
  assert {(p.source, p.level) for p in drawn} == {("gcd", 2)}


def _write(path, lines):
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def test_a_file_is_shuffled_for_training_and_kept_in_order_held_out(tmp_path):
  path = _write(tmp_path / "mine.jsonl", [
      json.dumps({"problem": f"{i}?", "answer": i}) for i in range(9)])
  heldout = prompts.open_source(path, split="heldout", seed=0)
  assert [heldout[i].answer for i in range(9)] == [str(i) for i in range(9)]
  train = prompts.open_source(path, split="train", seed=0)
  order = [train[i].answer for i in range(9)]
  assert order != sorted(order) and sorted(order) == [
      str(i) for i in range(9)]


@pytest.mark.parametrize("line, message", [
    ("{", r"mine\.jsonl:3: not valid JSON"),
    ('{"problem": "a"}', r"mine\.jsonl:3: needs a field 'answer'"),
    ('{"problem": "a", "answer": 0.5}', r"mine\.jsonl:3: answer 0.5 is not"),
    ('"text"', r"mine\.jsonl:3: expected a JSON object, got str"),
])
def test_a_bad_line_is_named_with_its_number(tmp_path, line, message):
  """Empty lines count as lines, so the number is the editor's."""
  path = _write(tmp_path / "mine.jsonl",
                ['{"problem": "a", "answer": 1}', "", line])
  with pytest.raises(ValueError, match=message):
    prompts.open_source(path, split="train", seed=0)


@pytest.mark.parametrize("name, message", [
    ("nowhere.jsonl", "nowhere.jsonl: cannot be read: No such file"),
    ("problems.csv", "unknown data 'problems.csv': give 'procedural'"),
    ("", "unknown data ''"),
])
def test_an_unknown_source_says_what_is_possible(name, message):
  with pytest.raises(ValueError, match=message):
    prompts.open_source(name, split="train", seed=0)


def test_bad_levels_are_refused_when_a_source_is_opened():
  with pytest.raises(ValueError, match="levels 3 to 1"):
    _procedural(min_level=3, max_level=1)
