"""Demonstrations as packed rows."""

from collections.abc import Iterator
import json

import numpy as np

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import types
from rstar2_jax.chat import demonstrations as chat_demonstrations
from rstar2_jax.chat import template
from rstar2_jax.chat import tokenizer as tokenizer_lib
from rstar2_jax.data import conversations as conversations_lib
from rstar2_jax.data import demonstrations
from rstar2_jax.grpo import batching


def packed_rows(
    cfg: config.Config, tokenizer: tokenizer_lib.Tokenizer
) -> types.PackedBatch:
  """All demonstrations that --sft.* names, packed.

  Conversations longer than a row are left out, and how many is said.

  Raises:
    errors.UserError: the file cannot be used; names the line.
  """
  rendered = []
  num_long = 0
  for conversation in _conversations(cfg):
    ids, mask = tokenizer.render_conversation(conversation)
    if len(ids) > cfg.batch.row_tokens:
      num_long += 1
    else:
      rendered.append((ids, mask))
  if num_long:
    progress.say(f"sft: {num_long} conversations are longer than"
                 f" --batch.row_tokens={cfg.batch.row_tokens} and left out")
  if not rendered:
    raise errors.UserError(f"--sft.data={cfg.sft.data}: no conversation fits a"
                           f" row of {cfg.batch.row_tokens} tokens")
  return batching.pack_conversations(
      rendered, row_tokens=cfg.batch.row_tokens)


def num_updates(cfg: config.Config, num_rows: int) -> int:
  """Updates of all epochs; rows of an incomplete last batch are left out."""
  return max(num_rows * cfg.sft.num_epochs // cfg.sft.batch_size, 1)


def row_order(cfg: config.Config, num_rows: int) -> np.ndarray:
  """int [updates, batch_size]: rows of each update, a function of the seed."""
  order = np.concatenate([
      np.random.default_rng([cfg.seed, epoch]).permutation(num_rows)
      for epoch in range(cfg.sft.num_epochs)])
  num = num_updates(cfg, num_rows)
  # A data set smaller than one batch is repeated to fill it.
  return np.resize(order, num * cfg.sft.batch_size).reshape(num, -1)


def _conversations(
    cfg: config.Config
) -> Iterator[conversations_lib.Conversation]:
  if cfg.sft.data == "procedural":
    for i in progress.bar(range(cfg.sft.num_demonstrations), "demonstrations"):
      yield chat_demonstrations.conversation(
          demonstrations.demonstration(
              cfg.seed, i, families=cfg.data.families,
              max_level=cfg.sft.max_level, slip_rate=cfg.sft.slip_rate,
              fault_rate=cfg.sft.fault_rate),
          max_response_chars=cfg.tool.max_response_chars)
  else:
    yield from read_jsonl(cfg.sft.data, limit=cfg.sft.num_demonstrations)


def read_jsonl(
    path: str, *, limit: int
) -> Iterator[conversations_lib.Conversation]:
  """Reads conversations, one JSON object `{"messages": [...]}` per line.

  Args:
    path: a .jsonl file; messages are {"role", "content"}, further keys and
      `tools` (OpenAI schemas) are allowed.
    limit: conversations read at most.

  Raises:
    errors.UserError: no such file, or a line that cannot be used.
  """
  try:
    with open(path, encoding="utf-8") as file:
      for number, line in enumerate(file, 1):
        if number > limit:
          return
        if line.strip():
          yield _conversation(line, f"{path}:{number}")
  except (OSError, UnicodeDecodeError) as e:
    raise errors.UserError(f"--sft.data={path}: cannot be read ({e}); give"
                           " 'procedural' or a .jsonl file") from e


def _conversation(line: str, where: str) -> conversations_lib.Conversation:
  try:
    record = json.loads(line)
    messages = tuple(
        conversations_lib.Message(m["role"], m["content"])
        for m in record["messages"])
    tools = tuple(record.get("tools") or ())
  except (ValueError, KeyError, TypeError, AttributeError) as e:
    raise errors.UserError(
        f"{where}: not a conversation ({type(e).__name__}: {e}); expected"
        ' {"messages": [{"role": "user", "content": "..."}, ...]}') from e
  roles = [m.role for m in messages]
  unknown = set(roles) - {"system", "user", "assistant", "tool"}
  if unknown or "assistant" not in roles or not all(
      isinstance(m.content, str) for m in messages):
    raise errors.UserError(
        f"{where}: roles must be system, user, assistant or tool with text"
        f" content and one assistant at least, got {roles}")
  return conversations_lib.Conversation(
      id=where, messages=messages, tools=tools or (dict(template.TOOL),))
