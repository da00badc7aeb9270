"""Builds the laptop's tokenizer: a small byte-level BPE made for this protocol.

Any text goes in and comes out again (all 256 bytes are tokens). Every digit is
a token of its own, so that a small model can copy numbers; between digits the
merges may run over words, which makes whole phrases of problems and programs
single tokens. What the protocol always says in the same words (system turn,
headers, start and end of a call) is added as single tokens: the paper's full
prompt costs a handful of tokens, and the text is unchanged.

Nothing is drawn at random: the same arguments give the same vocabulary.
"""

from collections.abc import Iterator
import re

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

from rstar2_jax.chat import demonstrations as chat_demonstrations
from rstar2_jax.chat import template
from rstar2_jax.chat import tokenizer
from rstar2_jax.data import demonstrations
from rstar2_jax.data import problems

# Hold a mark of the template, so they are matched only in the template's text.
_SPECIAL = (
    *template.MARKS,
    template.PROMPT_HEAD,
    f"\n{template.ASSISTANT_HEAD}",
    f"\n{template.IM_START}user{template.RESPONSE_HEAD}",
    f"{template.RESPONSE_TAIL}{template.IM_END}\n{template.ASSISTANT_HEAD}",
)
_ORDINARY = (
    *template.TAGS,
    template.CALL_HEAD,
    template.CALL_TAIL,
    template.RESPONSE_TAIL + template.RESPONSE_HEAD,
)
_PIECES = r"\d|[^\d]+"
_NUM_TEXTS = 3000  # problems, and as many demonstrations
_SEED = 0
_MAX_RESPONSE_CHARS = 256


def build(vocab_size: int) -> tokenizer.Tokenizer:
  """Builds the tokenizer from generated problems and demonstrations.

  Args:
    vocab_size: tokens aimed at, special ones included; at least 320.

  Returns:
    A tokenizer of at most that size.

  Raises:
    ValueError: vocab_size is too small.
  """
  num_added = len(_SPECIAL) + len(_ORDINARY)
  if vocab_size < 256 + num_added:
    raise ValueError(f"vocab_size {vocab_size}: must be at least"
                     f" {256 + num_added} (256 bytes and the protocol)")
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
  backend.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
      vocab_size=vocab_size - num_added, min_frequency=8, show_progress=False,
      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
  backend.train_from_iterator(_texts(), trainer)
  backend.add_special_tokens([
      tokenizers.AddedToken(text, normalized=False, special=True)
      for text in _SPECIAL])
  backend.add_tokens([tokenizers.AddedToken(text, normalized=False)
                      for text in _ORDINARY])
  return tokenizer.Tokenizer(backend)


def _texts() -> Iterator[str]:
  """Generated texts without what is added as single tokens."""
  added = sorted((*_SPECIAL, *_ORDINARY), key=len, reverse=True)
  pattern = re.compile("|".join(map(re.escape, added)))
  for i in range(_NUM_TEXTS):
    yield problems.problem("train", _SEED, i).problem
    demonstration = demonstrations.demonstration(
        _SEED, i, max_level=3, slip_rate=0.35, fault_rate=0.3)
    conversation = chat_demonstrations.conversation(
        demonstration, max_response_chars=_MAX_RESPONSE_CHARS)
    text = template.render([
        {"role": m.role, "content": m.content} for m in conversation.messages])
    yield from filter(None, pattern.split(text))
