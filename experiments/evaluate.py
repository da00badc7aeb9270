"""Held-out pass@1 of a policy, or published benchmarks at the paper's protocol.

    python -m experiments.evaluate                           # stage 2, held-out
    python -m experiments.evaluate --policy.path=runs/laptop-s0-sft/policy
    python -m experiments.evaluate --preset=paper --benchmark=aime24,aime25 \\
        --policy.path=DIR --rollout.urls=http://127.0.0.1:30000
    python -m experiments.evaluate --benchmark=mine=problems.jsonl

Without --benchmark: avg@k on held-out problems, the families, and as the last
line a JSON object; nothing is written. With it: avg@k, pass@k, maj@k with 95 %
intervals clustered by problem. Samples go to WORKDIR/evaluations/LABEL, one
line each; the same command goes on where it was stopped, and the table shows
all labels of the work directory.
"""

import dataclasses
import json
import os
import re

from experiments import config_flags
from experiments import predecessor
from experiments import stage2
from rstar2_jax import config_fields

_field = config_fields.field

# Paper, section 5.1: 30 turns, 30K tokens; the preset has its 16 samples and
# temperature 0.6.
_STAGE2 = stage2.CONFIGS["paper"]
_PAPER = dataclasses.replace(
    _STAGE2,
    rollout=dataclasses.replace(
        _STAGE2.rollout, max_turns=30, max_response_tokens=30_720),
    engine=dataclasses.replace(_STAGE2.engine, max_seq_len=32_768),
    batch=dataclasses.replace(_STAGE2.batch, row_tokens=32_768))
CONFIGS = {**stage2.CONFIGS, "paper": _PAPER}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What is evaluated."""

  benchmark: tuple[str, ...] = _field(
      (), "Names (aime24, aime25, hmmt25, math500, gsm8k, gpqa_diamond: from"
      " the hub) or NAME=FILE (.jsonl, .json, .parquet); empty: held-out"
      " problems of --data.heldout.")
  label: str = _field("", "Name of this model in tables and folders; empty:"
                      " from the policy's folder.")
  served: bool = _field(
      False, "The servers of --rollout.urls have the weights already; of"
      " --policy.path only the tokenizer is read.")
  first: int = _field(0, "Only the first problems of each benchmark; 0: all.")

  def __post_init__(self):
    config_fields.require(self.first >= 0, "first", self.first, "at least 0")
    config_fields.require(
        re.fullmatch(r"[\w.+=-]*", self.label) is not None
        and self.label not in (".", ".."), "label",
        self.label, "letters, digits and . + = - _")


def main(options: Options, argv: list[str]) -> None:
  """Evaluates and prints."""
  cfg = config_flags.build(argv, CONFIGS)
  path = cfg.policy.path or predecessor.finished_policy(cfg)
  if options.benchmark:
    # Here, so that --help and wrong flags are answered without loading JAX.
    from experiments import benchmark_run  # pylint: disable=g-import-not-at-top
    benchmark_run.run(
        cfg, path, options.benchmark, label=options.label or label_of(path),
        served=options.served, first=options.first)
    return
  from rstar2_jax import assembly  # pylint: disable=g-import-not-at-top
  from rstar2_jax import stage_report  # pylint: disable=g-import-not-at-top
  evaluation = assembly.evaluate_folder(cfg, path, served=options.served)
  summary = stage_report.summarize(
      path, evaluation, (), num_steps=0, wall_s=0.0)
  print(stage_report.table(summary))
  for name, value in evaluation["by_source"].items():
    print(f"  {name}: {100 * value:.1f} %")
  print(json.dumps({"policy": path, **evaluation}))


def label_of(path: str) -> str:
  """"laptop-s0-stage2" for runs/laptop-s0-stage2/policy."""
  parts = os.path.abspath(path).split(os.sep)
  name = parts[-2] if parts[-1] == "policy" and len(parts) > 1 else parts[-1]
  return re.sub(r"[^\w.+=-]", "_", name) or "policy"


if __name__ == "__main__":
  config_flags.run_with_options(main, Options, CONFIGS)
