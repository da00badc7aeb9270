"""What is learned and how: the policy, SFT, RoC, the loss, the optimizer."""

import dataclasses
from typing import Literal

from rstar2_jax import config_fields

field = config_fields.field
_require = config_fields.require
_require_positive = config_fields.require_positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyConfig:
  """The model; sizes are read only where a policy is made from scratch."""

  path: str = field("", "Hugging Face folder to start from; empty: from"
                    " scratch with the sizes below.")
  num_layers: int = field(4, "Decoder layers.")
  hidden_size: int = field(128, "Model width.")
  intermediate_size: int = field(384, "MLP width.")
  num_heads: int = field(4, "Query heads.")
  num_kv_heads: int = field(2, "Key/value heads.")
  head_dim: int = field(32, "Width of a head.")
  rope_theta: float = field(10_000.0, "Base of rotary positions; small where"
                            " contexts are short.")
  vocab_size: int = field(512, "Tokenizer size aimed at, special tokens"
                          " included.")
  dtype: Literal["float32", "bfloat16"] = field(
      "float32", "Compute dtype; parameters and reductions stay float32.")
  remat: bool = field(False, "Recompute layers in the backward pass: less"
                      " memory, more time.")
  attention: Literal["auto", "xla", "chunked", "splash", "triton"] = field(
      "auto", "Attention of the learner; auto: the backend's kernel where rows"
      " fit it.")

  def __post_init__(self):
    _require_positive(
        self, "policy", "num_layers", "hidden_size",
        "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
    _require(self.num_heads % self.num_kv_heads == 0, "policy.num_kv_heads",
             self.num_kv_heads, f"a divisor of policy.num_heads="
             f"{self.num_heads}")
    _require(self.head_dim % 2 == 0, "policy.head_dim", self.head_dim, "even")
    _require(self.vocab_size >= 320, "policy.vocab_size", self.vocab_size,
             "at least 320 (256 bytes and the protocol's tokens)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SftConfig:
  """Non-reasoning SFT: format and tool use only (paper, section 4.1)."""

  num_demonstrations: int = field(6000, "Demonstrations made or read.")
  data: str = field("procedural", "'procedural' or a .jsonl file of"
                    " conversations.")
  max_level: int = field(2, "Highest difficulty among demonstrations, 1-3.")
  slip_rate: float = field(0.35, "Share of demonstrations whose program"
                           " answers a neighbouring question.")
  fault_rate: float = field(0.3, "Share of demonstrations whose first call"
                            " fails and is repaired.")
  num_epochs: int = field(2, "Passes over the demonstrations.")
  batch_size: int = field(64, "Packed rows per update.")
  optimizer: Literal["adamw", "muon"] = field(
      "adamw", "Muon learns small policies from scratch in fewer updates.")
  learning_rate: float = field(3e-3, "Peak learning rate.")
  weight_decay: float = field(0.01, "Decoupled decay of matrices.")
  warmup_ratio: float = field(0.04, "Share of updates with linear warm-up"
                              " (paper: 4 %).")

  def __post_init__(self):
    for name in ("slip_rate", "fault_rate", "warmup_ratio"):
      value = getattr(self, name)
      _require(0 <= value <= 1, f"sft.{name}", value, "from 0 to 1")
    _require_positive(
        self, "sft", "num_demonstrations", "num_epochs", "batch_size",
        "learning_rate")
    _require(1 <= self.max_level <= 3, "sft.max_level", self.max_level,
             "1, 2 or 3")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RocConfig:
  """Resample-on-Correct (paper, section 2.2.3)."""

  enabled: bool = field(True, "Resample groups; --noroc.enabled trains on the"
                        " whole group.")
  mode: Literal["paper", "release", "random"] = field(
      "paper", "Halves with weighted positives (paper), the released code's"
      " quotas and lowest penalties (release), or any of the group, which"
      " matches RoC's compute without its choice (random).")
  keep: int = field(8, "Trajectories kept per group (paper: 16 of 32).")
  use_error_ratio: bool = field(True, "Count erroneous tool calls (Eq. 4).")
  use_answer_format: bool = field(True, "Count answer tags (Eq. 5).")
  use_repetition: bool = field(False, "Count repeated n-grams of tokens; the"
                               " paper tried it and dropped it (section 5.3).")
  repetition_ngram: int = field(5, "Length of those n-grams [tokens].")
  repetition_count: int = field(5, "How often an n-gram may occur before its"
                                " occurrences count as repeated.")
  epsilon: float = field(0.1, "Added to a penalty before it is inverted"
                         " (paper mode; the paper gives no value).")
  min_negatives: int = field(2, "Release mode: least negatives kept.")
  min_positives: int = field(2, "Release mode: least positives kept.")

  def __post_init__(self):
    _require_positive(self, "roc", "keep", "repetition_ngram",
                      "repetition_count")
    _require(self.epsilon > 0, "roc.epsilon", self.epsilon, "positive")
    for name in ("min_negatives", "min_positives"):
      value = getattr(self, name)
      _require(value >= 0, f"roc.{name}", value, "at least 0")
    _require(self.min_negatives + self.min_positives <= self.keep, "roc.keep",
             self.keep, "at least roc.min_negatives + roc.min_positives")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
  """What is taken off the outcome reward in training; evaluation has none."""

  tool_error_penalty: float = field(
      0.0, "Times a trajectory's share of erroneous calls, taken off its"
      " reward; 0: outcome only (paper).")

  def __post_init__(self):
    # Under 1, so that a right answer stays above 0, a wrong one at most 0.
    _require(0 <= self.tool_error_penalty < 1, "reward.tool_error_penalty",
             self.tool_error_penalty, "at least 0 and under 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """GRPO loss (paper, Eq. 6)."""

  clip_low: float = field(0.2, "Ratio is clipped at 1 - clip_low.")
  clip_high: float = field(0.28, "Ratio is clipped at 1 + clip_high"
                           " (DAPO's clip-higher).")
  dual_clip: float | None = field(None, "Bound on the loss of negative"
                                  " advantages; the original's stack has 3.")
  normalize_by_std: bool = field(True, "Divide advantages by the group's"
                                 " standard deviation.")
  std_ddof: int = field(0, "Degrees of freedom of that deviation (0 or 1).")
  std_epsilon: float = field(1e-6, "Added to that deviation.")
  normalization: Literal["token", "sequence", "dr_grpo"] = field(
      "token", "Global token mean (Eq. 6), mean of sequence means, or Dr.GRPO's"
      " constant length.")
  kl_coef: float = field(0.0, "Weight of the KL term to the reference policy;"
                         " 0: none (paper).")
  entropy_coef: float = field(0.0, "Weight of the entropy bonus; 0: none"
                              " (paper).")
  filter_overlong: bool = field(False, "Truncated trajectories stay in the"
                                " group's mean but not in the loss (DAPO).")
  importance_cap: float | None = field(None, "Cap of truncated importance"
                                       " weights for the rollout-learner gap;"
                                       " None: off.")

  def __post_init__(self):
    _require(0 < self.clip_low < 1, "loss.clip_low", self.clip_low,
             "between 0 and 1")
    _require(self.clip_high > 0, "loss.clip_high", self.clip_high, "positive")
    _require(self.dual_clip is None or self.dual_clip > 1, "loss.dual_clip",
             self.dual_clip, "None or over 1")
    _require(self.std_ddof in (0, 1), "loss.std_ddof", self.std_ddof, "0 or 1")
    _require(self.std_epsilon >= 0, "loss.std_epsilon", self.std_epsilon,
             "at least 0")
    _require(self.kl_coef >= 0, "loss.kl_coef", self.kl_coef, "at least 0")
    _require(self.importance_cap is None or self.importance_cap > 0,
             "loss.importance_cap", self.importance_cap, "None or positive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """AdamW (paper, section 5.1)."""

  learning_rate: float = field(1e-6, "Peak learning rate.")
  warmup_steps: int = field(20, "Updates with linear warm-up.")
  schedule: Literal["constant", "cosine"] = field(
      "constant", "Shape after the warm-up.")
  b1: float = field(0.9, "Decay of the first moment.")
  b2: float = field(0.999, "Decay of the second moment.")
  eps: float = field(1e-8, "Added to the root of the second moment.")
  weight_decay: float = field(0.01, "Decoupled decay of matrices.")
  max_grad_norm: float = field(1.0, "Global-norm clipping.")
  reset: bool = field(False, "Start with fresh optimizer state (stage 3).")

  def __post_init__(self):
    for name in ("learning_rate", "warmup_steps"):
      value = getattr(self, name)
      _require(value >= 0, f"optimizer.{name}", value, "at least 0")
    for name in ("b1", "b2"):
      value = getattr(self, name)
      _require(0 <= value < 1, f"optimizer.{name}", value, "in [0, 1)")
    _require(self.max_grad_norm > 0, "optimizer.max_grad_norm",
             self.max_grad_norm, "positive")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig:
  """Packing and micro-batching; changes speed and memory, never the loss."""

  row_tokens: int = field(320, "Length of a packed row [tokens].")
  rows_per_micro_batch: int = field(16, "Rows per forward and backward pass.")

  def __post_init__(self):
    _require_positive(self, "batch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
  """Devices by axis; -1 takes what is left."""

  data: int = field(1, "Data-parallel replicas.")
  fsdp: int = field(-1, "Shards of parameters and batch.")
  tensor: int = field(1, "Shards of heads and MLP.")

  def __post_init__(self):
    for f in dataclasses.fields(self):
      value = getattr(self, f.name)
      _require(value == -1 or value > 0, f"mesh.{f.name}", value,
               "-1 or positive")
    _require([self.data, self.fsdp, self.tensor].count(-1) <= 1, "mesh.fsdp",
             self.fsdp, "positive where another axis is -1")
