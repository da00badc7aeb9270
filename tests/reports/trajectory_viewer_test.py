"""The viewer in a real browser: filters, colors, keys, and nothing escapes."""

import shutil

import pytest

from rstar2_jax import types
from rstar2_jax.data import trajectory_records
from rstar2_jax.reports import trajectory_viewer

_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_EVIL = ("</script><script>window.broken = 1</script>"
         "<img src=x onerror=broken=1>")

needs_browser = pytest.mark.skipif(
    _CHROMIUM is None, reason="no Chromium is installed")


def record(step=0, prompt="p", sample=0, *, problem="What is 6 * 7?",
           reward=1.0, fate="trained", advantage=0.5, code="print(6*7)",
           stdout="42\n", status=types.ToolStatus.SUCCESS, version=3):
  """A trajectory: prompt, call, tool response, answer."""
  trajectory = types.Trajectory(
      prompt=types.Prompt(id=prompt, problem=problem, answer="42",
                          source="chain", level=2),
      sample=sample, reward=reward, stop_reason=types.StopReason.ANSWERED,
      spans=(
          types.Span(token_ids=(1,), source=types.Source.PROMPT),
          types.Span(token_ids=(4, 5), source=types.Source.POLICY,
                     logprobs=(-0.25, -1.0), policy_version=version),
          types.Span(token_ids=(6,), source=types.Source.TOOL),
          types.Span(token_ids=(7,), source=types.Source.POLICY,
                     logprobs=(-0.5,), policy_version=version)),
      turn_texts=("call", "answer"),
      tool_calls=(types.ToolCall(turn=0, name="python",
                                 arguments={"code": code}),),
      tool_results=(types.ToolResult(status=status, stdout=stdout),))
  return trajectory_records.Record(
      step=step, trajectory=trajectory,
      pieces=((problem,), ("ca", "ll"), (stdout,), ("answer",)),
      fate=trajectory_records.Fate(fate), advantage=advantage,
      error_ratio=0.25, answer_format=0.0,
      learner_logprobs=(-0.25, -1.5, -0.25), entropy=(0.0, 2.0, 1.0))


@pytest.fixture(scope="module")
def browser():
  sync_api = pytest.importorskip("playwright.sync_api")
  with sync_api.sync_playwright() as playwright:
    chromium = playwright.chromium.launch(
        executable_path=_CHROMIUM, args=["--no-sandbox"])
    yield chromium
    chromium.close()


@pytest.fixture
def opened(browser, tmp_path):
  """Opens a page of records; everything it logs or throws fails the test."""
  complaints = []
  pages = []

  def open_page(records, **context):
    path = tmp_path / "trajectories.html"
    path.write_text(trajectory_viewer.render(records, title="run"))
    page = browser.new_context(**context).new_page()
    pages.append(page)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("console", lambda m: complaints.append(m.text))
    page.on("request", lambda r: r.url.startswith("file:")
            or complaints.append(r.url))
    page.goto(path.as_uri())
    page.wait_for_selector("#detail[data-index]")
    return page

  yield open_page
  for page in pages:
    page.context.close()
  assert not complaints


def _select(page, index):
  page.wait_for_selector(f'#detail[data-index="{index}"]')


def _backgrounds(page):
  """Of the three sampled tokens."""
  return page.eval_on_selector_all(
      ".policy .tokens span", "nodes => nodes.map(n => n.style.background)")


def _alpha(color):
  return float(color.rpartition(",")[2].rstrip(") ")) if color else 0.0


@needs_browser
def test_what_a_trajectory_prints_stays_text(opened):
  page = opened([record(prompt=_EVIL, problem=_EVIL, code=_EVIL,
                        stdout=_EVIL)])
  assert page.evaluate("window.broken") is None
  assert page.locator("#detail img, #list img").count() == 0
  assert page.locator(".call pre").all_inner_texts() == [_EVIL, _EVIL]
  assert _EVIL in page.locator(".row .problem").inner_text()


def test_no_printed_text_stands_in_the_page_as_markup():
  page = trajectory_viewer.render(
      [record(problem=_EVIL, stdout=_EVIL)], title=_EVIL)
  assert _EVIL not in page
  assert page.count("<script") == page.count("</script>") == 3


@needs_browser
@pytest.mark.parametrize("control, value, expected", [
    ("first", "1", [1, 2, 3]), ("last", "0", [0]), ("reward", "0", [1]),
    ("tool", "any error", [2]), ("tool", "timeout", [2]),
    ("tool", "no error", [0, 1, 3]), ("fate", "not_drawn", [3]),
    ("search", "p3", [3]), ("stop", "answered", [0, 1, 2, 3]),
    ("turns", "2", [0, 1, 2, 3])])
