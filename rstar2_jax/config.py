"""Every knob, grouped by room, with its unit; one absl flag each.

Frozen dataclasses; `experiments/config_flags.py` makes `--group.field` flags
of them. A field's help is its `metadata["help"]`. Allowed types: bool, int,
float, str, Literal, `X | None`, and tuples of these. `__post_init__` checks
values with the flag's name in the message.
"""

import dataclasses
import re
from typing import Any, Literal


def field(default: Any, help: str) -> Any:  # pylint: disable=redefined-builtin
  """A dataclass field with a one-line help text for its flag."""
  return dataclasses.field(default=default, metadata={"help": help})


def _require(condition: bool, flag: str, value: Any, allowed: str) -> None:
  if not condition:
    raise ValueError(f"--{flag}={value}: must be {allowed}")


def _require_levels(name: str, lowest: int, highest: int) -> None:
  _require(1 <= lowest <= 3, f"{name}.min_level", lowest, "1, 2 or 3")
  _require(lowest <= highest <= 3, f"{name}.max_level", highest,
           f"from {name}.min_level={lowest} to 3")


def _require_positive(group: Any, name: str, *fields: str) -> None:
  for f in fields or [f.name for f in dataclasses.fields(group)]:
    value = getattr(group, f)
    _require(value > 0, f"{name}.{f}", value, "positive")


