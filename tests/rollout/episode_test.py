"""One trajectory: why it ends, what counts, and who is to blame."""

import asyncio
import time

import pytest

from rstar2_jax import types
from rstar2_jax.chat import template
from rstar2_jax.rollout import sampler_client

Stop = types.StopReason
Status = types.ToolStatus
END = "<|im_end|>"
ANSWER = f"</reason>\n<answer>\\boxed{{42}}</answer>{END}"
MALFORMED = f"<tool_call>{{</tool_call>{END}"


def _call(code, stdin=""):
  return template.call_text(code, stdin)


class SlowTools:
  """A sandbox that takes its time, and says how many calls it has at once."""

  def __init__(self, seconds, status=Status.SUCCESS):
    self.seconds, self.status = seconds, status
    self.running = self.most = 0

  async def execute(self, code, stdin):
    self.running += 1
    self.most = max(self.most, self.running)
    await asyncio.sleep(self.seconds)
    self.running -= 1
    return types.ToolResult(status=self.status, stdout=code)

  async def close(self):
    pass


# --- why a trajectory ends ---------------------------------------------------


@pytest.mark.parametrize("turns, limits, reason, num_turns, num_calls", [
    ([ANSWER], {}, Stop.ANSWERED, 1, 0),
    ([_call("print(1)") + END, ANSWER], {}, Stop.ANSWERED, 2, 1),
    ([f"I give up.{END}"], {}, Stop.NO_TOOL_CALL, 1, 0),
    ([f"<answer>\\boxed{{1}}{END}"], {}, Stop.NO_TOOL_CALL, 1, 0),
    ([END], {}, Stop.NO_TOOL_CALL, 1, 0),
    # A call in the last allowed turn is not run.
    ([_call("print(1)") + END] * 3, {"max_turns": 3}, Stop.MAX_TURNS, 3, 2),
    ([_call("print(1)") + END], {"max_turns": 1}, Stop.MAX_TURNS, 1, 0),
    (["x" * 5000], {}, Stop.MAX_TOKENS, 1, 0),
    ([("cut", "length")], {}, Stop.MAX_TOKENS, 1, 0),
    # Cut off after a complete answer: it might have gone on (paper, 4.3.1).
    ([(ANSWER.removesuffix(END), "length")], {}, Stop.MAX_TOKENS, 1, 0),
    ([MALFORMED] * 3, {}, Stop.PARSE_ERROR_LIMIT, 3, 3),
    ([MALFORMED], {"max_parse_errors": 1}, Stop.PARSE_ERROR_LIMIT, 1, 1),
    ([("par", "abort")], {}, Stop.ABORTED, 1, 0),
    ([ConnectionError("gone")], {}, Stop.INFRA_ERROR, 0, 0),
    ([TimeoutError("late")], {}, Stop.INFRA_ERROR, 0, 0),
    ([sampler_client.ServerError("out of memory", 500)], {},
     Stop.INFRA_ERROR, 0, 0),
    ([_call("print(1)") + END, ConnectionError("gone")], {},
     Stop.INFRA_ERROR, 1, 1),
])
def test_stop_reasons(run_episode, turns, limits, reason, num_turns, num_calls):
  """Each of the seven reasons, with what had happened by then."""
  trajectory, requests = run_episode(turns, **limits)
  assert trajectory.stop_reason is reason
  assert trajectory.num_turns == num_turns
  assert len(trajectory.tool_calls) == len(trajectory.tool_results) == num_calls
  assert len(requests) == len(turns) or reason is Stop.MAX_TURNS
  assert trajectory.reward is None
  assert (trajectory.prompt.id, trajectory.sample) == ("p", 5)
  assert trajectory.is_masked_out == (reason in (Stop.ABORTED,
                                                 Stop.INFRA_ERROR))


def test_a_watcher_is_told_of_turns_and_results_as_they_come(run_episode):
  """Malformed calls too, and both calls of a turn, in their order."""
  turns = [_call("print(1)") + _call("1 / 0") + END, MALFORMED, ANSWER]
  events = []
  trajectory, _ = run_episode(turns, on_event=events.append)
  results = trajectory.tool_results
  assert [r.status for r in results] == [
      Status.SUCCESS, Status.RUNTIME_ERROR, Status.MALFORMED_CALL]
  assert events == [turns[0], *results[:2], turns[1], results[2], turns[2]]


# --- budgets -----------------------------------------------------------------


