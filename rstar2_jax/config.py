"""Every knob, grouped by room, with its unit; one absl flag each.

Frozen dataclasses; `experiments/config_flags.py` makes `--group.field` flags
of them. A field's help is its `metadata["help"]`. Allowed types: bool, int,
float, str, Literal, `X | None`, and tuples of these. `__post_init__` checks
values with the flag's name in the message.
"""

import dataclasses
from typing import Literal

from rstar2_jax import config_fields
from rstar2_jax import config_learning

PolicyConfig = config_learning.PolicyConfig
SftConfig = config_learning.SftConfig
RocConfig = config_learning.RocConfig
RewardConfig = config_learning.RewardConfig
LossConfig = config_learning.LossConfig
OptimizerConfig = config_learning.OptimizerConfig
BatchConfig = config_learning.BatchConfig
MeshConfig = config_learning.MeshConfig

field = config_fields.field
_require = config_fields.require
_require_levels = config_fields.require_levels
_require_positive = config_fields.require_positive
_require_urls = config_fields.require_urls


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
  admission: Literal["worst_case", "expected", "static", "least_loaded"] = (
      field("worst_case", "When a server takes a trajectory: with room for its"
            " longest or its expected length, or at once."))
  admission_quantile: float = field(0.75, "Of known lengths, to which"
                                    " `expected` takes a response to grow.")
  overcommit: float = field(5.0, "How often the longest lengths of all that"
                            " `expected` admits may fill a server's KV.")
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
    _require(0 < self.admission_quantile <= 1, "rollout.admission_quantile",
             self.admission_quantile, "over 0 and at most 1")
    _require(self.overcommit >= 1, "rollout.overcommit", self.overcommit,
             "at least 1")
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
  groups_per_step: int = field(2, "Whole groups kept per step as records, for"
                               " `view` and `analyze`.")
  tensorboard: bool = field(True, "Write TensorBoard events.")
  wandb: str = field("", "Weights & Biases project to log to (needs `pip"
                     " install wandb`); empty: none.")

  def __post_init__(self):
    for name in ("trajectories_per_step", "groups_per_step"):
      value = getattr(self, name)
      _require(value >= 0, f"log.{name}", value, "at least 0")


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
  profile_steps: str = field("", "Steps of which a JAX profiler trace is"
                             " written, FIRST:END, e.g. 3:5 for steps 3 and"
                             " 4; empty: none.")
  data: DataConfig = DataConfig()
  policy: PolicyConfig = PolicyConfig()
  sft: SftConfig = SftConfig()
  rollout: RolloutConfig = RolloutConfig()
  engine: EngineConfig = EngineConfig()
  tool: ToolConfig = ToolConfig()
  roc: RocConfig = RocConfig()
  reward: RewardConfig = RewardConfig()
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
    first, _, end = self.profile_steps.partition(":")
    _require(not self.profile_steps or first.isdecimal() and end.isdecimal()
             and int(first) < int(end), "profile_steps", self.profile_steps,
             "FIRST:END with FIRST < END, e.g. 3:5")
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
