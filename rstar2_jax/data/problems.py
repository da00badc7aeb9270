"""Procedural problems by index: seeded, with train and held-out apart.

A problem is a function of (split, seed, index) and of the families and levels
asked for, so a run resumes from an index alone and no draw depends on another.
Whether a problem is for training or held out is decided by a hash of what it
asks, not by the draw: the two never share one, whatever seeds are used.
"""

from collections.abc import Iterator, Sequence
import hashlib
import random
from typing import Literal

from rstar2_jax import types
from rstar2_jax.data import families as families_lib
from rstar2_jax.data.families import family as family_lib

Split = Literal["train", "heldout"]

# One question in eight is held out.
_NUM_BUCKETS = 8


def problem(
    split: Split,
    seed: int,
    index: int,
    *,
    families: Sequence[str] = (),
    min_level: int = 1,
    max_level: int = 3,
) -> types.Prompt:
  """The problem at `index` of a stream.

  Args:
    split: "train" or "heldout"; disjoint for any seeds and indices.
    seed: of the stream.
    index: position in the stream, from 0.
    families: names of families to draw from; empty: all.
    min_level: lowest difficulty, 1 to 3.
    max_level: highest difficulty, 1 to 3.

  Returns:
    The prompt; `source` is its family, `metadata["key"]` what it asks (equal
    for paraphrases of one question).

  Raises:
    ValueError: unknown split or family, or levels out of range.
  """
  prompt, _ = draw(split, seed, index, families=families, min_level=min_level,
                   max_level=max_level)
  return prompt


def draw(
    split: Split,
    seed: int,
    index: int,
    *,
    families: Sequence[str] = (),
    min_level: int = 1,
    max_level: int = 3,
) -> tuple[types.Prompt, family_lib.Instance]:
  """Like `problem`, with the programs that demonstrations are made of."""
  names = check_families(families)
  if split not in ("train", "heldout"):
    raise ValueError(f"split {split!r}: must be 'train' or 'heldout'")
  check_levels(min_level, max_level)
  rng = random.Random(_hash(split, seed, index))
  name = rng.choice(names)
  level = rng.randint(min_level, max_level)
  while True:
    instance = families_lib.ALL[name].make(rng, level)
    key = ":".join(map(str, (name, *instance.params)))
    if is_heldout(key) == (split == "heldout"):
      break
  prompt = types.Prompt(
      id=f"{split}-{index:07d}-{name}", problem=rng.choice(instance.texts),
      answer=str(instance.answer), source=name, level=level,
      metadata={"key": key})
  return prompt, instance


def stream(
    split: Split,
    seed: int,
    *,
    start: int = 0,
    families: Sequence[str] = (),
    min_level: int = 1,
    max_level: int = 3,
) -> Iterator[types.Prompt]:
  """Endless problems from index `start` on; see `problem`."""
  index = start
  while True:
    yield problem(split, seed, index, families=families, min_level=min_level,
                  max_level=max_level)
    index += 1


def is_heldout(key: str) -> bool:
  """Whether a question is held out, from what it asks alone."""
  return _hash("split", key) % _NUM_BUCKETS == 0


def check_levels(min_level: int, max_level: int) -> None:
  """Raises ValueError unless both are within 1 to 3 and in order."""
  if not 1 <= min_level <= max_level <= 3:
    raise ValueError(f"levels {min_level} to {max_level}: must be an ascending"
                     " range within 1 to 3")


def check_families(names: Sequence[str]) -> tuple[str, ...]:
  """The named families, or all where none is named.

  Raises:
    ValueError: a name is unknown.
  """
  for name in names:
    if name not in families_lib.ALL:
      raise ValueError(f"unknown problem family {name!r}; known:"
                       f" {', '.join(families_lib.ALL)}")
  return tuple(names) or tuple(families_lib.ALL)


def _hash(*parts: int | str) -> int:
  text = "\x1f".join(map(str, parts))
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big")
