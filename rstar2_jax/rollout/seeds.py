"""Seeds that depend on what is drawn, never on when it is drawn.

Arrival order differs from run to run; identities do not. A draw is seeded by
the run's seed and the names of what it belongs to, so that a trajectory is the
same however many others run beside it and after any resume (P24, P31).
"""

import hashlib


def derive(*parts: int | str) -> int:
  """A seed in [0, 2**31) from any sequence of ints and strings.

  Args:
    *parts: identity of the draw, e.g. (run seed, step, prompt id, sample,
      turn). Order matters; 1 and "1" differ.

  Returns:
    int that is the same on every machine and in every process.
  """
  text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, "big") % 2**31
