"""RL stage 2 (paper, section 4.3): longer responses, the whole difficulty.

    python -m experiments.stage2                   # laptop: the whole loop
    python -m experiments.stage2 --noroc.enabled   # ablation: plain GRPO
    python -m experiments.stage2 --roc.mode=release --loss.clip_high=0.2

Paper: 85 steps, 12K tokens, 10 turns. Starts from stage 1; laptop runs SFT and
stage 1 first if they are missing.
"""

import dataclasses

from experiments import config_flags
from experiments import predecessor
from experiments import presets
from experiments import report
from experiments import stage1

_LAPTOP = dataclasses.replace(
    presets.LAPTOP, stage="stage2", num_steps=40,
    optimizer=dataclasses.replace(
        presets.LAPTOP.optimizer, learning_rate=1.5e-4))
_SMOLLM2 = dataclasses.replace(
    presets.SMOLLM2, stage="stage2", num_steps=50,
    rollout=dataclasses.replace(
        presets.SMOLLM2.rollout, max_response_tokens=1024),
    engine=dataclasses.replace(presets.SMOLLM2.engine, max_seq_len=1664))
_PAPER = dataclasses.replace(
    presets.PAPER, stage="stage2", num_steps=85,
    rollout=dataclasses.replace(
        presets.PAPER.rollout, max_response_tokens=12_288))

CONFIGS = {"laptop": _LAPTOP, "smollm2": _SMOLLM2, "paper": _PAPER}


def main(cfg):
  """Runs or continues the stage, after its predecessors."""
  # Here, so that --help and wrong flags are answered without loading JAX.
  from rstar2_jax import rl_loop  # pylint: disable=g-import-not-at-top
  rl_loop.train(cfg, start=predecessor.require(cfg, stage1))
  report.write(cfg)


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
