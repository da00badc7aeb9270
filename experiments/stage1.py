"""RL stage 1 (paper, section 4.3): short responses, easier problems.

    python -m experiments.stage1                   # laptop
    python -m experiments.stage1 --preset=paper --policy.path=DIR \\
        --data.train=problems.jsonl --rollout.urls=http://HOST:30000,...

Paper: 300 steps, 8K tokens, 10 turns. Starts from SFT, which laptop runs first
if it is missing.
"""

import dataclasses

from experiments import config_flags
from experiments import predecessor
from experiments import presets
from experiments import report
from experiments import sft

_LAPTOP = dataclasses.replace(
    presets.LAPTOP, stage="stage1", num_steps=20,
    data=dataclasses.replace(presets.LAPTOP.data, max_level=2),
    rollout=dataclasses.replace(
        presets.LAPTOP.rollout, max_response_tokens=112, max_turns=3))
_SMOLLM2 = dataclasses.replace(presets.SMOLLM2, stage="stage1", num_steps=100)
_PAPER = dataclasses.replace(presets.PAPER, stage="stage1", num_steps=300)

CONFIGS = {"laptop": _LAPTOP, "smollm2": _SMOLLM2, "paper": _PAPER}


def main(cfg):
  """Runs or continues the stage, after its predecessor."""
  # Here, so that --help and wrong flags are answered without loading JAX.
  from rstar2_jax import rl_loop  # pylint: disable=g-import-not-at-top
  rl_loop.train(cfg, start=predecessor.require(cfg, sft))
  report.write(cfg)


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
