"""Groups of trajectories for a batch of prompts.

The training loop is synchronous; everything below is asyncio. A collector owns
one event loop in one thread, in which all episodes of a step run at once, each
admitted by the scheduler, its calls sent the moment a turn ends and its answer
graded the moment it ends.
"""

import asyncio
import collections
from collections.abc import Callable, Coroutine, Sequence
import concurrent.futures
import dataclasses
import threading
import time
from typing import Any

from rstar2_jax import types
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import scheduler as scheduler_lib
from rstar2_jax.rollout import seeds
from rstar2_jax.rollout import tool_client


class Collector:
  """Runs groups of episodes; one at a time, from any thread."""

  def __init__(
      self,
      *,
      tokenizer: Any,
      servers: Sequence[scheduler_lib.Server],
      tools: tool_client.SandboxClient,
      grade: Callable[[types.Trajectory], types.Trajectory],
      **admission,
  ):
    """Takes the parts; owns none of them but its own thread.

    Args:
      tokenizer: a chat.tokenizer.Tokenizer.
      servers: rollout servers.
      tools: client of the sandbox runners.
      grade: sets the reward of a finished trajectory; fast and pure.
      **admission: mode and its numbers, see `scheduler.Scheduler`.
    """
    self._tokenizer = tokenizer
    self._tools = tools
    self._grade = grade
    self.scheduler = scheduler_lib.Scheduler(servers, **admission)
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(
        target=self._loop.run_forever, name="rollout", daemon=True)
    self._thread.start()

  def collect(
      self,
      prompts: Sequence[types.Prompt],
      *,
      group_size: int,
      limits: episode.Limits,
      seed_parts: tuple[int | str, ...],
      timeout_s: float,
      on_done: Callable[[types.Trajectory], None] = lambda _: None,
  ) -> list[types.TrajectoryGroup]:
    """Samples and grades `group_size` trajectories for each prompt.

    Args:
      prompts: P problems.
      group_size: G, trajectories per prompt.
      limits: budgets and sampling parameters of each.
      seed_parts: identity of this collection, e.g. (seed, "train", step).
      timeout_s: deadline of the whole; what is not done then is masked out.
      on_done: called in the rollout thread after each trajectory.

    Returns:
      P groups in the order of `prompts`, G trajectories each in order of
      sample, whatever order they ended in.
    """
    return self.run(self._collect(
        prompts, group_size, limits, seed_parts, timeout_s, on_done))

  def converse(
      self, text: str, *, before: types.Trajectory | None,
      limits: episode.Limits, seed_parts: tuple[int | str, ...],
      on_event: episode.OnEvent,
  ) -> types.Trajectory:
    """One ungraded trajectory that answers a person.

    Args:
      text: what the person says.
      before: the conversation that it goes on with; None: `text` is a problem
        by itself, as in training.
      limits: budgets of the answer, and sampling parameters.
      seed_parts: identity of the draw.
      on_event: see `episode.run`; called in the rollout thread.

    Returns:
      The trajectory; all that was said before is its prompt.
    """
    ids = (self._tokenizer.render_prompt(text) if before is None else
           [*before.token_ids,
            *self._tokenizer.reply_ids(before.token_ids[-1], text)])
    prompt = types.Prompt(id="conversation", problem=text, answer="")
    return self.run(self._sample(
        prompt, 0, ids, limits, seed_parts,
        f"{seeds.derive(*seed_parts):08x}", on_event))

  def run(self, coroutine: Coroutine) -> Any:
    """Runs a coroutine in the rollout thread and waits for it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
    try:
      return future.result()
    except (KeyboardInterrupt, concurrent.futures.CancelledError):
      future.cancel()
      raise

  def close(self) -> None:
    """Closes the tool connections and ends the thread."""
    self.run(self._tools.close())
    for server in self.scheduler.servers:
      self.run(server.client.close())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join(timeout=5)

  async def _collect(
      self, prompts, group_size, limits, seed_parts, timeout_s, on_done
  ) -> list[types.TrajectoryGroup]:
    deadline_s = time.monotonic() + timeout_s
    collection = f"{seeds.derive(*seed_parts):08x}"
    tasks = []
    num_seen: collections.Counter[str] = collections.Counter()
    for p, prompt in enumerate(prompts):
      # A small data set can repeat a prompt within a step; its samples must
      # still differ (P24).
      repeat = num_seen[prompt.id]
      num_seen[prompt.id] += 1
      identity = (*seed_parts, prompt.id)
      if repeat:
        identity += (f"repeat {repeat}",)
      prompt_ids = self._tokenizer.render_prompt(prompt.problem)
      tasks += [
          asyncio.ensure_future(self._episode(
              prompt, sample, prompt_ids, limits, identity,
              f"{collection}-{p:06d}-{sample:04d}", deadline_s, on_done))
          for sample in range(group_size)]
    try:
      trajectories = await asyncio.gather(*tasks)
    except BaseException:
      for task in tasks:
        task.cancel()
      raise
    return [
        types.TrajectoryGroup(
            prompt=prompt,
            trajectories=tuple(
                trajectories[p * group_size:(p + 1) * group_size]))
        for p, prompt in enumerate(prompts)]

  async def _episode(
      self, prompt, sample, prompt_ids, limits, identity, rid, deadline_s,
      on_done,
  ) -> types.Trajectory:
    try:
      async with asyncio.timeout(deadline_s - time.monotonic()):
        trajectory = await self._sample(
            prompt, sample, prompt_ids, limits, identity, rid)
    except TimeoutError:
      trajectory = types.Trajectory(
          prompt=prompt, sample=sample, spans=(types.Span(
              token_ids=tuple(prompt_ids), source=types.Source.PROMPT),),
          stop_reason=types.StopReason.INFRA_ERROR)
    if not trajectory.is_masked_out:
      begin_s = time.monotonic()
      trajectory = self._grade(trajectory)
      trajectory = dataclasses.replace(trajectory, timings={
          **trajectory.timings, "grade_s": time.monotonic() - begin_s})
    on_done(trajectory)
    return trajectory

  async def _sample(
      self, prompt, sample, prompt_ids, limits, identity, rid,
      on_event: episode.OnEvent = lambda _: None,
  ) -> types.Trajectory:
    """An ungraded trajectory, as soon as a server has room for it."""
    worst_case = min(
        limits.max_seq_len, len(prompt_ids) + limits.max_response_tokens)
    async with self.scheduler.admit(len(prompt_ids), worst_case) as lease:
      trajectory = await episode.run(
          prompt, sample, prompt_ids=prompt_ids, tokenizer=self._tokenizer,
          sampler=_Metered(self.scheduler, lease), tools=self._tools,
          limits=limits, rid=rid,
          seed_of_turn=lambda turn: seeds.derive(*identity, sample, turn),
          on_event=on_event)
      self.scheduler.grow(lease, len(trajectory.token_ids))
      return trajectory


class _Metered:
  """The sampler of a trajectory, which tells the scheduler how it grows."""

  def __init__(
      self, scheduler: scheduler_lib.Scheduler, lease: scheduler_lib.Lease
  ):
    self._scheduler = scheduler
    self._lease = lease

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """See episode.Sampler."""
    self._scheduler.grow(self._lease, len(request.input_ids))
    return await self._lease.server.client.generate(request)