def test_the_budget_of_each_request_counts_all_before_it(run_episode):
  """Sampled and inserted tokens alike lessen what may still be sampled."""
  trajectory, requests = run_episode(
      [_call("print(12345)") + END, _call("print('a' * 50)") + END, ANSWER],
      max_response_tokens=500)
  num_prompt = len(trajectory.spans[0].token_ids)
  for request in requests:
    assert request.max_new_tokens == 500 - (len(request.input_ids) - num_prompt)


def test_the_sequence_limit_counts_the_prompt(run_episode, tokenizer):
  num_prompt = len(tokenizer.render_prompt("What is 12 + 30?"))
  _, requests = run_episode([ANSWER], max_response_tokens=500,
                            max_seq_len=num_prompt + 60)
  assert requests[0].max_new_tokens == 60


def test_a_prompt_that_leaves_no_room_is_not_sent(run_episode, tokenizer):
  num_prompt = len(tokenizer.render_prompt("What is 12 + 30?"))
  trajectory, requests = run_episode([], max_seq_len=num_prompt)
  assert not requests
  assert trajectory.stop_reason is Stop.MAX_TOKENS
  assert trajectory.num_response_tokens == 0


def test_an_answer_that_ends_with_the_budget_is_not_truncated(
    run_episode, tokenizer):
  """Its end mark was sampled; one token less, and it is cut off."""
  size = len(tokenizer.encode(ANSWER))
  trajectory, _ = run_episode([ANSWER], max_response_tokens=size)
  assert trajectory.stop_reason is Stop.ANSWERED
  trajectory, _ = run_episode([ANSWER], max_response_tokens=size - 1)
  assert trajectory.stop_reason is Stop.MAX_TOKENS
  assert trajectory.num_response_tokens == size - 1


def test_tool_output_over_the_budget_is_left_out(run_episode, tokenizer):
  """The last token stays a sampled one; one must fit after the message."""
  call = _call("print('x')") + END
  sampled = len(tokenizer.encode(call))
  inserted = sum(len(s.token_ids) for s in tokenizer.tool_result_spans(["x"]))
  trajectory, requests = run_episode(
      [call], max_response_tokens=sampled + inserted)
  assert trajectory.stop_reason is Stop.MAX_TOKENS
  assert trajectory.num_response_tokens == sampled and len(requests) == 1
  assert trajectory.spans[-1].source is types.Source.POLICY
  assert trajectory.tool_results[0].status is Status.SUCCESS
  trajectory, requests = run_episode(
      [call, "z" + ANSWER], max_response_tokens=sampled + inserted + 1)
  assert trajectory.stop_reason is Stop.MAX_TOKENS
  assert [r.max_new_tokens for r in requests] == [sampled + inserted + 1, 1]
  assert trajectory.num_response_tokens == sampled + inserted + 1


def test_a_call_without_budget_for_its_answer_is_not_run(
    run_episode, tokenizer):
  """The turn ends exactly with the budget: there is nothing to append to."""
  call = _call("print('x')") + END
  trajectory, _ = run_episode(
      [call], max_response_tokens=len(tokenizer.encode(call)))
  assert trajectory.stop_reason is Stop.MAX_TOKENS
  assert not trajectory.tool_calls and not trajectory.tool_results


# --- calls -------------------------------------------------------------------


def test_all_calls_of_a_turn_are_run_and_answered_in_order(
    run_episode, tokenizer):
  """The released code runs the first call only and drops the others."""
  text = "".join(_call(f"print({i} * int(input()))", str(i)) for i in range(5))
  trajectory, requests = run_episode([text + END, ANSWER])
  assert [r.stdout for r in trajectory.tool_results] == [
      "0\n", "1\n", "4\n", "9\n", "16\n"]
  assert [c.turn for c in trajectory.tool_calls] == [0] * 5
  shown = tokenizer.decode(requests[1].input_ids).rpartition(END + "\n")[0]
  assert shown.endswith("<|im_start|>user" + "".join(
      f"\n<tool_response>\n{i * i}\n</tool_response>" for i in range(5)))


def test_calls_of_a_turn_run_at_once(run_episode):
  tools = SlowTools(0.2)
  trajectory, _ = run_episode([_call("a") * 6 + END, ANSWER], tools=tools)
  assert tools.most == 6
  assert 0.19 < trajectory.timings["tool_s"] < 1.0


def test_calls_over_the_limit_get_a_typed_error(run_episode):
  """None vanishes, and well-formed calls are no parse errors."""
  trajectory, requests = run_episode(
      [_call("print(7)") * 5 + END, ANSWER], max_tool_calls_per_turn=2)
  assert [r.status for r in trajectory.tool_results] == (
      [Status.SUCCESS] * 2 + [Status.BAD_ARGUMENTS] * 3)
  assert trajectory.tool_results[4].message == "only 2 calls per turn are run"
  assert trajectory.stop_reason is Stop.ANSWERED and len(requests) == 2


