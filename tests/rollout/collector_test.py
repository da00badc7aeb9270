"""Groups are what was asked for, whatever order and speed they come in."""

import asyncio
import dataclasses
import random
import threading
import time

import pytest

from rstar2_jax import types
from rstar2_jax.chat import template
from rstar2_jax.rewards import reward
from rstar2_jax.rollout import collector as collector_lib
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import scheduler
from rstar2_jax.rollout import tool_client

LIMITS = episode.Limits(
    max_turns=4, max_response_tokens=400, max_seq_len=1000,
    max_tool_calls_per_turn=8, max_parse_errors=3, max_response_chars=256,
    temperature=1.0, timeout_s=30.0)


def _prompts(num):
  return [types.Prompt(id=f"p{i}", problem=f"What is {i}?", answer=str(i))
          for i in range(num)]


class SeededServer:
  """A rollout server whose answers depend on a request's seed and length.

  It takes a random time to answer, so that nothing ends in order.
  """

  def __init__(self, tokenizer, *, delay_s=0.0, never=()):
    self._tokenizer = tokenizer
    self._delay_s = delay_s
    self._never = never  # suffixes of request ids that get no answer
    self.seeds = []
    self.running = self.most_running = 0

  async def generate(self, request):
    self.seeds.append(request.seed)
    self.running += 1
    self.most_running = max(self.most_running, self.running)
    try:
      if request.rid.endswith(tuple(self._never)):
        await asyncio.sleep(600)
      await asyncio.sleep(random.random() * self._delay_s)
    finally:
      self.running -= 1
    rng = random.Random(f"{request.seed}-{len(request.input_ids)}")
    number = rng.randrange(4)
    if rng.random() < 0.5:
      text = f"a{number}</reason>{template.call_text(f'print({number} ** 3)')}"
    else:
      text = f"</reason>\n<answer>\\boxed{{{number}}}</answer>"
    ids = tuple(self._tokenizer.encode(f"{text}<|im_end|>"))
    return types.SampleResult(
        output_ids=ids, logprobs=tuple(rng.random() for _ in ids),
        finish_reason="stop", policy_version=3)

  async def close(self):
    pass


@pytest.fixture(name="collect")
def _collect(tokenizer, sandbox):
  """Collects with given servers; each takes `max_running` trajectories."""

  def run(servers, prompts, *, grade=reward.grade, max_running=1 << 30,
          group_size=4, limits=LIMITS, seed_parts=(0, "train", 7),
          timeout_s=30.0, **kwargs):
    collector = collector_lib.Collector(
        tokenizer=tokenizer, grade=grade, tools=tool_client.SandboxClient(
            [sandbox.url], timeout_s=2.0, cpu_timeout_s=2.0, memory_mb=256,
            deadline_s=20.0),
        servers=[scheduler.Server(
            name=f"s{i}", client=server, kv_capacity=1 << 20,
            max_running=max_running) for i, server in enumerate(servers)])
    try:
      groups = collector.collect(
          prompts, group_size=group_size, limits=limits, timeout_s=timeout_s,
          seed_parts=seed_parts, **kwargs)
      assert not collector.scheduler.queue_length
      assert not any(s.num_running for s in collector.scheduler.servers)
      assert not any(s.reserved for s in collector.scheduler.servers)
      return groups
    finally:
      collector.close()

  return run


def _without_times(groups):
  """What must not depend on speed: all but clocks."""
  return [dataclasses.replace(
      t, timings={}, tool_results=tuple(
          dataclasses.replace(r, wall_ms=0.0, cpu_ms=0.0, queue_ms=0.0)
          for r in t.tool_results))
          for g in groups for t in g.trajectories]


