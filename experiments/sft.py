"""Non-reasoning SFT (paper, section 4.1): format and tool use, nothing else.

    python -m experiments.sft                      # laptop: about 1.5 minutes
    python -m experiments.sft --preset=paper --policy.path=DIR \\
        --sft.data=conversations.jsonl             # not run: needs accelerators

The laptop's demonstrations are not filtered by correctness: part of their
programs answer a neighbouring question and part fail first and are repaired
(--sft.slip_rate, --sft.fault_rate), so the policy learns how to call Python
and leaves to RL which program is right.
"""

import dataclasses

from experiments import config_flags
from experiments import presets
from experiments import report

CONFIGS = {
    name: dataclasses.replace(cfg, stage="sft")
    for name, cfg in presets.PRESETS.items()
}


def main(cfg):
  """Runs or continues the stage."""
  # Here, so that --help and wrong flags are answered without loading JAX.
  from rstar2_jax import sft_loop  # pylint: disable=g-import-not-at-top
  sft_loop.train(cfg)
  report.write(cfg)


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
