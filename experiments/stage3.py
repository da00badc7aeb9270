"""RL stage 3 (paper, section 4.3): hard problems, more turns, fresh optimizer.

    python -m experiments.stage3

Paper: 125 steps, 12K tokens, 15 turns, on the 17.3K problems that the stage-2
policy did not solve 8 times of 8; the optimizer state is reset. The laptop
takes problems of levels 2 and 3 instead of that filter.
"""

import dataclasses

from experiments import config_flags
from experiments import predecessor
from experiments import report
from experiments import stage2


def _stage3(cfg, num_steps, max_turns, min_level):
  return dataclasses.replace(
      cfg, stage="stage3", num_steps=num_steps,
      data=dataclasses.replace(cfg.data, min_level=min_level),
      rollout=dataclasses.replace(cfg.rollout, max_turns=max_turns),
      optimizer=dataclasses.replace(cfg.optimizer, reset=True))


CONFIGS = {
    "laptop": _stage3(stage2.CONFIGS["laptop"], 16, 5, 2),
    "smollm2": _stage3(stage2.CONFIGS["smollm2"], 50, 6, 1),
    "paper": _stage3(stage2.CONFIGS["paper"], 125, 15, 1),
}


def main(cfg):
  """Runs or continues the stage, after its predecessors."""
  # Here, so that --help and wrong flags are answered without loading JAX.
  from rstar2_jax import rl_loop  # pylint: disable=g-import-not-at-top
  rl_loop.train(cfg, start=predecessor.require(cfg, stage2))
  report.write(cfg)


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
