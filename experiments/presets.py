"""One recipe in three sizes: what all stages of a preset share.

A stage's card (`sft.py`, `stage1.py`, ...) says what differs from here. `paper`
and `smollm2` have not been run.
"""

from rstar2_jax import config

# Short programs with few numbers, so that a policy of half a million parameters
# learns to write them in a minute; --data.families= takes all.
_LAPTOP_FAMILIES = (
    "arithmetic_chain", "base", "base_digits", "choices", "digit_count",
    "digit_sum", "divisors", "gcd", "lcm", "modular_power", "multiples",
    "primes", "progression", "recurrence", "sum_of_powers")

LAPTOP = config.Config(
    preset="laptop",
    data=config.DataConfig(families=_LAPTOP_FAMILIES, max_prompt_tokens=56),
    policy=config.PolicyConfig(
        num_layers=2, intermediate_size=256, rope_theta=300.0),
    sft=config.SftConfig(
        num_demonstrations=16_000, slip_rate=0.6, num_epochs=1, batch_size=8,
        optimizer="muon", learning_rate=0.01, weight_decay=0.0),
    rollout=config.RolloutConfig(
        prompts_per_step=16, group_size=16, max_turns=4,
        max_response_tokens=136),
    engine=config.EngineConfig(num_slots=128, max_seq_len=192),
    # A right program takes milliseconds; a loop without end keeps one of two
    # cores busy until its CPU limit.
    tool=config.ToolConfig(timeout_s=2.0, cpu_timeout_s=0.25),
    roc=config.RocConfig(keep=8),
    optimizer=config.OptimizerConfig(
        learning_rate=4e-4, warmup_steps=4, b2=0.99, weight_decay=0.0),
    batch=config.BatchConfig(row_tokens=192, rows_per_micro_batch=8),
)

# SmolLM2-135M-Instruct from a local folder (--policy.path=DIR): one GPU, or a
# CPU and an evening.
SMOLLM2 = config.Config(
    preset="smollm2",
    data=config.DataConfig(train="", heldout="", max_prompt_tokens=640),
    policy=config.PolicyConfig(dtype="bfloat16"),
    sft=config.SftConfig(
        data="", num_demonstrations=20_000, batch_size=16,
        learning_rate=1e-4),
    rollout=config.RolloutConfig(
        prompts_per_step=32, group_size=16, max_turns=4,
        max_response_tokens=768, trajectory_timeout_s=1800,
        step_timeout_s=7200, request_timeout_s=900),
    engine=config.EngineConfig(
        num_slots=64, max_seq_len=1408, prefill_rows=8, prefill_chunk=128),
    tool=config.ToolConfig(max_response_chars=512),
    roc=config.RocConfig(keep=8),
    optimizer=config.OptimizerConfig(learning_rate=3e-6),
    batch=config.BatchConfig(row_tokens=2048, rows_per_micro_batch=2),
    eval=config.EvalConfig(num_problems=500),
)

# Qwen3-14B-Base (--policy.path=DIR) on 64 accelerators with SGLang servers
# (--rollout.urls=...): paper, sections 4 and 5.1.
PAPER = config.Config(
    preset="paper",
    data=config.DataConfig(train="", heldout="", max_prompt_tokens=2048),
    policy=config.PolicyConfig(dtype="bfloat16"),
    sft=config.SftConfig(
        data="", num_demonstrations=222_000, num_epochs=3, batch_size=128,
        learning_rate=5e-6, warmup_ratio=0.04),
    rollout=config.RolloutConfig(
        prompts_per_step=512, group_size=32, max_turns=10,
        max_response_tokens=8192, request_timeout_s=3600,
        trajectory_timeout_s=7200, step_timeout_s=14_400),
    engine=config.EngineConfig(
        num_slots=64, max_seq_len=14_336, prefill_rows=1, prefill_chunk=2048,
        decode_steps=16),
    tool=config.ToolConfig(max_response_chars=1024, memory_mb=1024),
    roc=config.RocConfig(keep=16),
    optimizer=config.OptimizerConfig(learning_rate=1e-6, warmup_steps=20),
    batch=config.BatchConfig(row_tokens=14_336, rows_per_micro_batch=64),
    eval=config.EvalConfig(num_problems=60, num_samples=16),
)

PRESETS = {"laptop": LAPTOP, "smollm2": SMOLLM2, "paper": PAPER}
