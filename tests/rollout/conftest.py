"""A real sandbox, and a rollout server that says what a test wrote."""

import asyncio
import dataclasses

import pytest

from rstar2_jax import types
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import sandbox_process
from rstar2_jax.rollout import tool_client

PROMPT = types.Prompt(id="p", problem="What is 12 + 30?", answer="42")
LIMITS = episode.Limits(
    max_turns=6, max_response_tokens=2000, max_seq_len=4000,
    max_tool_calls_per_turn=8, max_parse_errors=3, max_response_chars=256,
    temperature=1.0, timeout_s=30.0)


class ScriptedServer:
  """A rollout server: answers turn by turn, within the asked budget.

  Attributes:
    requests: all that it was asked.
  """

  def __init__(self, tokenizer, turns):
    """Takes what it is to say.

    Args:
      tokenizer: makes ids of texts.
      turns: one for each request: a text, end mark included; a text and its
        finish reason; ids; an exception to raise; or for how many seconds not
        to answer.
    """
    self._tokenizer = tokenizer
    self._turns = list(turns)
    self.requests = []

  async def generate(self, request):
    self.requests.append(request)
    turn = self._turns[len(self.requests) - 1]
    if isinstance(turn, Exception):
      raise turn
    if isinstance(turn, float):
      await asyncio.sleep(turn)
      raise AssertionError("was waited for")
    text, reason = turn if isinstance(turn, tuple) else (turn, "stop")
    ids = self._tokenizer.encode(text) if isinstance(text, str) else text
    ids = tuple(ids)
    if len(ids) > request.max_new_tokens:
      ids, reason = ids[:request.max_new_tokens], "length"
    return types.SampleResult(
        output_ids=ids,
        logprobs=tuple(-0.25 * (i + 1) for i in range(len(ids))),
        finish_reason=reason, policy_version=len(self.requests))

  async def close(self):
    pass


@pytest.fixture(scope="session", name="sandbox")
def _sandbox():
  process = sandbox_process.SandboxProcess()
  yield process
  process.close()


@pytest.fixture(name="make_tools")
def _make_tools(sandbox):
  """Makes clients of the sandbox; to be called where an event loop runs."""

  def make(*urls, deadline_s=20.0, timeout_s=1.0):
    return tool_client.SandboxClient(
        urls or [sandbox.url], timeout_s=timeout_s, cpu_timeout_s=timeout_s,
        memory_mb=256, deadline_s=deadline_s)

  return make


@pytest.fixture(name="make_server")
def _make_server(tokenizer):
  return lambda turns: ScriptedServer(tokenizer, turns)


@pytest.fixture(name="run_episode")
def _run_episode(tokenizer, make_server, make_tools):
  """Runs an episode of given turns; returns it and the server's requests."""

  def run(turns, tools=None, on_event=lambda _: None, **limits):
    async def main():
      server, client = make_server(turns), tools or make_tools()
      try:
        trajectory = await episode.run(
            PROMPT, 5, prompt_ids=tokenizer.render_prompt(PROMPT.problem),
            tokenizer=tokenizer, sampler=server, tools=client,
            limits=dataclasses.replace(LIMITS, **limits),
            seed_of_turn=lambda turn: 100 + turn, rid="r",
            on_event=on_event)
      finally:
        await client.close()
      return trajectory, server.requests

    return asyncio.run(main())

  return run