def _require_urls(flag: str, urls: tuple[str, ...]) -> None:
  for url in urls:
    _require(re.fullmatch(r"https?://[^\s/]+(/\S*)?", url) is not None, flag,
             url, "a URL such as http://127.0.0.1:30000")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
  """Where problems come from."""

  train: str = field("procedural", "Training problems: 'procedural', a .jsonl"
                     " file of {problem, answer}, or hf:NAME.")
  heldout: str = field("procedural", "Held-out problems, same forms.")
  families: tuple[str, ...] = field((), "Procedural families to use; empty:"
                                    " all.")
  min_level: int = field(1, "Lowest difficulty of procedural problems, 1-3.")
  max_level: int = field(3, "Highest difficulty of procedural problems, 1-3.")
  max_prompt_tokens: int = field(512, "Longer prompts are left out [tokens].")

  def __post_init__(self):
    _require_levels("data", self.min_level, self.max_level)
    _require(self.max_prompt_tokens > 0, "data.max_prompt_tokens",
             self.max_prompt_tokens, "a positive number of tokens")


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
class RolloutConfig:
  """Sampling of trajectories (paper, section 5.1)."""

  urls: tuple[str, ...] = field((), "Rollout servers that speak SGLang's API;"
                                " empty: the engine in this process.")
  prompts_per_step: int = field(16, "Prompts per step (paper: 512).")
  group_size: int = field(16, "Trajectories per prompt, before RoC"
                          " (paper: 32).")
  max_turns: int = field(4, "Assistant turns per trajectory (paper: 10, 10,"
                         " 15).")
  max_response_tokens: int = field(160, "Budget of a response, tool output"
                                   " included [tokens].")
  max_tool_calls_per_turn: int = field(8, "Calls of one turn that are run;"
                                       " further ones get a typed error.")
  max_parse_errors: int = field(3, "Malformed calls in a row that end a"
                                " trajectory.")
  temperature: float = field(1.0, "Sampling temperature.")
  top_p: float = field(1.0, "Nucleus mass; below 1 only for evaluation.")
  top_k: int = field(-1, "Candidates per token; -1: all.")
  request_timeout_s: float = field(120.0, "Deadline of one sampling request.")
  trajectory_timeout_s: float = field(300.0, "Deadline of one trajectory.")
  step_timeout_s: float = field(900.0, "Deadline of all rollouts of a step.")

  def __post_init__(self):
    _require_urls("rollout.urls", self.urls)
    _require_positive(
        self, "rollout", "prompts_per_step", "group_size", "max_turns",
        "max_response_tokens", "max_tool_calls_per_turn",
        "max_parse_errors", "temperature")
    _require(0 < self.top_p <= 1, "rollout.top_p", self.top_p,
             "over 0 and at most 1")
    _require(self.top_k == -1 or self.top_k > 0, "rollout.top_k", self.top_k,
             "-1 or positive")
    _require(0 < self.request_timeout_s <= self.trajectory_timeout_s,
             "rollout.request_timeout_s", self.request_timeout_s,
             "positive and at most rollout.trajectory_timeout_s="
             f"{self.trajectory_timeout_s}")
    _require(self.trajectory_timeout_s <= self.step_timeout_s,
             "rollout.trajectory_timeout_s", self.trajectory_timeout_s,
             f"at most rollout.step_timeout_s={self.step_timeout_s}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
  """The embedded rollout engine's shapes."""

  num_slots: int = field(128, "Sequences decoded at once.")
  max_seq_len: int = field(320, "Prompt and response of one sequence"
                           " [tokens].")
  prefill_rows: int = field(16, "Sequences prefilled in one dispatch.")
  prefill_chunk: int = field(32, "Prompt tokens per row of one prefill"
                             " dispatch.")
  decode_steps: int = field(8, "Decode steps per dispatch.")

  def __post_init__(self):
    _require_positive(self, "engine")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolConfig:
  """The Python tool."""

  urls: tuple[str, ...] = field((), "Sandbox runners; empty: one is started"
                                " as a child process.")
  isolation: Literal["namespaces", "landlock", "none"] = field(
      "namespaces", "Isolation of a sandbox runner that this run starts.")
  timeout_s: float = field(4.0, "Wall limit of one call (original: 4 s).")
  cpu_timeout_s: float = field(2.0, "CPU limit of one call [s].")
  memory_mb: int = field(512, "Memory limit of one call [MiB].")
  deadline_s: float = field(30.0, "Deadline of one call with queue and retries"
                            " [s].")
  max_response_chars: int = field(256, "Tool text shown to the model; the"
                                  " middle is cut [characters].")

  def __post_init__(self):
    _require_urls("tool.urls", self.urls)
    _require_positive(
        self, "tool", "timeout_s", "cpu_timeout_s", "memory_mb",
        "max_response_chars")
    # Else a loop without end looks like a fault of ours.
    _require(self.deadline_s >= self.timeout_s + 1, "tool.deadline_s",
             self.deadline_s, "at least a second over tool.timeout_s="
             f"{self.timeout_s}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RocConfig:
  """Resample-on-Correct (paper, section 2.2.3)."""

  enabled: bool = field(True, "Resample groups; --noroc.enabled trains on the"
                        " whole group.")
  mode: Literal["paper", "release"] = field(
      "paper", "Halves with weighted positives (paper), or the released code's"
      " quotas and lowest penalties (release).")
  keep: int = field(8, "Trajectories kept per group (paper: 16 of 32).")
  use_error_ratio: bool = field(True, "Count erroneous tool calls (Eq. 4).")
  use_answer_format: bool = field(True, "Count answer tags (Eq. 5).")
  epsilon: float = field(0.1, "Added to a penalty before it is inverted"
                         " (paper mode; the paper gives no value).")
  min_negatives: int = field(2, "Release mode: least negatives kept.")
  min_positives: int = field(2, "Release mode: least positives kept.")

  def __post_init__(self):
    _require(self.keep > 0, "roc.keep", self.keep, "positive")
    _require(self.epsilon > 0, "roc.epsilon", self.epsilon, "positive")
    for name in ("min_negatives", "min_positives"):
      value = getattr(self, name)
      _require(value >= 0, f"roc.{name}", value, "at least 0")
    _require(self.min_negatives + self.min_positives <= self.keep, "roc.keep",
             self.keep, "at least roc.min_negatives + roc.min_positives")


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
  """What is kept on disk."""

  every_steps: int = field(10, "Steps between checkpoints; the last step is"
                           " always saved.")
  every_updates: int = field(200, "SFT updates between checkpoints; likewise.")
  keep: int = field(2, "Newest checkpoints kept.")

  def __post_init__(self):
    _require_positive(self, "checkpoint")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
  """Held-out evaluation before and after a stage."""

  num_problems: int = field(200, "Held-out problems; 0: no evaluation.")
  num_samples: int = field(4, "Samples per problem (avg@k; paper: 16).")
  temperature: float = field(0.6, "Sampling temperature (paper: 0.6).")
  min_level: int = field(1, "Lowest difficulty of procedural problems, 1-3; the"
                         " same for all stages, so that they compare.")
  max_level: int = field(3, "Highest difficulty of procedural problems, 1-3.")

  def __post_init__(self):
    _require_levels("eval", self.min_level, self.max_level)
    _require(self.num_problems >= 0, "eval.num_problems", self.num_problems,
             "at least 0")
    _require(self.num_samples > 0, "eval.num_samples", self.num_samples,
             "positive")
    _require(self.temperature >= 0, "eval.temperature", self.temperature,
             "at least 0 (0: greedy)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig:
  """What a run writes besides checkpoints."""

  trajectories_per_step: int = field(2, "Full trajectories kept per step as"
                                     " text.")
  tensorboard: bool = field(True, "Write TensorBoard events.")

  def __post_init__(self):
    _require(self.trajectories_per_step >= 0, "log.trajectories_per_step",
             self.trajectories_per_step, "at least 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """One experiment."""

  preset: Literal["laptop", "smollm2", "paper"] = field(
      "laptop", "Size of everything; a flag given beside it wins.")
  stage: str = field("stage2", "Set by the experiment, not by hand.")
  seed: int = field(0, "Seed of every random draw.")
  workdir: str = field("runs", "Folder of all runs.")
  name: str = field("", "Folder of this run inside the workdir; empty:"
                    " PRESET-sSEED-STAGE.")
  num_steps: int = field(20, "RL steps (paper: 300, 85, 125).")
  data: DataConfig = DataConfig()
  policy: PolicyConfig = PolicyConfig()
  sft: SftConfig = SftConfig()
  rollout: RolloutConfig = RolloutConfig()
  engine: EngineConfig = EngineConfig()
  tool: ToolConfig = ToolConfig()
  roc: RocConfig = RocConfig()
  loss: LossConfig = LossConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  batch: BatchConfig = BatchConfig()
  mesh: MeshConfig = MeshConfig()
  checkpoint: CheckpointConfig = CheckpointConfig()
  eval: EvalConfig = EvalConfig()
  log: LogConfig = LogConfig()

  def __post_init__(self):
    _require(self.num_steps >= 0, "num_steps", self.num_steps, "at least 0")
    _require(self.seed >= 0, "seed", self.seed, "at least 0")
    _require("/" not in self.name and self.name not in (".", ".."), "name",
             self.name, "a name without '/'")
    _require(not self.roc.enabled or self.roc.keep <= self.rollout.group_size,
             "roc.keep", self.roc.keep, "at most rollout.group_size="
             f"{self.rollout.group_size}")
    longest = self.data.max_prompt_tokens + self.rollout.max_response_tokens
    _require(self.batch.row_tokens >= min(longest, self.engine.max_seq_len)
             or bool(self.rollout.urls), "batch.row_tokens",
             self.batch.row_tokens, "at least the longest trajectory (smaller"
             " of data.max_prompt_tokens + rollout.max_response_tokens and"
             " engine.max_seq_len)")
