"""What is kept of a step's trajectories: transcripts and records."""

from collections.abc import Sequence
import itertools
from typing import Any, NamedTuple

import numpy as np

from rstar2_jax import assembly
from rstar2_jax import config
from rstar2_jax import run_folder
from rstar2_jax import selection
from rstar2_jax import transcript
from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.grpo import batching
from rstar2_jax.learner import update
from rstar2_jax.rewards import penalties


class Score(NamedTuple):
  """Of the sampled tokens of a trajectory, in order [nats]."""

  logprobs: Sequence[float]
  entropies: Sequence[float]


class TrajectoryLog:
  """Writes `trajectories/` of a run folder, step by step."""

  def __init__(
      self, cfg: config.Config, folder: run_folder.RunFolder,
      stage: assembly.Stage,
  ):
    self._cfg = cfg
    self._folder = folder
    self._learner = stage.learner
    self._tokenizer = stage.policy.tokenizer

  def write(
      self, step: int, groups: Sequence[types.TrajectoryGroup],
      kept: Sequence[types.TrajectoryGroup], params: Any,
  ) -> None:
    """Writes what the flags of --log ask for.

    Args:
      step: 0-based.
      groups: all of the step.
      kept: what is trained on.
      params: the learner's, those that the groups were sampled with.

    Raises:
      errors.UserError: the disk is full.
    """
    texts = transcripts(
        groups, kept, num=self._cfg.log.trajectories_per_step)
    if texts:
      self._folder.write_file(
          f"trajectories/step_{step:06d}.txt", "\n".join(texts))
    num = min(self._cfg.log.groups_per_step, len(groups))
    if num:
      self._folder.write_file(
          f"trajectories/{trajectory_records.file_name(step)}",
          trajectory_records.to_bytes(
              self._records(step, groups, kept, num, params)))

  def _records(
      self, step: int, groups, kept, num: int, params: Any
  ) -> list[trajectory_records.Record]:
    """Of `num` groups, evenly over the step whatever became of them."""
    chosen = [groups[i * len(groups) // num] for i in range(num)]
    scores = learner_scores(
        self._learner, params, chosen, row_tokens=self._cfg.batch.row_tokens)
    return records(step, chosen, kept, self._cfg, self._tokenizer, scores)


def records(
    step: int, groups: Sequence[types.TrajectoryGroup],
    kept: Sequence[types.TrajectoryGroup], cfg: config.Config, tokenizer: Any,
    scores: Sequence[Score],
) -> list[trajectory_records.Record]:
  """Records of whole groups.

  Args:
    step: 0-based.
    groups: what is recorded.
    kept: what is trained on.
    cfg: of the run.
    tokenizer: the policy's.
    scores: of every trajectory, in order.
  """
  trajectories = [t for group in groups for t in group.trajectories]
  fates = itertools.chain.from_iterable(selection.fates(groups, kept, cfg))
  return [
      trajectory_records.Record(
          step=step, trajectory=t, fate=fate, advantage=advantage,
          pieces=tuple(tuple(tokenizer.pieces(span.token_ids))
                       for span in t.spans),
          error_ratio=penalties.error_ratio(t),
          answer_format=penalties.answer_format(t),
          learner_logprobs=tuple(score.logprobs),
          entropy=tuple(score.entropies))
      for t, (fate, advantage), score in zip(
          trajectories, fates, scores, strict=True)]


def learner_scores(
    learner: update.Learner, params: Any,
    groups: Sequence[types.TrajectoryGroup], *, row_tokens: int,
) -> list[Score]:
  """What the learner thinks of the sampled tokens of each trajectory."""
  trajectories = [t for group in groups for t in group.trajectories]
  batch = batching.pack(
      trajectories, np.zeros(len(trajectories)), row_tokens=row_tokens)
  columns = [
      [x.tolist() for x in batching.unpack_sampled(
          np.asarray(values), trajectories)]
      for values in learner.scores(params, batch)]
  return [Score(*pair) for pair in zip(*columns, strict=True)]


def transcripts(
    groups: Sequence[types.TrajectoryGroup],
    kept: Sequence[types.TrajectoryGroup], *, num: int,
) -> list[str]:
  """The best and the worst trajectory, and others between them, as text.

  Args:
    groups: of a step.
    kept: what is trained on.
    num: how many at most.
  """
  trained = {(t.prompt.id, t.sample)
             for group in kept for t in group.trajectories}
  graded = [t for g in groups for t in g.trajectories if t.reward is not None]
  graded.sort(key=lambda t: (-t.outcome, t.prompt.id, t.sample))
  num = min(num, len(graded))
  # Evenly over the order of reward: the first and the last are among them.
  chosen = [graded[i * (len(graded) - 1) // max(num - 1, 1)]
            for i in range(num)]
  return [transcript.render(t, is_trained=(t.prompt.id, t.sample) in trained)
          for t in chosen]
