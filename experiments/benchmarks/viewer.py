"""Measures the trajectory viewer: `python -m experiments.benchmarks.viewer`.

    --trajectories=2000    how many are on the page
    --tokens=1000          sampled tokens of each
    --chromium=PATH        the browser; empty: from PATH

Needs `pip install playwright` and an installed Chromium. The floor is the page
of two trajectories, opened in the same browser and in turn. Prints a table and,
as its last line, a JSON object.
"""

import dataclasses
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import tempfile
import time

from experiments import config_flags
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.reports import trajectory_viewer

_field = config_fields.field
_ROUNDS = 5
_MAX_OPEN_S = 2.0
_WORDS = ("let ", "x", " = ", "sum", "(", "range", ")", "\n", "the ", "prime ",
          "0", "1", "7", "42", "because ", "wait, ", "check ", "again ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """What is opened."""

  trajectories: int = _field(2000, "How many are on the page.")
  tokens: int = _field(1000, "Sampled tokens of each.")
  chromium: str = _field("", "The browser; empty: `chromium` from PATH.")

  def __post_init__(self):
    config_fields.require_positive(self, "", "tokens")
    config_fields.require(self.trajectories > 1, "trajectories",
                          self.trajectories, "at least 2")


def main(options: Options, argv: list[str]) -> None:
  """Measures and prints."""
  del argv  # no flags but its own
  sizes = {"two": 2, "all": options.trajectories}
  with tempfile.TemporaryDirectory() as folder:
    paths, render_s = {}, {}
    for name, num in sizes.items():
      records = make_records(num, options.tokens)
      begin = time.perf_counter()
      page = trajectory_viewer.render(records, title="benchmark")
      render_s[name] = time.perf_counter() - begin
      paths[name] = pathlib.Path(folder, f"{name}.html")
      paths[name].write_text(page, encoding="utf-8")
    opened, next_s = measure(paths, options.chromium)
    megabytes = {name: path.stat().st_size / 1e6
                 for name, path in paths.items()}
  rows = [[str(sizes[name]), f"{megabytes[name]:.1f}",
           f"{render_s[name]:.2f}", f"{opened[name]:.2f}",
           f"{1e3 * next_s[name]:.0f}"] for name in sizes]
  print(progress.table(
      ["trajectories", "size [MB]", "render [s]", "open [s]", "next [ms]"],
      rows))
  print(json.dumps({
      "benchmark": "viewer",
      "machine": f"{platform.machine()}, {os.cpu_count()} cores",
      "results": {"megabytes": megabytes, "render_s": render_s,
                  "open_s": opened, "next_s": next_s},
      "goals": {"open_s": {
          "value": round(opened["all"], 3), "goal": _MAX_OPEN_S,
          "met": opened["all"] < _MAX_OPEN_S}}}))


def measure(
    paths: dict[str, pathlib.Path], chromium: str
) -> tuple[dict[str, float], dict[str, float]]:
  """Opens each page, in turns.

  Args:
    paths: pages by name.
    chromium: path of the browser; empty: from PATH.

  Returns:
    Medians in seconds by name: from the start of navigation until the first
    trajectory stands in a drawn frame; and from a key until the next does.

  Raises:
    errors.UserError: there is no browser, or nothing to drive it.
  """
  try:
    from playwright import sync_api  # pylint: disable=g-import-not-at-top
  except ImportError as e:
    raise errors.UserError(
        "this benchmark drives a browser: pip install playwright") from e
  executable = chromium or shutil.which("chromium")
  if executable is None or not os.path.exists(executable):
    raise errors.UserError(
        f"no browser {chromium or 'chromium'}: install Chromium, or give"
        " --chromium=PATH")
  open_s: dict[str, list[float]] = {name: [] for name in paths}
  next_s: dict[str, list[float]] = {name: [] for name in paths}
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=executable, args=["--no-sandbox"])
    for _ in range(_ROUNDS):
      for name, path in paths.items():
        page = browser.new_page()
        begin = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready-ms] #detail[data-index]")
        open_s[name].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        page.keyboard.press("j")
        page.wait_for_selector('#detail[data-index="1"]')
        next_s[name].append(time.perf_counter() - begin)
        page.close()
    browser.close()
  median = statistics.median
  return ({name: median(times) for name, times in open_s.items()},
          {name: median(times) for name, times in next_s.items()})


def make_records(num: int, tokens: int) -> list[trajectory_records.Record]:
  """Trajectories of random words in groups of 16, with one call each."""
  rng = random.Random(0)
  return [_record(i, tokens, rng) for i in range(num)]


def _record(
    i: int, tokens: int, rng: random.Random
) -> trajectory_records.Record:
  turns = (tokens // 2, tokens - tokens // 2)
  words = [tuple(rng.choices(_WORDS, k=n)) for n in turns]
  policy = [types.Span(
      token_ids=tuple(rng.choices(range(150_000), k=n)), policy_version=i // 64,
      source=types.Source.POLICY,
      logprobs=tuple(-rng.expovariate(3) for _ in range(n))) for n in turns]
  trajectory = types.Trajectory(
      prompt=types.Prompt(id=f"p{i // 16}", problem="".join(words[0][:40]),
                          answer="42", source="words", level=1 + i % 3),
      sample=i % 16, reward=float(i % 2),
      stop_reason=types.StopReason.ANSWERED,
      spans=(types.Span(token_ids=(1,), source=types.Source.PROMPT), policy[0],
             types.Span(token_ids=(2,), source=types.Source.TOOL), policy[1]),
      turn_texts=tuple(map("".join, words)),
      tool_calls=(types.ToolCall(turn=0, name="python",
                                 arguments={"code": "print(42)"}),),
      tool_results=(types.ToolResult(
          status=types.ToolStatus.SUCCESS, stdout="42\n"),))
  return trajectory_records.Record(
      step=i // 64, trajectory=trajectory,
      pieces=(("prompt",), words[0], ("42\n",), words[1]),
      fate=trajectory_records.Fate.TRAINED, advantage=rng.gauss(0, 1),
      error_ratio=0.0, answer_format=0.0,
      learner_logprobs=tuple(x + rng.gauss(0, 0.01)
                             for span in policy for x in span.logprobs or ()),
      entropy=tuple(rng.expovariate(2) for _ in range(tokens)))


if __name__ == "__main__":
  config_flags.run_with_options(main, Options)
