"""One trajectory: sample a turn, run its tool calls, append, repeat.

The loop of rstar2_agent (paper, section 2.1), on token ids throughout:

1. Sample a turn with what is left of the response budget.
2. Append the ids, source POLICY.
3. Stop if the turn was cut off.
4. Read tool calls from this turn's ids alone; none -> stop.
5. Stop if this was the last allowed turn, or if the budget is used up.
6. Run all calls of the turn at once; malformed ones get a typed error.
7. Append the tool message (TEMPLATE and TOOL ids), if it fits the budget.

The budget counts everything after the prompt, tool output included.
"""

import asyncio
from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any, Protocol

from absl import logging

from rstar2_jax import types
from rstar2_jax.chat import parsing
from rstar2_jax.chat import tool_text
from rstar2_jax.rollout import sampler_client
from rstar2_jax.rollout import tool_client

_LOG_EVERY_S = 10

# What a watcher of a trajectory is told: a turn's text, or a call's outcome.
Event = str | types.ToolResult
OnEvent = Callable[[Event], None]


class Sampler(Protocol):
  """Samples one turn; a rollout server bound to one trajectory."""

  async def generate(self, request: types.SampleRequest) -> types.SampleResult:
    """Samples; raises as sampler_client.SamplerClient does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
  """Budgets of one trajectory and how it is sampled."""

  max_turns: int
  max_response_tokens: int
  max_seq_len: int  # prompt and response together
  max_tool_calls_per_turn: int
  max_parse_errors: int
  max_response_chars: int
  temperature: float
  top_p: float = 1.0
  top_k: int = -1
  timeout_s: float = 300.0


@dataclasses.dataclass
class _State:
  """What has happened so far."""

  spans: list[types.Span]
  on_event: OnEvent
  calls: list[types.ToolCall] = dataclasses.field(default_factory=list)
  results: list[types.ToolResult] = dataclasses.field(default_factory=list)
  turn_texts: list[str] = dataclasses.field(default_factory=list)
  parse_errors_in_a_row: int = 0
  sample_s: float = 0.0
  tool_s: float = 0.0

  def ids(self) -> list[int]:
    return [i for span in self.spans for i in span.token_ids]

  def num_response_tokens(self) -> int:
    return sum(len(span.token_ids) for span in self.spans[1:])


async def run(
    prompt: types.Prompt,
    sample: int,
    *,
    prompt_ids: Sequence[int],
    tokenizer: Any,
    sampler: Sampler,
    tools: tool_client.ToolClient,
    limits: Limits,
    seed_of_turn: Callable[[int], int],
    rid: str,
    on_event: OnEvent = lambda _: None,
) -> types.Trajectory:
  """Runs one trajectory to its end; never raises for a failing server.

  Args:
    prompt: the problem.
    sample: index within its group.
    prompt_ids: rendered prompt, generation header included.
    tokenizer: a chat.tokenizer.Tokenizer.
    sampler: where turns are sampled.
    tools: where programs run.
    limits: budgets and sampling parameters.
    seed_of_turn: maps the 0-based turn to the seed of its sampling.
    rid: prefix of the request ids, of fixed width.
    on_event: called with each turn's text and each call's outcome, as they
      come; fast, since all trajectories share its thread.

  Returns:
    The ungraded trajectory. A server or tool that fails, refuses or does not
    answer in time gives StopReason.INFRA_ERROR, which is masked out and never
    scored. Without room to sample anything it is MAX_TOKENS without a turn.
  """
  start_s = time.monotonic()
  state = _State(on_event=on_event, spans=[types.Span(
      token_ids=tuple(prompt_ids), source=types.Source.PROMPT)])
  try:
    async with asyncio.timeout(limits.timeout_s):
      stop_reason = await _take_turns(
          state, tokenizer=tokenizer, sampler=sampler, tools=tools,
          limits=limits, seed_of_turn=seed_of_turn, rid=rid)
  except (ConnectionError, TimeoutError, sampler_client.ServerError) as e:
    _warn(str(e) or f"not done within {limits.timeout_s} s")
    stop_reason = types.StopReason.INFRA_ERROR
  # A turn cut off by the deadline leaves calls without results.
  num_done = len(state.results)
  return types.Trajectory(
      prompt=prompt, sample=sample, spans=tuple(state.spans),
      tool_calls=tuple(state.calls[:num_done]),
      tool_results=tuple(state.results), stop_reason=stop_reason,
      turn_texts=tuple(state.turn_texts),
      timings={"wall_s": time.monotonic() - start_s,
               "sample_s": state.sample_s, "tool_s": state.tool_s})


async def _take_turns(
    state: _State, *, tokenizer, sampler, tools, limits: Limits, seed_of_turn,
    rid: str,
) -> types.StopReason:
  if _budget(state, limits) <= 0:
    return types.StopReason.MAX_TOKENS
  for turn in range(limits.max_turns):
    finish_reason = await _sample_turn(
        state, turn, tokenizer=tokenizer, sampler=sampler, limits=limits,
        seed=seed_of_turn(turn), rid=rid)
    if finish_reason == "abort":
      return types.StopReason.ABORTED
    if finish_reason == "length":
      return types.StopReason.MAX_TOKENS
    text = state.turn_texts[-1]
    calls = parsing.parse_tool_calls(text, turn)
    if not calls:
      return (types.StopReason.ANSWERED if parsing.has_answer(text)
              else types.StopReason.NO_TOOL_CALL)
    if turn + 1 == limits.max_turns:
      return types.StopReason.MAX_TURNS
    if _budget(state, limits) <= 0:
      return types.StopReason.MAX_TOKENS
    stop_reason = await _use_tools(
        state, calls, tokenizer=tokenizer, tools=tools, limits=limits)
    if stop_reason is not None:
      return stop_reason
  raise AssertionError("unreachable: the last turn always returns")


def _budget(state: _State, limits: Limits) -> int:
  """Tokens that may still be appended."""
  num_response = state.num_response_tokens()
  num_prompt = len(state.spans[0].token_ids)
  return min(limits.max_response_tokens - num_response,
             limits.max_seq_len - num_prompt - num_response)


async def _sample_turn(
    state: _State, turn: int, *, tokenizer, sampler, limits: Limits, seed: int,
    rid: str,
) -> str:
  """Appends one sampled span; returns the server's finish reason."""
  start_s = time.monotonic()
  result = await sampler.generate(types.SampleRequest(
      rid=f"{rid}-{turn:02d}", input_ids=state.ids(),
      max_new_tokens=_budget(state, limits), temperature=limits.temperature,
      top_p=limits.top_p, top_k=limits.top_k,
      stop_token_ids=tokenizer.stop_ids, seed=seed))
  state.sample_s += time.monotonic() - start_s
  state.spans.append(types.Span(
      token_ids=tuple(result.output_ids), source=types.Source.POLICY,
      logprobs=tuple(result.logprobs), policy_version=result.policy_version,
      seed=seed))
  state.turn_texts.append(tokenizer.decode(result.output_ids))
  state.on_event(state.turn_texts[-1])
  return result.finish_reason


