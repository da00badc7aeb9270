"""What is kept of a step's trajectories: transcripts and records."""

from collections.abc import Sequence
import itertools
from typing import Any

import numpy as np

from rstar2_jax import assembly
from rstar2_jax import config
from rstar2_jax import run_folder
from rstar2_jax import selection
from rstar2_jax import transcript
from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.grpo import batching
from rstar2_jax.rewards import penalties


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
    trajectories = [t for group in chosen for t in group.trajectories]
    logprobs, entropies = self._scores(trajectories, params)
    return [
        trajectory_records.Record(
            step=step, trajectory=t, fate=fate, advantage=advantage,
            pieces=tuple(tuple(self._tokenizer.pieces(span.token_ids))
                         for span in t.spans),
            error_ratio=penalties.error_ratio(t),
            answer_format=penalties.answer_format(t),
            learner_logprobs=tuple(logprob), entropy=tuple(entropy))
        for t, (fate, advantage), logprob, entropy in zip(
            trajectories, itertools.chain.from_iterable(
                selection.fates(chosen, kept, self._cfg)),
            logprobs, entropies, strict=True)]

  def _scores(self, trajectories, params) -> list[list[list[float]]]:
    """Logprobs and entropies of sampled tokens, per trajectory."""
    batch = batching.pack(
        trajectories, np.zeros(len(trajectories)),
        row_tokens=self._cfg.batch.row_tokens)
    return [
        [x.tolist() for x in batching.unpack_sampled(
            np.asarray(values), trajectories)]
        for values in self._learner.scores(params, batch)]


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