def test_groups_and_samples_come_in_order(collect, tokenizer):
  """P groups of G, although the trajectories end in another order (P25)."""
  done = []
  groups = collect([SeededServer(tokenizer, delay_s=0.05)], _prompts(5),
                   group_size=6, on_done=done.append)
  assert [g.prompt.id for g in groups] == ["p0", "p1", "p2", "p3", "p4"]
  for group in groups:
    assert [t.sample for t in group.trajectories] == [0, 1, 2, 3, 4, 5]
    assert all(t.prompt == group.prompt for t in group.trajectories)
  assert len(done) == 30
  order = [(t.prompt.id, t.sample) for t in done]
  assert order != sorted(order)


def test_same_seeds_same_trajectories_whatever_the_concurrency(
    collect, tokenizer):
  """P24, P31: one at a time or all at once, on one server or on three."""
  alone = collect([SeededServer(tokenizer)], _prompts(4), max_running=1)
  servers = [SeededServer(tokenizer, delay_s=0.03) for _ in range(3)]
  together = collect(servers, _prompts(4))
  assert _without_times(alone) == _without_times(together)
  assert sum(s.most_running for s in servers) > 3
  other = collect([SeededServer(tokenizer)], _prompts(4),
                  seed_parts=(0, "train", 8))
  assert _without_times(alone) != _without_times(other)


def test_one_slot_runs_one_trajectory_at_a_time(collect, tokenizer):
  server = SeededServer(tokenizer, delay_s=0.005)
  collect([server], _prompts(2), max_running=1)
  assert server.most_running == 1


def test_a_trajectory_does_not_depend_on_its_neighbors(collect, tokenizer):
  """Its seeds name prompt and sample, not a place in the batch."""
  whole = collect([SeededServer(tokenizer)], _prompts(4), group_size=3)
  part = collect([SeededServer(tokenizer)], _prompts(4)[2:3], group_size=2)
  assert _without_times(part) == _without_times(whole)[6:8]


def test_no_two_turns_share_a_seed(collect, tokenizer):
  """P24, also where a small data set repeats a prompt within a step."""
  server = SeededServer(tokenizer)
  groups = collect([server], _prompts(2) * 2)
  num_turns = sum(t.num_turns for g in groups for t in g.trajectories)
  assert len(server.seeds) == len(set(server.seeds)) == num_turns > 16
  assert [g.prompt.id for g in groups] == ["p0", "p1", "p0", "p1"]


def test_every_finished_trajectory_is_graded(collect, tokenizer):
  """Reward 1 exactly where the box says the prompt's number."""
  groups = collect([SeededServer(tokenizer)], _prompts(4), group_size=8)
  rewards = [t.reward for g in groups for t in g.trajectories]
  assert set(rewards) == {0.0, 1.0}
  for group in groups:
    for t in group.trajectories:
      is_right = t.turn_texts[-1].endswith(
          f"\\boxed{{{group.prompt.answer}}}</answer><|im_end|>")
      assert t.reward == float(is_right)


def test_the_step_deadline_masks_what_is_not_done(collect, tokenizer):
  """P18: a server that never answers costs its trajectories, not the step."""
  server = SeededServer(tokenizer, never=["-000001-0002-00", "-000000-0001-00"])
  start_s = time.monotonic()
  done = []
  groups = collect([server], _prompts(2), timeout_s=1.0, on_done=done.append)
  assert time.monotonic() - start_s < 10
  masked = [(t.prompt.id, t.sample) for g in groups for t in g.trajectories
            if t.stop_reason is types.StopReason.INFRA_ERROR]
  assert masked == [("p0", 1), ("p1", 2)]
  assert len(done) == 8
  for group in groups:
    for t in group.trajectories:
      assert (t.reward is None) == t.is_masked_out
      assert t.spans[0].token_ids == tuple(
          tokenizer.render_prompt(group.prompt.problem))


