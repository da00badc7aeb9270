"""Where the time of a step goes."""

import time


class Clock:
  """Laps of one step, in seconds, by name; laps of one name add up."""

  def __init__(self):
    self._start_s = self._last_s = time.monotonic()
    self._laps_s: dict[str, float] = {}

  def lap(self, name: str) -> None:
    """Books the time since the last lap under `name`."""
    now_s = time.monotonic()
    self._laps_s[name] = self._laps_s.get(name, 0.0) + now_s - self._last_s
    self._last_s = now_s

  def laps_s(self) -> dict[str, float]:
    """All laps so far and their sum as `step`."""
    return self._laps_s | {"step": self._last_s - self._start_s}
