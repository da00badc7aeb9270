"""Rollout servers and sandbox of a run: started, or found by URL; stopped."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
import contextlib
from typing import Any

import aiohttp

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import types
from rstar2_jax.chat import tokenizer as tokenizer_lib
from rstar2_jax.engine import engine as engine_lib
from rstar2_jax.evaluation import heldout
from rstar2_jax.evaluation import samples as samples_lib
from rstar2_jax.learner import weight_sync
from rstar2_jax.policy import model
from rstar2_jax.rewards import reward
from rstar2_jax.rollout import collector as collector_lib
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import sampler_client
from rstar2_jax.rollout import sandbox_process
from rstar2_jax.rollout import scheduler
from rstar2_jax.rollout import tool_client

# More lost to infrastructure than this share, and what is left is no sample of
# the policy: trajectories that never call the tool survive a dead sandbox.
_MAX_LOST = 0.2
# A server that does not say how much KV it holds is trusted with this much.
_DEFAULT_KV_TOKENS = 100_000


class Workers:
  """Samples and evaluates with one set of weights at a time."""

  def __init__(
      self, cfg: config.Config, collector: collector_lib.Collector,
      sync: weight_sync.WeightSync, max_seq_len: int,
      verify: samples_lib.Verify,
  ):
    self._cfg = cfg
    self._verify = verify
    self._collector = collector
    self._sync = sync
    self._limits = episode.Limits(
        max_turns=cfg.rollout.max_turns,
        max_response_tokens=cfg.rollout.max_response_tokens,
        max_seq_len=min(max_seq_len, cfg.batch.row_tokens),
        max_tool_calls_per_turn=cfg.rollout.max_tool_calls_per_turn,
        max_parse_errors=cfg.rollout.max_parse_errors,
        max_response_chars=cfg.tool.max_response_chars,
        temperature=cfg.rollout.temperature, top_p=cfg.rollout.top_p,
        top_k=cfg.rollout.top_k, timeout_s=cfg.rollout.trajectory_timeout_s)

  def push(self, params: Any, policy_version: int) -> None:
    """Gives new weights to every server and proves that they have them.

    Raises:
      errors.UserError: a server does not answer, or holds other weights.
    """
    try:
      self._sync.push(params, policy_version)
    except RuntimeError as e:
      raise errors.UserError(
          f"{e}; when the server is mended, run the same command again") from e

  def collect(
      self, prompts: Sequence[types.Prompt], step: int
  ) -> list[types.TrajectoryGroup]:
    """Graded groups of a training step.

    Raises:
      errors.UserError: too many trajectories were lost to infrastructure.
    """
    cfg = self._cfg
    groups = self._collector.collect(
        prompts, group_size=cfg.rollout.group_size, limits=self._limits,
        seed_parts=(cfg.seed, cfg.stage, step),
        timeout_s=cfg.rollout.step_timeout_s)
    _check_alive(groups, f"step {step}")
    return groups

  def take_statistics(self) -> dict[str, float]:
    """How the servers were used since last asked, see `Scheduler`."""
    return self._collector.scheduler.take_statistics()

  def evaluate(
      self, prompts: Sequence[types.Prompt],
      on_done: Callable[[types.Trajectory], None] = lambda _: None,
  ) -> tuple[dict[str, Any], list[types.TrajectoryGroup]]:
    """Held-out metrics (`heldout.evaluate`) of the weights pushed last.

    Raises:
      errors.UserError: too many trajectories were lost to infrastructure.
    """
    cfg = self._cfg
    metrics, groups = heldout.evaluate(
        self._collector, prompts, num_samples=cfg.eval.num_samples,
        temperature=cfg.eval.temperature, limits=self._limits, seed=cfg.seed,
        timeout_s=cfg.rollout.step_timeout_s, on_done=on_done)
    _check_alive(groups, "evaluation")
    return metrics, groups

  def sample(
      self, prompts: Sequence[types.Prompt], *, num_samples: int,
      on_done: Callable[[types.Trajectory], None],
  ) -> None:
    """Samples every problem at the evaluation's temperature.

    Unlike `evaluate` it grades nothing that needs more than the strict grader,
    and hands on what is lost to infrastructure like the rest.

    Args:
      prompts: problems; the draws of each depend on the seed and its id
        alone.
      num_samples: k, samples per problem.
      on_done: called in the rollout thread with each trajectory.
    """
    cfg = self._cfg
    self._collector.collect(
        prompts, group_size=num_samples, seed_parts=("samples", cfg.seed),
        limits=heldout.untruncated(self._limits, cfg.eval.temperature),
        timeout_s=float("inf"), on_done=on_done)

  def converse(
      self, text: str, *, before: types.Trajectory | None, number: int,
      on_event: episode.OnEvent,
  ) -> types.Trajectory:
    """Answers a person at the evaluation's temperature.

    Args:
      text: what the person says.
      before: the conversation so far, see `Collector.converse`.
      number: of the answer in its session; seeds it.
      on_event: told of turns and results as they come, in another thread.

    Raises:
      KeyboardInterrupt: Ctrl-C; the answer was given up.
    """
    cfg = self._cfg
    return self._collector.converse(
        text, before=before, seed_parts=("conversation", cfg.seed, number),
        limits=heldout.untruncated(self._limits, cfg.eval.temperature),
        on_event=on_event)

  def grade_samples(
      self, pairs: Sequence[tuple[types.Prompt, samples_lib.Sample]]
  ) -> list[tuple[bool | None, bool | None]]:
    """Strict and lenient verdicts, see `samples.grade`."""
    return self._collector.run(samples_lib.grade(pairs, self._verify))


def _check_alive(
    groups: Sequence[types.TrajectoryGroup], where: str
) -> None:
  is_lost = [t.is_masked_out for g in groups for t in g.trajectories]
  if sum(is_lost) > _MAX_LOST * len(is_lost):
    raise errors.UserError(
        f"{where}: {sum(is_lost)} of {len(is_lost)} trajectories were lost to"
        " infrastructure, not to the policy; see what the sandbox and the"
        " rollout servers say, then run the same command again")


@contextlib.contextmanager
def open_workers(
    cfg: config.Config, tokenizer: tokenizer_lib.Tokenizer,
    model_config: model.ModelConfig, params: Any, *, scratch: str,
) -> Iterator[Workers]:
  """Starts what is not given by URL, checks what is.

  Args:
    cfg: the configuration.
    tokenizer: the policy's.
    model_config: the policy's.
    params: its first weights.
    scratch: folder for snapshots of weights on their way to servers.

  Raises:
    errors.UserError: something does not start or answer.
  """
  with contextlib.ExitStack() as stack:
    tools = _open_tools(cfg, stack)
    sync: weight_sync.WeightSync
    if cfg.rollout.urls:
      servers, max_seq_len = _remote_servers(cfg)
      sync = weight_sync.DiskSync(
          cfg.rollout.urls, folder=scratch, model_config=model_config,
          tokenizer=tokenizer)
    else:
      engine = stack.enter_context(contextlib.closing(engine_lib.Engine(
          params, model_config, cfg.engine, num_ids=tokenizer.vocab_size)))
      servers = [scheduler.Server(
          name="engine", client=sampler_client.InProcessClient(engine),
          kv_capacity=engine.kv_capacity,
          # One more would push a trajectory whose tool runs out of its slot,
          # and all its KV would be computed again.
          max_running=cfg.engine.num_slots)]
      sync = weight_sync.InProcessSync(engine)
      max_seq_len = cfg.engine.max_seq_len
    collector = stack.enter_context(contextlib.closing(
        collector_lib.Collector(
            tokenizer=tokenizer, servers=servers, tools=tools,
            grade=reward.grade, mode=cfg.rollout.admission,
            quantile=cfg.rollout.admission_quantile,
            overcommit=cfg.rollout.overcommit)))
    try:
      collector.run(tools.check())
    except ConnectionError as e:
      flag = "--tool.urls: " if cfg.tool.urls else ""
      raise errors.UserError(f"{flag}{e}") from e
    yield Workers(cfg, collector, sync, max_seq_len, tools.verify)


def _open_tools(
    cfg: config.Config, stack: contextlib.ExitStack
) -> tool_client.SandboxClient:
  urls = cfg.tool.urls
  if not urls:
    try:
      process = stack.enter_context(contextlib.closing(
          sandbox_process.SandboxProcess(isolation=cfg.tool.isolation)))
    except ConnectionError as e:
      raise errors.UserError(
          f"--tool.isolation={cfg.tool.isolation}: {e}") from e
    urls = (process.url,)
    progress.say(f"sandbox runner: {process.description}")
  return tool_client.SandboxClient(
      urls, timeout_s=cfg.tool.timeout_s, cpu_timeout_s=cfg.tool.cpu_timeout_s,
      memory_mb=cfg.tool.memory_mb, deadline_s=cfg.tool.deadline_s)


def _remote_servers(
    cfg: config.Config,
) -> tuple[list[scheduler.Server], int]:
  """Servers by URL, and the longest sequence that all of them take."""
  infos = asyncio.run(_server_infos(cfg.rollout.urls))
  servers = [
      scheduler.Server(
          name=url, client=sampler_client.HttpClient(
              url, timeout_s=cfg.rollout.request_timeout_s),
          kv_capacity=int(info.get("max_total_num_tokens")
                          or _DEFAULT_KV_TOKENS))
      for url, info in zip(cfg.rollout.urls, infos, strict=True)]
  lengths = [int(info.get("context_length") or info.get("max_req_input_len")
                 or cfg.engine.max_seq_len) for info in infos]
  return servers, min(lengths)


async def _server_infos(urls: Sequence[str]) -> list[dict[str, Any]]:
  timeout = aiohttp.ClientTimeout(total=30)
  async with aiohttp.ClientSession(timeout=timeout) as session:
    async def one(url: str) -> dict[str, Any]:
      try:
        async with session.get(f"{url.rstrip('/')}/server_info") as response:
          response.raise_for_status()
          return dict(await response.json(content_type=None))
      except (aiohttp.ClientError, OSError, TimeoutError, ValueError,
              TypeError) as e:
        raise errors.UserError(
            f"--rollout.urls: {url} does not answer /server_info"
            f" ({e or type(e).__name__}); start one with"
            " `python -m rstar2_jax.engine --model_path=DIR --port=30000`"
        ) from e
    return list(await asyncio.gather(*map(one, urls)))