def test_what_waits_for_room_at_the_deadline_is_masked(collect, tokenizer):
  """Nothing is admitted after the deadline, and no room is lost."""
  server = SeededServer(tokenizer, never=["-000000-0000-00"])
  groups = collect([server], _prompts(1), max_running=1, timeout_s=0.5)
  assert [t.stop_reason for t in groups[0].trajectories] == [
      types.StopReason.INFRA_ERROR] * 4
  assert len(server.seeds) == 1


def test_a_deadline_in_the_past_gives_masked_groups(collect, tokenizer):
  server = SeededServer(tokenizer, delay_s=0.1)
  groups = collect([server], _prompts(1), timeout_s=-1.0)
  assert all(t.is_masked_out for t in groups[0].trajectories)


def test_a_trajectory_deadline_masks_one_and_frees_its_room(
    collect, tokenizer):
  """What is masked out is not shown to the grader."""
  server = SeededServer(tokenizer, never=["-000000-0000-00"])
  graded = []

  def grade(trajectory):
    graded.append(trajectory.sample)
    return trajectory

  groups = collect([server], _prompts(1), max_running=1, grade=grade,
                   limits=dataclasses.replace(LIMITS, timeout_s=0.3))
  assert [t.is_masked_out for t in groups[0].trajectories] == [
      True, False, False, False]
  assert graded == [1, 2, 3]


def test_a_trajectory_that_fits_no_server_is_an_error(collect, tokenizer):
  limits = dataclasses.replace(LIMITS, max_response_tokens=1 << 21,
                               max_seq_len=1 << 22)
  with pytest.raises(ValueError, match="fits no rollout server"):
    collect([SeededServer(tokenizer, delay_s=0.01)], _prompts(2),
            limits=limits)


def test_a_bug_in_the_grader_is_raised_in_the_callers_thread(
    collect, tokenizer):
  def grade(trajectory):
    raise KeyError(trajectory.prompt.id)

  with pytest.raises(KeyError):
    collect([SeededServer(tokenizer, delay_s=0.01)], _prompts(2), grade=grade)


def test_no_prompts_no_groups(collect, tokenizer):
  assert collect([SeededServer(tokenizer)], []) == []


def test_closing_ends_the_thread(collect, tokenizer):
  before = threading.active_count()
  collect([SeededServer(tokenizer)], _prompts(1))
  assert threading.active_count() == before


def test_a_conversation_goes_on_with_all_that_was_said(
    tokenizer, sandbox, make_server):
  """The second prompt: first prompt, sampled ids, results, the reply."""
  first = f"</reason>{template.call_text('print(6 * 7)')}<|im_end|>"
  second = "</reason>\n<answer>\\boxed{42}</answer><|im_end|>"
  server = make_server([first, second, second])
  collector = collector_lib.Collector(
      tokenizer=tokenizer, grade=reward.grade, tools=tool_client.SandboxClient(
          [sandbox.url], timeout_s=2.0, cpu_timeout_s=2.0, memory_mb=256,
          deadline_s=20.0),
      servers=[scheduler.Server(name="s", client=server, kv_capacity=1 << 20)])
  events = []
  try:
    def say(text, before, number):
      return collector.converse(
          text, before=before, limits=LIMITS, seed_parts=("c", number),
          on_event=events.append)
    before = say("6 * 7?", None, 0)
    answer = say("Sure?", before, 1)
  finally:
    collector.close()
  assert [type(e) for e in events] == [str, types.ToolResult, str, str]
  assert (before.reward, answer.num_turns) == (None, 1)
  messages = [
      {"role": "user", "content": template.user_content("6 * 7?")},
      {"role": "assistant", "content": f"<reason>{first}"},
      {"role": "tool", "content": "42"},
      {"role": "assistant", "content": f"<reason>{second}"},
      {"role": "user", "content": "Sure?"}]
  for message in messages:
    message["content"] = message["content"].removesuffix("<|im_end|>")
  assert server.requests[2].input_ids == tokenizer.encode(
      template.render(messages, add_generation_prompt=True))
  assert len({r.seed for r in server.requests}) == 3
