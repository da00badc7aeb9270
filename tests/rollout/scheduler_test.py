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
    async with sched.admit(60) as first:  # rooms 100, 150 -> s1
      async with sched.admit(60) as second:  # rooms 100, 90 -> s0
        async with sched.admit(60) as third:  # rooms 40, 90 -> s1
          assert [first.name, second.name, third.name] == ["s1", "s0", "s1"]
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
      async with sched.admit(40) as server:
        started.append(i)
        high_water = max(high_water, server.reserved)
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
      async with sched.admit(121):
        pass

  asyncio.run(main())


def test_cancelled_waiter_leaves_no_reservation():
  async def main():
    sched = scheduler.Scheduler(_servers(100))
    async with sched.admit(80):
      waiter = asyncio.ensure_future(sched.admit(50).__aenter__())
      await asyncio.sleep(0)
      assert sched.queue_length == 1
      waiter.cancel()
      await asyncio.gather(waiter, return_exceptions=True)
    async with sched.admit(100) as server:  # all room is back
      assert server.reserved == 100

  asyncio.run(main())


def test_unhealthy_server_takes_nothing():
  async def main():
    sched = scheduler.Scheduler(_servers(100, 500))
    sched.servers[1].is_healthy = False
    async with sched.admit(10) as server:
      assert server.name == "s0"

  asyncio.run(main())


def test_peak_use_is_the_highest_share_reserved_since_asked():
  async def run():
    servers = [scheduler.Server(name=n, client=None, kv_capacity=100)
               for n in "ab"]
    queue = scheduler.Scheduler(servers)
    async with queue.admit(60), queue.admit(40):
      pass
    async with queue.admit(20):
      peaks = [queue.take_peak_use(), queue.take_peak_use()]
    return [*peaks, queue.take_peak_use(), queue.take_peak_use()]

  assert asyncio.run(run()) == [0.5, 0.1, 0.1, 0.0]
