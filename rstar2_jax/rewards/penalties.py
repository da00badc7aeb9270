"""RoC's penalties of a trajectory (paper, section 2.2.3, Eq. 4 and 5).

Lower is better. They choose among correct trajectories and are never part of
the reward. Errors are read from typed tool results: the released code instead
looks for the word "error" in the tool's text, which takes a printed "standard
error" for a failure and a timeout for a success (P20).
"""

import collections

from rstar2_jax import types
from rstar2_jax.chat import parsing

_NO_CALL = 0.5  # Eq. 4: between a clean and an all-failing trajectory


def error_ratio(trajectory: types.Trajectory) -> float:
  """Eq. 4: erroneous calls / calls, 0.5 without calls; in [0, 1].

  Failures of our own infrastructure count neither as errors nor as calls.
  """
  statuses = [result.status for result in trajectory.tool_results
              if not result.status.is_infra_error]
  if not statuses:
    return _NO_CALL
  return sum(status.is_policy_error for status in statuses) / len(statuses)


def answer_format(trajectory: types.Trajectory) -> float:
  """Eq. 5: 1 without an answer, else min(1, (answers - 1) / turns).

  As in the released code, tags that do not pair up count as no answer; the
  paper does not say.
  """
  opened, closed = 0, 0
  for text in trajectory.turn_texts:
    num_opened, num_closed = parsing.num_answer_tags(text)
    opened, closed = opened + num_opened, closed + num_closed
  if not opened or opened != closed:
    return 1.0
  return min(1.0, (opened - 1) / trajectory.num_turns)


def repetition(
    trajectory: types.Trajectory, *, ngram: int, count: int
) -> float:
  """Share of n-gram occurrences whose n-gram occurs more than `count` times.

  After the detector of Phi-4-reasoning, which the paper tried inside RoC and
  dropped (section 5.3): it also strikes a check that is done again with other
  numbers. N-grams are of sampled ids and never span two turns.

  Args:
    trajectory: its policy spans are read.
    ngram: length of an n-gram [tokens].
    count: occurrences that are not yet repetition.

  Returns:
    In [0, 1]; 0 where no turn is as long as an n-gram.
  """
  counts = collections.Counter(
      span.token_ids[i:i + ngram] for span in trajectory.spans
      if span.source is types.Source.POLICY
      for i in range(len(span.token_ids) - ngram + 1))
  repeated = sum(n for n in counts.values() if n > count)
  return repeated / counts.total() if counts else 0.0


def total(
    trajectory: types.Trajectory,
    *,
    use_error_ratio: bool,
    use_answer_format: bool,
    use_repetition: bool = False,
    repetition_ngram: int = 5,
    repetition_count: int = 5,
) -> float:
  """p_total: the sum of the penalties that are in use, in [0, 3]."""
  penalty = 0.0
  if use_error_ratio:
    penalty += error_ratio(trajectory)
  if use_answer_format:
    penalty += answer_format(trajectory)
  if use_repetition:
    penalty += repetition(trajectory, ngram=repetition_ngram,
                          count=repetition_count)
  return penalty
