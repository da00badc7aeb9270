"""Text for the server: a folder's vocabulary, end ids and stop strings.

Nothing of the chat protocol: any Hugging Face folder will do, and none at all
where requests bring ids.
"""

from collections.abc import Sequence
import json
import pathlib
from typing import Any

import tokenizers

# Bytes of a character that a window may begin in the middle of.
_SLACK = 4


class Text:
  """A vocabulary.

  Attributes:
    num_ids: one more than the largest id.
    end_ids: ids that end a turn unless a request ignores them.
  """

  def __init__(self, folder: str | pathlib.Path):
    """Opens tokenizer.json.

    Raises:
      ValueError: it is missing or cannot be read.
    """
    folder = pathlib.Path(folder)
    path = folder / "tokenizer.json"
    try:
      self._backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises nothing narrower
      raise ValueError(f"{path}: {e}") from None
    self._backend.no_padding()
    self._backend.no_truncation()
    self.num_ids: int = max(
        self._backend.get_vocab(with_added_tokens=True).values()) + 1
    self.end_ids = self._end_ids(folder)

  def encode(self, text: str) -> list[int]:
    """Ids of a prompt, with the special tokens that the folder asks for."""
    return self._backend.encode(text).ids

  def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
    """Text of ids."""
    return self._backend.decode(list(ids), skip_special_tokens=skip_special)

  def _end_ids(self, folder: pathlib.Path) -> tuple[int, ...]:
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
      ids = _read(folder / name).get("eos_token_id")
      if ids is not None:
        found.update(ids if isinstance(ids, list) else [ids])
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(token, dict):
      token = token.get("content")
    token_id = self._backend.token_to_id(token or "")
    if token_id is not None:
      found.add(token_id)
    return tuple(sorted(found))


class StopStrings:
  """A requests.StopFinder."""

  def __init__(self, text: Text, strings: Sequence[str]):
    """Strings must not be empty."""
    self._text = text
    self._strings = tuple(strings)
    # Every token but a special one is at least one byte.
    self._window = _SLACK + max(len(s.encode()) for s in strings)

  def find(
      self, output_ids: Sequence[int], start: int
  ) -> tuple[int, str] | None:
    """See requests.StopFinder."""
    for end in range(start + 1, len(output_ids) + 1):
      tail = self._text.decode(output_ids[max(0, end - self._window):end])
      for string in self._strings:
        if string in tail:
          return end, string
    return None


def _read(path: pathlib.Path) -> dict[str, Any]:
  """The content of a JSON file; empty where there is none."""
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return {}
  return content if isinstance(content, dict) else {}
