"""Counters and histograms of one server, in Prometheus' text format."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterator

from sandbox_runner import protocol

_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
)


class Histogram:
  """Counts of values in seconds, by bucket."""

  def __init__(self):
    self._counts = [0] * (len(_BUCKETS_S) + 1)
    self.total_s = 0.0

  def add(self, value_s: float) -> None:
    """Takes one value."""
    self._counts[bisect.bisect_left(_BUCKETS_S, value_s)] += 1
    self.total_s += value_s

  def lines(self, name: str) -> Iterator[str]:
    """Its sample lines."""
    yield f'# TYPE {name} histogram'
    below = 0
    for bound, count in zip(
        (*map(str, _BUCKETS_S), '+Inf'), self._counts, strict=True
    ):
      below += count
      yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f'{name}_sum {self.total_s:.6f}'
    yield f'{name}_count {below}'


class Metrics:
  """What a server has done so far."""

  def __init__(self):
    self.calls: collections.Counter[tuple[str, str]] = collections.Counter()
    self.truncated = 0
    self.queue = Histogram()
    self.wall = Histogram()
    self.cpu = Histogram()
    self.cpu_in_timeouts_s = 0.0

  def count_call(self, status: protocol.Status, tier: str) -> None:
    """Counts a call."""
    self.calls[status, tier] += 1

  def observe(self, result: protocol.ExecuteResult, tier: str) -> None:
    """Counts a call and what it used."""
    self.count_call(result.status, tier)
    self.queue.add(result.queue_ms / 1e3)
    self.wall.add(result.wall_ms / 1e3)
    self.cpu.add(result.cpu_ms / 1e3)
    self.truncated += result.stdout_truncated + result.stderr_truncated
    if result.status is protocol.Status.TIMEOUT:
      self.cpu_in_timeouts_s += result.cpu_ms / 1e3

  def timeout_cpu_fraction(self) -> float:
    """Share of programs' CPU time that went into calls that timed out."""
    return self.cpu_in_timeouts_s / max(self.cpu.total_s, 1e-9)

  def text(self, gauges: dict[str, float], isolation: str) -> str:
    """Everything in Prometheus' text format."""
    lines = ['# TYPE sandbox_calls_total counter']
    for (status, tier), count in sorted(self.calls.items()):
      lines.append(
          f'sandbox_calls_total{{status="{status}",tier="{tier}",'
          f'isolation="{isolation}"}} {count}'
      )
    lines += self.queue.lines('sandbox_queue_seconds')
    lines += self.wall.lines('sandbox_exec_wall_seconds')
    lines += self.cpu.lines('sandbox_exec_cpu_seconds')
    lines += [
        '# TYPE sandbox_output_truncated_total counter',
        f'sandbox_output_truncated_total {self.truncated}',
        '# TYPE sandbox_timeout_cpu_fraction gauge',
        f'sandbox_timeout_cpu_fraction {self.timeout_cpu_fraction():.6f}',
    ]
    for name, value in gauges.items():
      lines += [f'# TYPE {name} gauge', f'{name} {value}']
    return '\n'.join(lines) + '\n'
