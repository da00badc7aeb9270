"""Where a stage or an evaluation starts: what an earlier stage has left."""

import dataclasses
import os
from types import ModuleType

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import run_folder

# Flags that decide which policy the earlier stages make. Others may differ:
# one SFT and stage 1 serve many arms of stage 2.
_DEFINING = ("policy.", "sft.", "data.families")
_FREE = ("policy.attention", "policy.remat")  # speed and memory alone


def require(cfg: config.Config, stage: ModuleType) -> str:
  """Folder of the finished stage before `cfg`; the laptop makes it if needed.

  Args:
    cfg: the stage about to run.
    stage: module of the stage before it, with CONFIGS and main.

  Returns:
    The run folder of a finished predecessor with the same preset and seed.

  Raises:
    errors.UserError: it is missing and the preset is not `laptop` (the message
      holds the command to run), or it was made with another policy or SFT.
  """
  run_folder.check(cfg)  # before hours go into the stages before
  before = carry_over(cfg, stage.CONFIGS[cfg.preset])
  path = run_folder.path_of(before)
  if run_folder.is_finished(path):
    what = run_folder.differences(
        path, before, lambda name: (
            name.startswith(_DEFINING) and name not in _FREE))
    if what:
      raise errors.UserError(
          f"{cfg.stage} starts from {path}, which was made with other settings"
          f" ({what}); give those, or another --workdir")
    return path
  if cfg.preset != "laptop":
    raise errors.UserError(
        f"{cfg.stage} starts from {before.stage}, which is not finished in"
        f" {path}; run: python -m {stage.__name__} --preset={cfg.preset}"
        f" --seed={cfg.seed} --workdir={cfg.workdir}")
  print(f"{cfg.stage} starts from {before.stage}, which is not finished in"
        f" {path}: running it first", flush=True)
  stage.main(before)
  return path


def carry_over(cfg: config.Config, card: config.Config) -> config.Config:
  """The predecessor's card with what describes the run as a whole.

  A flag of one stage (a loss ablation, say) must not change the stage that all
  arms start from; the seed, the model and the places must be the same.
  """
  return dataclasses.replace(
      card,
      seed=cfg.seed, workdir=cfg.workdir,
      policy=cfg.policy, sft=cfg.sft, tool=cfg.tool, mesh=cfg.mesh,
      eval=cfg.eval, log=cfg.log, checkpoint=cfg.checkpoint,
      data=dataclasses.replace(
          card.data, train=cfg.data.train, heldout=cfg.data.heldout,
          families=cfg.data.families,
          max_prompt_tokens=cfg.data.max_prompt_tokens),
      rollout=dataclasses.replace(card.rollout, urls=cfg.rollout.urls))


def finished_policy(cfg: config.Config) -> str:
  """The Hugging Face folder that the run of `cfg` has left.

  Raises:
    errors.UserError: there is none.
  """
  run = run_folder.path_of(cfg)
  path = os.path.join(run, "policy")
  if not os.path.isdir(path):
    raise errors.UserError(
        f"{run} holds no finished policy; run python -m"
        f" experiments.{cfg.stage} --workdir={cfg.workdir} first, or give"
        " --policy.path=DIR")
  return path