async def _use_tools(
    state: _State, calls: Sequence[types.ToolCall], *, tokenizer, tools,
    limits: Limits,
) -> types.StopReason | None:
  """Runs the calls of a turn and appends the answers, or says why not."""
  for call in calls:
    state.parse_errors_in_a_row = (
        0 if call.status is None else state.parse_errors_in_a_row + 1)
  calls = _cap(calls, limits.max_tool_calls_per_turn)
  start_s = time.monotonic()
  state.calls.extend(calls)
  results = await asyncio.gather(*(_execute(call, tools) for call in calls))
  state.results.extend(results)
  state.tool_s += time.monotonic() - start_s
  for result in results:
    state.on_event(result)
  for result in results:
    if result.status.is_infra_error:
      _warn(f"{result.status}: {result.message}")
      return types.StopReason.INFRA_ERROR
  if state.parse_errors_in_a_row >= limits.max_parse_errors:
    return types.StopReason.PARSE_ERROR_LIMIT
  texts = [tool_text.render(r, max_chars=limits.max_response_chars)
           for r in results]
  spans = tokenizer.tool_result_spans(texts)
  # At least one token must be left to sample after the tool message.
  if sum(len(s.token_ids) for s in spans) >= _budget(state, limits):
    return types.StopReason.MAX_TOKENS
  state.spans.extend(spans)
  return None


def _warn(reason: str) -> None:
  logging.log_every_n_seconds(
      logging.WARNING, "a trajectory is left out: %s", _LOG_EVERY_S, reason)


def _cap(
    calls: Sequence[types.ToolCall], max_calls: int
) -> list[types.ToolCall]:
  """Turns calls beyond the limit into typed errors; none vanishes."""
  message = f"only {max_calls} calls per turn are run"
  return [call if i < max_calls or call.status is not None
          else dataclasses.replace(
              call, status=types.ToolStatus.BAD_ARGUMENTS, message=message)
          for i, call in enumerate(calls)]


async def _execute(
    call: types.ToolCall, tools: tool_client.ToolClient
) -> types.ToolResult:
  if call.status is not None:
    return types.ToolResult(status=call.status, message=call.message)
  return await tools.execute(call.arguments["code"], call.arguments["input"])
