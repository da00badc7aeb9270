"""Held-out pass@1 of a finished stage, or of any Hugging Face folder.

    python -m experiments.evaluate                           # stage 2
    python -m experiments.evaluate --policy.path=runs/laptop-s0-sft/policy
    python -m experiments.evaluate --eval.num_problems=1000 --eval.num_samples=8

avg@k with the live tool (paper, section 5.1: k = 16 at temperature 0.6). Prints
the table, the families, and as the last line a JSON object; writes nothing.
"""

import json
import os

from experiments import config_flags
from experiments import stage2
from rstar2_jax import errors
from rstar2_jax import run_folder

CONFIGS = stage2.CONFIGS


def main(cfg):
  """Evaluates and prints."""
  path = cfg.policy.path
  if not path:
    run = run_folder.path_of(cfg)
    path = os.path.join(run, "policy")
    if not os.path.isdir(path):
      raise errors.UserError(
          f"{run} holds no finished policy; run python -m experiments.stage2"
          " first, or give --policy.path=DIR")
  # Here, so that --help and wrong flags are answered without loading JAX.
  # pylint: disable=g-import-not-at-top
  from rstar2_jax import assembly
  from rstar2_jax import stage_report
  evaluation = assembly.evaluate_folder(cfg, path)
  summary = stage_report.summarize(
      path, evaluation, (), num_steps=0, wall_s=0.0)
  print(stage_report.table(summary))
  for name, value in evaluation["by_source"].items():
    print(f"  {name}: {100 * value:.1f} %")
  print(json.dumps({"policy": path, **evaluation}))


if __name__ == "__main__":
  config_flags.run(main, CONFIGS)
