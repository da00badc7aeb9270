"""Admission by KV room: worst case held, no overflow, order kept."""

import asyncio

import pytest

from rstar2_jax.rollout import scheduler


def _servers(*capacities):
  return [scheduler.Server(name=f"s{i}", client=None, kv_capacity=c)
          for i, c in enumerate(capacities)]


def test_admits_to_the_server_with_most_room():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 150))
    async with sched.admit(10, 60) as first:  # rooms 100, 150 -> s1
      async with sched.admit(10, 60) as second:  # rooms 100, 90 -> s0
        async with sched.admit(10, 60) as third:  # rooms 40, 90 -> s1
          names = [x.server.name for x in (first, second, third)]
          assert names == ["s1", "s0", "s1"]
          assert [s.reserved for s in sched.servers] == [60, 120]
    assert [s.reserved for s in sched.servers] == [0, 0]
    assert [s.num_running for s in sched.servers] == [0, 0]

  asyncio.run(main())


def test_never_over_capacity_and_all_finish_in_order():
  async def main():
    sched = scheduler.Scheduler(_servers(100))
    started, high_water = [], 0

    async def trajectory(i):
      nonlocal high_water
      async with sched.admit(10, 40) as lease:
        started.append(i)
        high_water = max(high_water, lease.server.reserved)
        await asyncio.sleep(0.001)

    await asyncio.gather(*(trajectory(i) for i in range(20)))
    assert started == list(range(20))
    assert high_water == 80  # two of 40 fit in 100, three do not
    assert sched.servers[0].reserved == 0

  asyncio.run(main())


def test_too_long_for_every_server_is_refused_at_once():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 120))
    with pytest.raises(ValueError, match="121 tokens fits no rollout server"):
      async with sched.admit(10, 121):
        pass

  asyncio.run(main())


def test_cancelled_waiter_leaves_no_reservation():
  async def main():
    sched = scheduler.Scheduler(_servers(100))
    async with sched.admit(10, 80):
      waiter = asyncio.ensure_future(sched.admit(10, 50).__aenter__())
      await asyncio.sleep(0)
      assert sched.queue_length == 1
      waiter.cancel()
      await asyncio.gather(waiter, return_exceptions=True)
    async with sched.admit(10, 100) as lease:  # all room is back
      assert lease.server.reserved == 100

  asyncio.run(main())


def test_unhealthy_server_takes_nothing():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 500))
    sched.servers[1].is_healthy = False
    async with sched.admit(10, 10) as lease:
      assert lease.server.name == "s0"

  asyncio.run(main())


def test_peak_use_is_the_highest_share_reserved_since_asked():
  async def run():
    servers = [scheduler.Server(name=n, client=None, kv_capacity=100)
               for n in "ab"]
    queue = scheduler.Scheduler(servers)
    async with queue.admit(10, 60), queue.admit(10, 40):
      pass
    async with queue.admit(10, 20):
      peaks = [queue.take_statistics(), queue.take_statistics()]
    peaks += [queue.take_statistics(), queue.take_statistics()]
    return [p["kv_use"] for p in peaks]

  assert asyncio.run(run()) == [0.5, 0.1, 0.1, 0.0]


def _ended(sched, lengths, num_prompt=10, worst_case=1000):
  """Lets trajectories of given response lengths run, one after another."""
  async def one(length):
    async with sched.admit(num_prompt, worst_case) as lease:
      sched.grow(lease, num_prompt + length)

  async def run():
    for length in lengths:
      await one(length)

  return run()


def test_expected_reserves_half_the_way_to_what_most_came_to():
  """Of lengths 10, 20, ..., 200 the quantile 0.9 is the 19th, 190."""
  async def main():
    sched = scheduler.Scheduler(_servers(1000), mode="expected", quantile=0.9)
    async with sched.admit(10, 1000) as lease:
      assert lease.reserved == 1000  # nothing is known yet
    sched = scheduler.Scheduler(_servers(1000), mode="expected", quantile=0.9)
    await _ended(sched, range(10, 201, 10))
    async with sched.admit(10, 1000) as lease:
      assert lease.reserved == (10 + 10 + 190) // 2
      # At 10 + 100 those over 100 are left, 110 to 200: the 10th of them.
      sched.grow(lease, 110)
      assert lease.reserved == (110 + 10 + 200) // 2
      sched.grow(lease, 50)  # what was true stays
      assert (lease.length, lease.reserved) == (110, 160)
      sched.grow(lease, 211)  # longer than any known: the worst case
      assert lease.reserved == sched.servers[0].reserved == 1000
    assert sched.servers[0].reserved == sched.servers[0].worst_case == 0

  asyncio.run(main())


def test_expected_admits_more_but_not_without_bound():
  """1000 tokens hold 9 of (10 + 210) / 2; overcommit allows 3 * 1000."""
  async def main():
    for overcommit, admitted in ((10.0, 9), (3.0, 3), (1.0, 1)):
      sched = scheduler.Scheduler(
          _servers(1000), mode="expected", overcommit=overcommit)
      await _ended(sched, [200] * 20)
      waiting = [asyncio.ensure_future(sched.admit(10, 1000).__aenter__())
                 for _ in range(12)]
      await asyncio.sleep(0)
      await asyncio.sleep(0)
      assert sum(w.done() for w in waiting) == admitted
      for w in waiting:
        w.cancel()
      await asyncio.gather(*waiting, return_exceptions=True)

  asyncio.run(main())


def test_static_takes_turns_and_never_waits():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 100), mode="static")
    async with (sched.admit(10, 80) as a, sched.admit(10, 80) as b,
                sched.admit(10, 80) as c):
      assert [x.server.name for x in (a, b, c)] == ["s0", "s1", "s0"]
      assert sched.servers[0].reserved == 160  # more than it holds
    async with sched.admit(10, 80) as d:
      assert d.server.name == "s1"

  asyncio.run(main())


def test_least_loaded_goes_where_fewest_are():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 100), mode="least_loaded")
    async with sched.admit(10, 80) as a:
      async with sched.admit(10, 80) as b:
        assert [a.server.name, b.server.name] == ["s0", "s1"]
      async with sched.admit(10, 80) as c, sched.admit(10, 80) as d:
        assert [c.server.name, d.server.name] == ["s1", "s0"]

  asyncio.run(main())


def test_waits_and_idle_time_are_measured():
  """Two servers, 30 ms on the first alone, then 30 ms on it for a waiter."""
  async def main():
    sched = scheduler.Scheduler(_servers(100, 60))

    async def hold(num_tokens, seconds):
      async with sched.admit(10, num_tokens):
        await asyncio.sleep(seconds)

    await asyncio.gather(hold(100, 0.03), hold(80, 0.03))
    first = sched.take_statistics()
    assert first["queue_wait_s"] == pytest.approx(0.015, abs=0.005)
    assert first["server_idle"] == pytest.approx(0.5, abs=0.02)
    assert sched.take_statistics() == {"kv_use": 0.0}

  asyncio.run(main())
