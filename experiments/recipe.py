"""The whole recipe in order: SFT, then RL stages 1, 2 and 3.

    python -m experiments.recipe

Flags beside --preset go to stage 3, the last; earlier stages take from them
what describes the run as a whole (seed, workdir, policy, tool, servers, data
files) and their own card for the rest. Stages that are done are not repeated.
"""

from experiments import config_flags
from experiments import stage3

CONFIGS = stage3.CONFIGS


def main(cfg):
  """Runs what is missing, in order."""
  stage3.main(cfg)


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
