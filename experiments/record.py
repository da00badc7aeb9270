"""Records of any policy's trajectories, for `view` and `analyze`.

    python -m experiments.record --policy.path=DIR --out=seen
    python -m experiments.record --policy.path=DIR --out=seen --served \\
        --rollout.urls=http://HOST:30000
    python -m experiments.view seen

Samples held-out problems as a training step would: --rollout.group_size
samples each at --rollout.temperature, with what Resample-on-Correct would keep.
With --served the servers have the weights, and entropies come from their top
20 logprobs (at most a little too large); else from the policy in DIR.
"""

import asyncio
from collections.abc import Sequence
import dataclasses
import errno
import os
from typing import Any

from experiments import config_flags
from experiments import evaluate
from experiments import predecessor
from experiments import run_pages
from rstar2_jax import config
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import types
from rstar2_jax.data import trajectory_records

CONFIGS = evaluate.CONFIGS
_field = config_fields.field


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """How much is sampled, and where it goes."""

  problems: int = _field(16, "Held-out problems, the first ones.")
  out: str = _field("recorded", "Folder written to; an earlier record there is"
                    " replaced.")
  served: bool = _field(
      False, "The servers of --rollout.urls have the weights already; of"
      " --policy.path only the tokenizer is read.")

  def __post_init__(self):
    config_fields.require_positive(self, "", "problems")
    config_fields.require(bool(self.out), "out", self.out, "a folder's name")


def main(options: Options, argv: list[str]) -> None:
  """Samples, scores, writes."""
  cfg = config_flags.build(argv, CONFIGS)
  cfg = config_flags.replace(cfg, {"eval.num_problems": options.problems})
  path = cfg.policy.path or predecessor.finished_policy(cfg)
  folder = _make_folder(options.out)  # before anything is sampled
  # Here, so that --help and wrong flags are answered without loading JAX.
  # pylint: disable=g-import-not-at-top
  from rstar2_jax import assembly
  from rstar2_jax import selection
  from rstar2_jax import trajectory_log
  # pylint: enable=g-import-not-at-top
  prompts = assembly.heldout_prompts(cfg)
  with assembly.open_sampling(cfg, path, served=options.served) as workers:
    groups = workers.collect(prompts, step=0)
  kept = selection.select(groups, cfg, 0)
  policy = assembly.load_policy(cfg, path, with_weights=not options.served)
  if options.served:
    scores = _served(cfg, groups, policy.tokenizer.vocab_size)
  else:
    scores = trajectory_log.learner_scores(
        assembly.scoring_learner(cfg, policy), policy.params, groups,
        row_tokens=cfg.batch.row_tokens)
  records = trajectory_log.records(
      0, groups, kept, cfg, policy.tokenizer, scores)
  run_pages.write(os.path.join(folder, trajectory_records.file_name(0)),
                  trajectory_records.to_bytes(records))
  print(f"{len(records)} trajectories of {len(prompts)} problems:"
        f" {options.out}; see them by: python -m experiments.view"
        f" {options.out}")


def _make_folder(out: str) -> str:
  """The folder of records, which is not a run's.

  Raises:
    errors.UserError: it is, or it cannot be made.
  """
  if os.path.exists(os.path.join(out, "config.json")):
    raise errors.UserError(
        f"--out={out}: is a run's folder, whose records would be mixed with"
        " these; give another")
  folder = os.path.join(out, "trajectories")
  try:
    os.makedirs(folder, exist_ok=True)
    if not os.access(folder, os.W_OK):
      raise PermissionError(errno.EACCES, "no permission")
  except OSError as e:
    raise errors.UserError(
        f"--out={out}: cannot be written ({e.strerror})") from e
  return folder


def _served(
    cfg: config.Config, groups: Sequence[types.TrajectoryGroup], num_ids: int
) -> list[Any]:
  """Scores of all trajectories by the first server."""
  # pylint: disable=g-import-not-at-top
  from rstar2_jax import trajectory_log
  from rstar2_jax.rollout import sampler_client
  from rstar2_jax.rollout import served_scores
  # pylint: enable=g-import-not-at-top

  async def score_all() -> list[Any]:
    client = sampler_client.HttpClient(
        cfg.rollout.urls[0], timeout_s=cfg.rollout.request_timeout_s)
    try:
      return [trajectory_log.Score(*await served_scores.of_trajectory(
          t, client, num_ids=num_ids)) for g in groups for t in g.trajectories]
    finally:
      await client.close()

  try:
    return asyncio.run(score_all())
  except (sampler_client.ServerError, TimeoutError) as e:
    raise errors.UserError(f"--rollout.urls: {e}") from e


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, CONFIGS)