def test_malformed_and_good_calls_of_a_turn_keep_their_places(run_episode):
  text = (_call("print(1)") + "<tool_call>{</tool_call>" + _call("1/0")
          + '<tool_call>{"name": "f", "arguments": {}}</tool_call>')
  trajectory, _ = run_episode([text + END, ANSWER])
  assert [r.status for r in trajectory.tool_results] == [
      Status.SUCCESS, Status.MALFORMED_CALL, Status.RUNTIME_ERROR,
      Status.UNKNOWN_TOOL]
  assert trajectory.stop_reason is Stop.ANSWERED


@pytest.mark.parametrize("code, status", [
    ("1 +", Status.SYNTAX_ERROR),
    ("1 / 0", Status.RUNTIME_ERROR),
    ("import sys; sys.exit(3)", Status.RUNTIME_ERROR),
    ("import time; time.sleep(60)", Status.TIMEOUT),
    ("a = bytearray(1 << 33)", None),  # runtime error or memory limit
])
def test_the_models_errors_are_results_and_the_episode_goes_on(
    run_episode, code, status):
  """A failing program is shown to the model and counts as its error."""
  trajectory, _ = run_episode([_call(code) + END, ANSWER])
  (result,) = trajectory.tool_results
  assert result.status.is_policy_error
  assert status is None or result.status is status
  assert trajectory.stop_reason is Stop.ANSWERED


# --- parse errors ------------------------------------------------------------


def test_a_good_call_starts_the_count_again(run_episode):
  trajectory, _ = run_episode(
      [MALFORMED, MALFORMED, _call("print(1)") + END, MALFORMED, MALFORMED,
       ANSWER])
  assert trajectory.stop_reason is Stop.ANSWERED
  assert [r.status for r in trajectory.tool_results] == (
      [Status.MALFORMED_CALL] * 2 + [Status.SUCCESS]
      + [Status.MALFORMED_CALL] * 2)


def test_errors_of_one_turn_add_up(run_episode):
  trajectory, requests = run_episode(["<tool_call>{</tool_call>" * 3 + END])
  assert trajectory.stop_reason is Stop.PARSE_ERROR_LIMIT
  assert len(requests) == 1 and len(trajectory.tool_results) == 3


def test_failing_programs_are_no_parse_errors(run_episode):
  trajectory, _ = run_episode([_call("1 / 0") + END] * 5 + [ANSWER])
  assert trajectory.stop_reason is Stop.ANSWERED


# --- our own failures --------------------------------------------------------


@pytest.mark.parametrize("status", [s for s in Status if s.is_infra_error])
def test_an_infra_error_of_a_tool_ends_and_masks_the_trajectory(
    run_episode, status):
  """P19: never shown to the model, never a reward; its type is kept."""
  trajectory, requests = run_episode(
      [_call("a") + END], tools=SlowTools(0.0, status))
  assert trajectory.stop_reason is Stop.INFRA_ERROR
  assert trajectory.is_masked_out and len(requests) == 1
  assert [r.status for r in trajectory.tool_results] == [status]


def test_a_node_that_is_gone_is_an_infra_error(run_episode, make_tools):
  tools = make_tools("http://127.0.0.1:1", deadline_s=0.3)
  trajectory, _ = run_episode([_call("print(1)") + END], tools=tools)
  assert trajectory.stop_reason is Stop.INFRA_ERROR
  assert trajectory.tool_results[0].status is Status.SANDBOX_UNAVAILABLE


@pytest.mark.parametrize("turns, tools, num_turns, num_calls", [
    ([60.0], None, 0, 0),
    ([_call("a") + END, 60.0], None, 1, 1),
    ([_call("a") + END], SlowTools(60.0), 1, 0),
])
def test_the_deadline_ends_a_trajectory(
    run_episode, turns, tools, num_turns, num_calls):
  """P18: whatever never answers. Calls and results stay aligned."""
  start_s = time.monotonic()
  trajectory, _ = run_episode(turns, tools=tools, timeout_s=0.3)
  assert time.monotonic() - start_s < 5
  assert trajectory.stop_reason is Stop.INFRA_ERROR
  assert trajectory.num_turns == num_turns
  assert len(trajectory.tool_calls) == len(trajectory.tool_results) == num_calls
