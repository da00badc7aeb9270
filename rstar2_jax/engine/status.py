"""What a server says about itself, in SGLang's words.

Numbers are read while the engine's thread writes them: each is right for some
moment, and two of them not always for the same one.
"""

import datetime
import time
from typing import Any, Protocol

from rstar2_jax.engine import engine as engine_lib

_VERSION = "rstar2_jax"


class _Settings(Protocol):
  @property
  def model_path(self) -> str: ...
  @property
  def random_seed(self) -> int: ...
  @property
  def host(self) -> str: ...
  @property
  def port(self) -> int: ...


class Status:
  """Answers of the info routes.

  Attributes:
    model_path: folder that the weights came from last.
  """

  def __init__(self, engine: engine_lib.Engine, settings: _Settings):
    self.model_path = settings.model_path
    self._engine = engine
    self._settings = settings
    self._mark = (time.monotonic(), 0)
    self._throughput = 0.0

  def model_info(self) -> dict[str, Any]:
    """/model_info."""
    values = self._engine.model_config.to_hf()
    return {
        "model_path": self.model_path, "served_model_name": self.model_path,
        "tokenizer_path": self._settings.model_path, "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": self._engine.weight_version,
        "model_type": values["model_type"],
        "architectures": values["architectures"],
    }

  def server_info(self) -> dict[str, Any]:
    """/server_info."""
    config, load = self._engine.config, self._load()
    return {
        "model_path": self.model_path, "host": self._settings.host,
        "port": self._settings.port, "dtype": self._engine.model_config.dtype,
        "random_seed": self._settings.random_seed,
        "context_length": config.max_seq_len,
        "max_req_input_len": config.max_seq_len - 1,
        "max_total_num_tokens": self._engine.kv_capacity,
        "max_running_requests": config.num_slots,
        "weight_version": self._engine.weight_version,
        "version": _VERSION, "status": "ready",
        "internal_states": [{
            "last_gen_throughput": load["gen_throughput"],
            "effective_max_running_requests_per_dp": config.num_slots,
            "memory_usage": {"token_capacity": self._engine.kv_capacity},
        }],
    }

  def loads(self) -> dict[str, Any]:
    """/v1/loads."""
    now = datetime.datetime.now(datetime.UTC)
    return {"timestamp": now.isoformat(), "version": _VERSION,
            "loads": [{"timestamp": time.time(), "dp_rank": 0} | self._load()]}

  def metrics(self) -> str:
    """/metrics, in Prometheus' text format."""
    load, counters = self._load(), self._engine.batcher.counters
    gauges = {name: load[name] for name in (
        "num_used_tokens", "max_total_num_tokens", "token_usage",
        "gen_throughput", "cache_hit_rate", "num_running_reqs")}
    gauges |= {"num_queue_reqs": load["num_waiting_reqs"],
               "num_retracted_reqs": counters.retracted,
               "num_paused_reqs": load["queues"]["paused"]}
    totals = {"prompt_tokens_total": counters.prompt_tokens,
              "generation_tokens_total": counters.sampled_tokens,
              "cached_tokens_total": counters.cached_tokens,
              "num_requests_total": counters.requests,
              "num_aborted_requests_total": counters.aborted}
    lines = []
    label = self.model_path.replace("\\", "\\\\").replace('"', '\\"')
    for kind, values in (("gauge", gauges), ("counter", totals)):
      for name, value in values.items():
        lines += [f"# TYPE sglang:{name} {kind}",
                  f'sglang:{name}{{model_name="{label}"}} {value}']
    return "\n".join(lines) + "\n"

  def _load(self) -> dict[str, Any]:
    batcher = self._engine.batcher
    slots, counters = batcher.slots, batcher.counters
    capacity = self._engine.kv_capacity
    running, waiting = slots.num_running, len(batcher.queue)
    used = int(slots.num_known[slots.state != 0].sum())
    return {
        "num_running_reqs": running, "num_waiting_reqs": waiting,
        "num_used_tokens": used, "max_total_num_tokens": capacity,
        "max_running_requests": self._engine.config.num_slots,
        "token_usage": round(used / capacity, 4),
        "gen_throughput": self._gen_throughput(counters.sampled_tokens),
        "cache_hit_rate": round(
            counters.cached_tokens / max(1, counters.prompt_tokens), 4),
        "queues": {"waiting": waiting,
                   "paused": running if self._engine.is_paused else 0},
    }

  def _gen_throughput(self, num_sampled: int) -> float:
    """Tokens per second since about a second ago, or the last question."""
    now = time.monotonic()
    start, before = self._mark
    if now - start >= 1.0:
      self._throughput = round((num_sampled - before) / (now - start), 1)
      self._mark = (now, num_sampled)
    return self._throughput
