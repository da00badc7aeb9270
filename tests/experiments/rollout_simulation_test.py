"""The simulated servers: times worked out by hand, and what must hold."""

import asyncio

import pytest

from experiments.benchmarks import rollout_simulation as simulation

Turn, Trace = simulation.Turn, simulation.Trace
# A step takes 0.1 s and 0.01 s for each sequence; 100 tokens are prefilled
# in a second.
HARDWARE = simulation.Hardware(
    kv_capacity=1000, step_s=0.1, token_s=0.01, prefill_tokens_per_s=100.0,
    max_running=8)


def _simulate(traces, hardware=HARDWARE, num_servers=1, max_new=500, **kwargs):
  return simulation.simulate(
      traces, num_servers=num_servers, hardware=hardware, max_new=max_new,
      **kwargs)


def test_the_clock_jumps():
  async def main():
    await asyncio.gather(asyncio.sleep(5000), asyncio.sleep(7000))
    return "done"
  assert simulation.run(main()) == ("done", 7000)


def test_one_alone():
  """50 tokens prefilled in 0.5 s, 20 sampled at 0.11 s, a call of 2 s with 10
  tokens, 0.1 s to prefill them, 10 sampled."""
  trace = Trace(50, (Turn(20, 2.0, 10), Turn(10, 0.0, 0)))
  result = _simulate([trace])
  assert result.makespan_s == pytest.approx(0.5 + 2.2 + 2.0 + 0.1 + 1.1)
  assert result.lengths_in_order == (trace.num_tokens,) == (90,)
  assert (result.evictions, result.prefilled) == (0, 1.0)


def test_two_share_a_step():
  """Both prefill first (1 s); 10 steps of 0.12 s, then 10 of 0.11 s."""
  result = _simulate([Trace(50, (Turn(10, 0.0, 0),)),
                      Trace(50, (Turn(20, 0.0, 0),))], max_new=100)
  assert result.makespan_s == pytest.approx(1.0 + 1.2 + 1.1)
  assert result.lengths_in_order == (60, 70)


def test_a_barrier_makes_all_wait_for_the_slowest_call():
  """Calls of 0 s and 5 s: without it the first is done before the second."""
  quick = Trace(10, (Turn(1, 0.0, 1), Turn(1, 0.0, 0)))
  slow = Trace(10, (Turn(1, 5.0, 1), Turn(1, 0.0, 0)))
  free = _simulate([quick, slow], mode="static")
  bound = _simulate([quick, slow], mode="static", has_barrier=True)
  assert free.lengths_in_order == bound.lengths_in_order == (13, 13)
  # Behind the barrier they sample the last token together, in one step of
  # 0.12 s, after both have prefilled; free, alone in 0.11 s.
  assert bound.makespan_s - free.makespan_s == pytest.approx(
      0.01 + 0.01, abs=1e-6)


def test_worst_case_holds_back_what_might_not_fit():
  """Two of 510 do not fit 1000 tokens; the servers' KV is never full."""
  traces = [Trace(10, (Turn(20, 0.0, 0),))] * 3
  result = _simulate(traces)
  one_s = 0.1 + 20 * 0.11
  assert result.makespan_s == pytest.approx(3 * one_s)
  assert result.queue_wait_s == pytest.approx((0 + 1 + 2) * one_s / 3)
  assert _simulate(traces, mode="static").queue_wait_s == 0


def test_what_does_not_fit_is_evicted_and_comes_back():
  """Four of 400 in 1000 tokens: some are prefilled again, all end."""
  traces = [Trace(10, (Turn(390, 0.0, 0),))] * 4
  result = _simulate(traces, mode="static")
  assert result.evictions > 0 and result.prefilled > 1
  assert result.lengths_in_order == (400,) * 4
  assert _simulate(traces).evictions == 0


def test_prefixes_give_way_between_turns_the_oldest_first():
  """While the first's tool runs, the others need its place."""
  first = Trace(300, (Turn(1, 60.0, 1), Turn(1, 0.0, 0)))
  others = [Trace(300, (Turn(100, 0.0, 0),))] * 3
  result = _simulate([first, *others], mode="static")
  assert result.evictions == 0
  # 300 and the 2 of turn and call are prefilled again; 1 had to be anyhow.
  assert result.prefilled == pytest.approx((1200 + 302) / 1201)


@pytest.mark.parametrize("mode", [
    "worst_case", "expected", "static", "least_loaded"])
def test_nothing_is_lost_and_no_bound_is_broken(mode):
  hardware = simulation.Hardware(kv_capacity=65_536, max_running=64)
  traces = simulation.heavy_tailed(300, max_new=4096, seed=3)
  result = _simulate(traces, hardware, 4, 4096, mode=mode,
                     warm_up=[t.num_tokens for t in traces[:100]])
  again = _simulate(traces, hardware, 4, 4096, mode=mode,
                    warm_up=[t.num_tokens for t in traces[:100]])
  assert result == again
  assert sorted(result.lengths_in_order) == sorted(
      t.num_tokens for t in traces)
  assert result.makespan_s > simulation.lower_bound_s(
      traces, num_servers=4, hardware=hardware)
  assert result.evictions == 0 or mode != "worst_case"
