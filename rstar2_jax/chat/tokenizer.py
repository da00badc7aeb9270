"""Text to token ids and back, for the protocol of `template`.

Works on any Hugging Face folder whose vocabulary has the ChatML marks, with
the `tokenizers` library alone. The template is the protocol's, whatever the
folder brings. Three things keep sampled, trained and rendered ids the same:

* a prompt grows by appending: `tool_result_spans` are exactly the ids that the
  template puts between a sampled `<|im_end|>` and the next turn, the newline
  after `<|im_end|>` included (P02, P03, P04);
* an assistant turn is encoded by itself, as a server continues it;
* problems and tool outputs are encoded without special tokens, so that a mark
  printed by a program is text and never ends a turn.
"""

from collections.abc import Sequence
import json
import pathlib
from typing import Any

import tokenizers

from rstar2_jax import types
from rstar2_jax.chat import template
from rstar2_jax.data import conversations

_MAX_UTF8_BYTES = 4

_Part = tuple[str, types.Source]
_Ids = tuple[list[int], types.Source]


class Tokenizer:
  """A vocabulary with the protocol's renderings.

  Attributes:
    vocab_size: one more than the largest id; a padded LM head may be larger.
    im_end_id: id that ends every turn.
    stop_ids: ids that end sampling: end of turn and, if any, end of text.
  """

  def __init__(
      self, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None
  ):
    """Wraps a tokenizer.

    Args:
      backend: the vocabulary; copied.
      config: content of its tokenizer_config.json, kept for `save`.

    Raises:
      ValueError: the vocabulary lacks a ChatML mark.
    """
    self._backend = tokenizers.Tokenizer.from_str(backend.to_str())
    self._backend.no_padding()
    self._backend.no_truncation()
    self._plain = tokenizers.Tokenizer.from_str(self._backend.to_str())
    self._plain.encode_special_tokens = True
    self._config = dict(config or {})
    ids = {mark: i for mark in template.MARKS
           if (i := self._backend.token_to_id(mark)) is not None}
    for mark in (template.IM_START, template.IM_END):
      if mark not in ids:
        raise ValueError(f"the tokenizer has no token {mark}; use a ChatML"
                         " model (Qwen, SmolLM2-Instruct) or add the marks")
    self.im_end_id: int = ids[template.IM_END]
    self.stop_ids: tuple[int, ...] = tuple(
        ids[mark] for mark in (template.IM_END, template.END_OF_TEXT)
        if mark in ids)
    self.vocab_size: int = max(
        self._backend.get_vocab(with_added_tokens=True).values()) + 1
    self._special_ids = frozenset(
        i for i, t in self._backend.get_added_tokens_decoder().items()
        if t.special)
    self._pieces: dict[tuple[int, ...], str] = {}
    self._cuts: dict[str, tuple[int, int, list[int]] | None] = {}

  @classmethod
  def from_folder(cls, folder: str | pathlib.Path) -> "Tokenizer":
    """Opens a Hugging Face folder.

    Raises:
      ValueError: no tokenizer there, or one without ChatML marks.
    """
    folder = pathlib.Path(folder)
    config_file = folder / "tokenizer_config.json"
    try:
      config = (
          json.loads(config_file.read_text()) if config_file.exists() else {})
    except ValueError as e:
      raise ValueError(f"{config_file}: not JSON ({e})") from None
    file = folder / "tokenizer.json"
    if file.exists():
      try:
        backend = tokenizers.Tokenizer.from_file(str(file))
      except Exception as e:  # pylint: disable=broad-exception-caught
        # The library raises nothing more special.
        raise ValueError(f"{file}: not a tokenizer ({e})") from None
    else:
      backend = _convert(folder)
    try:
      return cls(backend, config)
    except ValueError as e:
      raise ValueError(f"{folder}: {e}") from None

  def save(self, folder: str | pathlib.Path) -> None:
    """Writes a folder that transformers' AutoTokenizer opens.

    Args:
      folder: made if missing; files of other names stay.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(folder / "tokenizer.json"))
    marks = {"eos_token": template.IM_END}
    end_of_text = self._backend.token_to_id(template.END_OF_TEXT)
    if end_of_text is not None:
      marks["pad_token"] = template.END_OF_TEXT
    config = {"tokenizer_class": "PreTrainedTokenizerFast",
              "clean_up_tokenization_spaces": False,
              "model_max_length": 1 << 20} | self._config | marks
    config["chat_template"] = template.JINJA
    for name, content in (("tokenizer_config.json", config),
                          ("special_tokens_map.json", marks)):
      text = json.dumps(content, indent=2, ensure_ascii=False)
      (folder / name).write_text(f"{text}\n", encoding="utf-8")
    # This file would win over tokenizer_config.json.
    (folder / "chat_template.jinja").unlink(missing_ok=True)

  def encode(self, text: str) -> list[int]:
    """Ids of text in which marks count as marks; no token is added."""
    return self._backend.encode(
        _valid(text), add_special_tokens=False).ids

  def decode(self, ids: Sequence[int]) -> str:
    """Text of ids, marks included; bytes that are not UTF-8 are replaced."""
    return self._backend.decode(list(ids), skip_special_tokens=False)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """Text of each id; joined, they are the text of all.

    A character that is cut into several ids stands at the last of them, the
    others are empty.
    """
    pieces: list[str] = []
    pending: list[int] = []
    for i, token_id in enumerate(ids, 1):
      pending.append(token_id)
      text = self._piece(tuple(pending))
      is_cut = text.endswith("\ufffd") and len(pending) < _MAX_UTF8_BYTES
      if is_cut and i < len(ids):
        pieces.append("")
      else:
        pieces.append(text)
        pending.clear()
    return pieces

  def _piece(self, ids: tuple[int, ...]) -> str:
    if ids not in self._pieces:
      self._pieces[ids] = self.decode(ids)
    return self._pieces[ids]

  def render_prompt(self, problem: str) -> list[int]:
    """Ids of the first prompt, up to and with the first `<reason>`."""
    parts = self._encode_parts([
        (template.PROMPT_HEAD, types.Source.TEMPLATE),
        (problem, types.Source.PROMPT),
        (f"{template.IM_END}\n{template.ASSISTANT_HEAD}",
         types.Source.TEMPLATE)])
    return [i for ids, _ in parts for i in ids]

  def tool_result_spans(self, texts: Sequence[str]) -> tuple[types.Span, ...]:
    """What follows a sampled `<|im_end|>` when tools have answered.

    Args:
      texts: what the tools said, in order of the calls; at least one.

    Returns:
      TEMPLATE and TOOL spans in turn: a newline, one user turn with every text
      in its own tags, and the header of the next assistant turn.
    """
    parts: list[_Part] = [(f"\n{template.IM_START}user", types.Source.TEMPLATE)]
    for text in texts:
      parts += _response_parts(text)
    parts.append((f"{template.IM_END}\n{template.ASSISTANT_HEAD}",
                  types.Source.TEMPLATE))
    return tuple(types.Span(token_ids=tuple(ids), source=source)
                 for ids, source in self._encode_parts(parts))

  def reply_ids(self, last_id: int, text: str) -> list[int]:
    """What follows an assistant's turn when a person answers it.

    Args:
      last_id: last id of that turn; one that was cut off is ended here.
      text: what the person says.

    Returns:
      Ids up to and with the first `<reason>` of the next assistant turn.
    """
    end = "" if last_id == self.im_end_id else template.IM_END
    parts = self._encode_parts([
        (f"{end}\n{template.IM_START}user\n", types.Source.TEMPLATE),
        (text, types.Source.PROMPT),
        (f"{template.IM_END}\n{template.ASSISTANT_HEAD}",
         types.Source.TEMPLATE)])
    return [i for ids, _ in parts for i in ids]

  def render_conversation(
      self, conversation: conversations.Conversation
  ) -> tuple[list[int], list[bool]]:
    """Ids of a conversation for SFT, up to its last end mark.

    Args:
      conversation: its tools, if any, are shown in the system turn.

    Returns:
      The ids, and a mask that is True exactly on what the assistant writes
      after its header: content and end mark.
    """
    spans = self._encode_parts(_conversation_parts(conversation))
    ids = [i for span, _ in spans for i in span]
    mask = [source is types.Source.POLICY for span, source in spans
            for _ in span]
    return ids, mask

  def _encode_parts(self, parts: Sequence[_Part]) -> list[_Ids]:
    """Encodes parts as one text: special tokens only where they are ours.

    Ids of one text are those of its pieces between special tokens, so the
    parts are cut there and nowhere else; the pieces are encoded plain.
    """
    spans: list[_Ids] = []
    pending: list[_Part] = []
    for text, source in _merge(parts):
      if source is types.Source.POLICY:
        self._flush(pending, spans)
        spans.append((self.encode(text), source))
        continue
      cut = self._cut(text) if source is types.Source.TEMPLATE else None
      if cut is None:
        pending.append((text, source))
        continue
      pending.append((text[:cut[0]], source))
      self._flush(pending, spans)
      spans.append((cut[2], source))
      pending.append((text[cut[1]:], source))
    self._flush(pending, spans)
    return _merge_ids(spans)

  def _cut(self, text: str) -> tuple[int, int, list[int]] | None:
    """Start of the first special token, end of the last, and ids between."""
    if text not in self._cuts:
      encoding = self._backend.encode(text, add_special_tokens=False)
      offsets = [o for i, o in zip(encoding.ids, encoding.offsets, strict=True)
                 if i in self._special_ids]
      self._cuts[text] = None
      if offsets:
        start, end = offsets[0][0], offsets[-1][1]
        self._cuts[text] = start, end, self.encode(text[start:end])
    return self._cuts[text]

  def _flush(self, pending: list[_Part], spans: list[_Ids]) -> None:
    """Encodes pending parts together; a token is of the part it starts in."""
    text = "".join(_valid(part) for part, _ in pending)
    if text:
      encoding = self._plain.encode(text, add_special_tokens=False)
      ends: list[tuple[int, types.Source]] = []
      for written, source in pending:
        start = ends[-1][0] if ends else 0
        ends.append((start + len(_valid(written)), source))
      part = 0
      for i, (start, _) in zip(encoding.ids, encoding.offsets, strict=True):
        while part + 1 < len(ends) and start >= ends[part][0]:
          part += 1
        spans.append(([i], ends[part][1]))
    pending.clear()


def _response_parts(text: str) -> list[_Part]:
  return [(template.RESPONSE_HEAD, types.Source.TEMPLATE),
          (text, types.Source.TOOL),
          (template.RESPONSE_TAIL, types.Source.TEMPLATE)]


def _conversation_parts(
    conversation: conversations.Conversation
) -> list[_Part]:
  """The conversation as text with authors; its last newline is left out."""
  messages = list(conversation.messages)
  system = template.SYSTEM
  if messages and messages[0].role == "system":
    system = messages.pop(0).content
  parts: list[_Part] = [(template.system_text(system, conversation.tools),
                         types.Source.TEMPLATE)]
  for i, message in enumerate(messages):
    before = messages[i - 1].role if i else ""
    after = messages[i + 1].role if i + 1 < len(messages) else ""
    parts += _message_parts(message, before, after)
  last, source = parts[-1]
  return [*parts[:-1], (last.removesuffix("\n"), source)]


def _message_parts(
    message: conversations.Message, before: str, after: str
) -> list[_Part]:
  """Header, content and end of a message between two others."""
  fixed, content = types.Source.TEMPLATE, message.content
  if message.role == "tool":
    parts = _response_parts(content)
    if before != "tool":
      parts.insert(0, (f"{template.IM_START}user", fixed))
    if after != "tool":
      parts.append((f"{template.IM_END}\n", fixed))
    return parts
  head = f"{template.IM_START}{message.role}\n"
  if message.role == "assistant":
    if content.startswith("<reason>"):
      head, content = template.ASSISTANT_HEAD, content[len("<reason>"):]
    return [(head, fixed),
            (f"{content}{template.IM_END}", types.Source.POLICY), ("\n", fixed)]
  if content.startswith(template.USER_HEAD):
    head += template.USER_HEAD
    content = content[len(template.USER_HEAD):]
  return [(head, fixed), (content, types.Source.PROMPT),
          (f"{template.IM_END}\n", fixed)]


def _merge(parts: Sequence[_Part]) -> list[_Part]:
  """Joins neighbors by the same author and drops empty parts."""
  merged: list[_Part] = []
  for text, source in parts:
    if not text:
      continue
    if merged and merged[-1][1] is source is types.Source.TEMPLATE:
      text = merged.pop()[0] + text
    merged.append((text, source))
  return merged


def _merge_ids(spans: Sequence[_Ids]) -> list[_Ids]:
  merged: list[_Ids] = []
  for ids, source in spans:
    if merged and merged[-1][1] is source:
      merged[-1][0].extend(ids)
    elif ids:
      merged.append((list(ids), source))
  return merged


def _valid(text: str) -> str:
  """Text without lone surrogates, which no UTF-8 can say."""
  if text.isascii():
    return text
  return text.encode("utf-8", "replace").decode("utf-8")


def _convert(folder: pathlib.Path) -> tokenizers.Tokenizer:
  """Opens a folder without tokenizer.json through transformers."""
  try:
    # pylint: disable=g-import-not-at-top; optional, and costs seconds
    import transformers
  except ImportError:
    raise ValueError(
        f"{folder}: has no tokenizer.json; to read other tokenizers run: pip"
        " install transformers") from None
  try:
    return transformers.AutoTokenizer.from_pretrained(
        str(folder)).backend_tokenizer
  except (OSError, ValueError, AttributeError) as e:
    first_line = str(e).partition("\n")[0]
    raise ValueError(
        f"{folder}: no tokenizer can be read there ({first_line}); give a"
        " Hugging Face folder with tokenizer.json") from None
