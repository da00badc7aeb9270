"""pass@1 and its standard error, computed by hand."""

import math

import pytest

from rstar2_jax import types
from rstar2_jax.evaluation import heldout
from rstar2_jax.rewards import reward
from rstar2_jax.rollout import collector as collector_lib
from rstar2_jax.rollout import episode
from rstar2_jax.rollout import scheduler
from rstar2_jax.rollout import seeds
from rstar2_jax.rollout import tool_client

Stop = types.StopReason
LIMITS = episode.Limits(
    max_turns=4, max_response_tokens=100, max_seq_len=200,
    max_tool_calls_per_turn=8, max_parse_errors=3, max_response_chars=256,
    temperature=1.0, top_p=0.9, top_k=5)


def _group(name, rewards, source="a"):
  """One trajectory for each reward; None was lost to infrastructure."""
  prompt = types.Prompt(id=name, problem="?", answer="1", source=source)
  return types.TrajectoryGroup(prompt=prompt, trajectories=tuple(
      types.Trajectory(
          prompt=prompt, sample=i, spans=(), turn_texts=("t",), reward=reward,
          stop_reason=Stop.INFRA_ERROR if reward is None else Stop.ANSWERED)
      for i, reward in enumerate(rewards)))


def test_pass_at_1_is_the_mean_over_problems():
  """Means 1, 1/2 and 0: pass@1 1/2; their deviation is 1/2, over sqrt(3)."""
  metrics = heldout.summarize(
      [_group("p", [1.0] * 4), _group("q", [1.0, 0.0, 0.0, 1.0], "b"),
       _group("r", [0.0] * 4, "b")], num_samples=4)
  assert metrics["pass_at_1"] == 0.5
  assert metrics["pass_at_1_stderr"] == pytest.approx(0.5 / math.sqrt(3))
  assert (metrics["num_problems"], metrics["num_samples"]) == (3, 4)
  assert metrics["by_source"] == {"a": 1.0, "b": 0.25}
  assert metrics["masked_out"] == 0.0 and metrics["turns"] == 1.0


def test_the_problem_is_the_unit_of_the_error():
  """Samples of one problem are alike: more of them do not shrink it."""
  few, many = (heldout.summarize(
      [_group("p", [1.0] * k), _group("q", [0.0] * k)], num_samples=k)
               for k in (2, 50))
  # Means 1 and 0: deviation sqrt(1/2), over sqrt(2).
  assert few["pass_at_1_stderr"] == many["pass_at_1_stderr"]
  assert few["pass_at_1_stderr"] == pytest.approx(0.5)


def test_equal_problems_have_no_error():
  metrics = heldout.summarize(
      [_group(n, [1.0, 0.0]) for n in "pqrs"], num_samples=2)
  assert (metrics["pass_at_1"], metrics["pass_at_1_stderr"]) == (0.5, 0.0)


def test_lost_trajectories_are_neither_right_nor_wrong():
  """P19: p has mean 1 of what survived; r has no sample left and is out."""
  metrics = heldout.summarize(
      [_group("p", [1.0, None, None, None]),
       _group("q", [0.0, 1.0, 0.0, None]), _group("r", [None] * 4)],
      num_samples=4)
  # Means 1 and 1/3: pass@1 2/3, deviation sqrt(2)/3, over sqrt(2).
  assert metrics["pass_at_1"] == pytest.approx(2 / 3)
  assert metrics["pass_at_1_stderr"] == pytest.approx(1 / 3)
  assert (metrics["num_problems"], metrics["masked_out"]) == (2, 8.0)


def test_one_problem_has_no_error_estimate():
  metrics = heldout.summarize([_group("p", [1.0, 0.0])], num_samples=2)
  assert (metrics["pass_at_1"], metrics["pass_at_1_stderr"]) == (0.5, 0.0)


def test_no_call_no_ratio():
  metrics = heldout.summarize([_group("p", [1.0])], num_samples=1)
  assert metrics["tool_error_ratio"] is None


@pytest.mark.parametrize("groups", [
    [], [_group("p", [None, None]), _group("q", [None])]])
def test_nothing_survived_is_an_error_not_a_zero(groups):
  with pytest.raises(RuntimeError, match="no trajectory survived"):
    heldout.summarize(groups, num_samples=2)


class Server:
  """A rollout server that answers 1 to even seeds and 0 to odd ones."""

  def __init__(self, tokenizer):
    self._tokenizer = tokenizer
    self.requests = []

  async def generate(self, request):
    self.requests.append(request)
    answer = 1 - request.seed % 2
    ids = tuple(self._tokenizer.encode(
        f"</reason>\n<answer>\\boxed{{{answer}}}</answer><|im_end|>"))
    return types.SampleResult(
        output_ids=ids, logprobs=(-1.0,) * len(ids), finish_reason="stop",
        policy_version=0)

  async def close(self):
    pass


def test_evaluation_samples_with_its_own_temperature_and_whole_vocabulary(
    tokenizer):
  """Draws are named by seed, problem and sample, not by policy or step."""
  server = Server(tokenizer)
  collector = collector_lib.Collector(
      tokenizer=tokenizer, grade=reward.grade,
      servers=[scheduler.Server(name="s", client=server, kv_capacity=1 << 20)],
      # Never called: the answers make no call.
      tools=tool_client.SandboxClient(
          ["http://127.0.0.1:1"], timeout_s=1.0, cpu_timeout_s=1.0,
          memory_mb=64, deadline_s=1.0))
  problems = [types.Prompt(id=name, problem="?", answer="1") for name in "pq"]
  try:
    metrics, groups = heldout.evaluate(
        collector, problems, num_samples=8, temperature=0.6, limits=LIMITS,
        seed=9, timeout_s=20.0)
  finally:
    collector.close()
  expected = {seeds.derive("heldout", 9, name, sample, 0)
              for name in "pq" for sample in range(8)}
  assert {r.seed for r in server.requests} == expected
  assert {(r.temperature, r.top_p, r.top_k) for r in server.requests} == {
      (0.6, 1.0, -1)}
  assert metrics["pass_at_1"] == sum(s % 2 == 0 for s in expected) / 16
  assert [len(g.trajectories) for g in groups] == [8, 8]
