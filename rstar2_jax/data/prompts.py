"""Prompts by index, wherever they come from.

A source is endless: a file is read again in a new seeded order in every epoch.
The prompt at an index depends on the source's arguments alone, so an index is
all that a checkpoint must hold to go on.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Protocol

import numpy as np

from rstar2_jax import types
from rstar2_jax.data import problems
from rstar2_jax.data import records

PROCEDURAL = "procedural"
_HUB_PREFIX = "hf:"


class Source(Protocol):
  """Prompts by index, from 0, without end."""

  def __getitem__(self, index: int) -> types.Prompt:
    """The prompt at an index."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Procedural:
  """Generated problems; see `problems.problem`."""

  split: problems.Split
  seed: int
  families: tuple[str, ...] = ()
  min_level: int = 1
  max_level: int = 3

  def __post_init__(self):
    problems.check_families(self.families)
    problems.check_levels(self.min_level, self.max_level)

  def __getitem__(self, index: int) -> types.Prompt:
    return problems.problem(
        self.split, self.seed, index, families=self.families,
        min_level=self.min_level, max_level=self.max_level)


class Recorded:
  """Given prompts, in a new order in every epoch."""

  def __init__(
      self, prompts: Sequence[types.Prompt], *, seed: int, shuffle: bool = True
  ):
    """Keeps the prompts.

    Args:
      prompts: at least one.
      seed: of the orders.
      shuffle: False: the given order in every epoch.

    Raises:
      ValueError: there is no prompt.
    """
    if not prompts:
      raise ValueError("no prompt is given; a source needs at least one")
    self._prompts = tuple(prompts)
    self._seed = seed
    self._shuffle = shuffle
    self._epoch = -1
    self._order: np.ndarray = np.arange(len(self._prompts))

  def __len__(self) -> int:
    """Prompts in an epoch."""
    return len(self._prompts)

  def only(self, is_wanted: Callable[[types.Prompt], bool]) -> "Recorded":
    """The same source without the prompts that are not wanted.

    Raises:
      ValueError: none is left.
    """
    kept = [p for p in self._prompts if is_wanted(p)]
    return Recorded(kept, seed=self._seed, shuffle=self._shuffle)

  def __getitem__(self, index: int) -> types.Prompt:
    epoch, position = divmod(index, len(self._prompts))
    if self._shuffle and epoch != self._epoch:
      rng = np.random.default_rng([self._seed, epoch])
      self._order, self._epoch = rng.permutation(len(self._prompts)), epoch
    return self._prompts[int(self._order[position])]


def open_source(
    name: str,
    *,
    split: problems.Split,
    seed: int,
    families: Sequence[str] = (),
    min_level: int = 1,
    max_level: int = 3,
) -> Procedural | Recorded:
  """Opens what --data.train or --data.heldout names.

  Args:
    name: "procedural", a .jsonl file, or "hf:NAME" ("hf:NAME@SPLIT" for
      another split than train, or test for held-out problems).
    split: "train" or "heldout"; held-out records keep their order.
    seed: of draws and orders.
    families: procedural families; empty: all.
    min_level: lowest procedural difficulty.
    max_level: highest procedural difficulty.

  Raises:
    ValueError: nothing usable there; the message says what and where.
  """
  if name == PROCEDURAL:
    return Procedural(split=split, seed=seed, families=tuple(families),
                      min_level=min_level, max_level=max_level)
  if name.startswith(_HUB_PREFIX):
    default = "train" if split == "train" else "test"
    hub_name, _, hub_split = name.removeprefix(_HUB_PREFIX).partition("@")
    prompts = records.read_hub(hub_name, hub_split or default)
  elif name.endswith((".jsonl", ".json")):
    prompts = records.read_jsonl(name)
  else:
    raise ValueError(f"unknown data {name!r}: give {PROCEDURAL!r}, a .jsonl"
                     " file or hf:NAME")
  return Recorded(prompts, seed=seed, shuffle=split == "train")