def test_filters(opened, control, value, expected):
  page = opened([
      record(0, "p0"), record(1, "p1", reward=0.0),
      record(2, "p2", status=types.ToolStatus.TIMEOUT),
      record(3, "p3", fate="not_drawn", advantage=None)])
  if page.locator(f"select#{control}").count():
    page.select_option(f"#{control}", value)
  else:
    page.fill(f"#{control}", value)
  assert page.inner_text("#count") == f"{len(expected)} of 4"
  steps = [int(text.split("step ")[1].split()[0])
           for text in page.locator(".row").all_inner_texts()]
  assert steps == expected
  _select(page, expected[0])  # what is shown is one of those left
  page.click("#clear")
  assert page.inner_text("#count") == "4 of 4"


@needs_browser
def test_nothing_left_by_the_filters_is_said(opened):
  page = opened([record()])
  page.fill("#search", "no such problem")
  page.wait_for_selector("text=No trajectory matches.")


@needs_browser
def test_keys_walk_over_trajectories_and_groups(opened):
  page = opened([record(step, "p", sample)
                 for step in range(2) for sample in range(3)])
  for key, index in [("j", 1), ("j", 2), ("k", 1), ("n", 3), ("j", 4),
                     ("p", 2), ("ArrowDown", 3), ("ArrowUp", 2)]:
    page.keyboard.press(key)
    _select(page, index)
    assert page.locator(".row.is-selected").count() == 1
  page.keyboard.press("?")
  assert page.locator("dialog[open]").count() == 1


@needs_browser
def test_colors_follow_the_numbers(opened):
  page = opened([record(), record(sample=1, fate="not_drawn", advantage=None,
                                  version=4)])
  page.keyboard.press("0")
  assert _backgrounds(page) == ["", "", ""]
  page.keyboard.press("2")  # gaps 0, -0.5, +0.25 of at most 0.5
  colors = _backgrounds(page)
  assert [_alpha(c) for c in colors] == pytest.approx([0, 0.6, 0.3], abs=0.01)
  assert "220, 38, 38" in colors[1] and "37, 99, 235" in colors[2]
  page.keyboard.press("3")  # entropies 0, 2, 1 of at most 2
  assert [_alpha(c) for c in _backgrounds(page)] == pytest.approx(
      [0, 0.6, 0.3], abs=0.01)
  page.keyboard.press("4")  # advantage 0.5 of 2
  assert [_alpha(c) for c in _backgrounds(page)] == pytest.approx(
      [0.15] * 3, abs=0.01)
  page.keyboard.press("1")
  in_loss = _backgrounds(page)
  page.keyboard.press("j")
  _select(page, 1)
  assert not set(_backgrounds(page)) & set(in_loss)
  page.keyboard.press("5")
  assert "version 4" in page.inner_text("#scale")
  page.keyboard.press("4")
  assert "not in the loss" in page.inner_text("#scale")


@needs_browser
def test_the_group_shows_what_was_decided(opened):
  page = opened([record(), record(1), record(
      sample=1, reward=0.0, fate="not_drawn", advantage=None)])
  rows = page.locator("#group tr").all_inner_texts()
  assert len(rows) == 3  # head, and two of step 0
  assert rows[1].split() == ["0", "1", "0.25", "0", "trained", "0.5", "3",
                             "answered"]
  assert rows[2].split() == ["1", "0", "0.25", "0", "not_drawn", "–", "3",
                             "answered"]
  page.locator("#group tr").nth(2).click()
  _select(page, 2)


@needs_browser
def test_numbers_of_a_token_are_told(opened):
  page = opened([record()])
  token = page.locator(".policy .tokens span").nth(1)
  token.hover()
  assert token.get_attribute("title").split("\n") == [
      "id 5", "logprob -1 (sampler)", "logprob -1.5 (learner)", "gap -0.50",
      "entropy 2 nats", "policy version 3"]


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(opened, scheme):
  page = opened([record()], color_scheme=scheme)
  ink, back = page.evaluate(
      "[getComputedStyle(document.body).color,"
      " getComputedStyle(document.body).backgroundColor]"
      ".map(c => c.match(/\\d+/g).map(Number).reduce((a, b) => a + b) / 3)")
  assert abs(ink - back) > 180
  assert (ink > back) == (scheme == "dark")


@needs_browser
def test_only_rows_in_view_are_drawn(opened):
  page = opened([record(i, f"p{i}") for i in range(500)])
  assert page.locator(".row").count() < 60
  page.eval_on_selector("#list", "node => { node.scrollTop = 400 * 40; }")
  page.wait_for_selector("text=step 402")
