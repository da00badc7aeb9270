"""Samples on disk and what is made of them, against values by hand."""

import asyncio
import json

import pytest

from rstar2_jax import errors
from rstar2_jax import types
from rstar2_jax.evaluation import benchmark_report
from rstar2_jax.evaluation import samples

_INTEGER = types.Prompt(id="b/0", problem="a", answer="12", source="b")
_HALF = types.Prompt(id="b/1", problem="b", answer=r"\frac{1}{2}", source="b")


def _sample(prompt, index, answer, **values):
  response = "" if answer is None else (
      f"<answer>\\boxed{{{answer}}}</answer>")
  return samples.Sample(**{
      "set": prompt.source, "id": prompt.id, "sample": index,
      "stop_reason": "answered" if answer is not None else "max_tokens",
      "answer": answer, "response": response, "response_tokens": 10,
      "turns": 1, "calls": 0, "erroneous_calls": 0, "wall_s": 0.5} | values)


async def _half(answer, reference):
  """Stands for the sandbox: knows the value of one half only."""
  assert reference == r"\frac{1}{2}"
  return {"0.5": True, "0.25": False, "lost": None}[answer]


def test_of_trajectory():
  trajectory = types.Trajectory(
      prompt=_INTEGER, sample=3, stop_reason=types.StopReason.ANSWERED,
      spans=(types.Span(token_ids=(1, 2), source=types.Source.PROMPT),
             types.Span(token_ids=(3,), source=types.Source.POLICY,
                        logprobs=(-1.0,)),
             types.Span(token_ids=(4, 5), source=types.Source.TOOL)),
      tool_calls=(types.ToolCall(turn=0), types.ToolCall(turn=0)),
      tool_results=(types.ToolResult(status=types.ToolStatus.SUCCESS),
                    types.ToolResult(status=types.ToolStatus.TIMEOUT)),
      turn_texts=("call", r"<answer>\boxed{12}</answer>"),
      timings={"wall_s": 1.25})
  assert samples.of_trajectory(trajectory) == samples.Sample(
      set="b", id="b/0", sample=3, stop_reason="answered", answer="12",
      response=r"<answer>\boxed{12}</answer>", response_tokens=3, turns=2,
      calls=2, erroneous_calls=1, wall_s=1.25)


def test_samples_are_found_again(tmp_path):
  with samples.SampleFile(str(tmp_path), {"seed": 1}) as file:
    file.add(_sample(_INTEGER, 0, "12"))
    file.add(_sample(_INTEGER, 1, None, stop_reason="infra_error"))
    file.add(_sample(_HALF, 0, "0.5"))
    file.add(_sample(_HALF, 1, "0.25"))
  with (tmp_path / "samples.jsonl").open("a") as broken:
    broken.write('{"set": "b", "id"')  # stopped while writing
  with samples.SampleFile(str(tmp_path), {"seed": 1}) as file:
    assert file.missing([_INTEGER, _HALF], 2) == [_INTEGER]
    assert file.missing([_INTEGER, _HALF], 1) == []
    file.add(_sample(_INTEGER, 1, "13"))
  with samples.SampleFile(str(tmp_path), {"seed": 1}) as file:
    assert not file.missing([_INTEGER, _HALF], 2)
    assert [s.answer for s in file.of(_INTEGER, 2)] == ["12", "13"]
  lines = (tmp_path / "samples.jsonl").read_text().splitlines()
  assert len([json.loads(line) for line in lines]) == 5


def test_samples_of_other_settings_are_not_mixed_in(tmp_path):
  with samples.SampleFile(str(tmp_path), {"seed": 1, "k": 2}):
    pass
  with pytest.raises(errors.UserError, match="seed=1, now it is 2"):
    samples.SampleFile(str(tmp_path), {"seed": 2, "k": 2})


def test_a_line_that_is_no_sample(tmp_path):
  (tmp_path / "samples.jsonl").write_text('{"set": "b"}\n')
  with pytest.raises(errors.UserError, match="samples.jsonl:1: is no sample"):
    samples.SampleFile(str(tmp_path), {})


def test_verdicts():
  pairs = [(_INTEGER, _sample(_INTEGER, 0, "12")),
           (_INTEGER, _sample(_INTEGER, 1, "13")),
           (_INTEGER, _sample(_INTEGER, 2, None)),
           (_HALF, _sample(_HALF, 0, "0.5")),
           (_HALF, _sample(_HALF, 1, "0.25")),
           (_HALF, _sample(_HALF, 2, "lost"))]
  verdicts = asyncio.run(samples.grade(pairs, _half))
  assert verdicts == [(True, True), (False, False), (False, False),
                      (None, True), (None, False), (None, None)]
  assert samples.rewards(verdicts) == [1.0, 0.0, 0.0, 1.0, 0.0, None]


def test_equal_answers_are_verified_once():
  asked = []
  async def verify(answer, reference):
    asked.append(answer)
    return await _half(answer, reference)
  pairs = [(_HALF, _sample(_HALF, i, "0.5")) for i in range(5)]
  assert asyncio.run(samples.grade(pairs, verify)) == [(None, True)] * 5
  assert asked == ["0.5"]


def test_metrics_by_hand():
  pairs = [(_INTEGER, _sample(_INTEGER, 0, "12", calls=3, erroneous_calls=1)),
           (_INTEGER, _sample(_INTEGER, 1, "12.0", response_tokens=20)),
           (_INTEGER, _sample(_INTEGER, 2, "13")),
           (_HALF, _sample(_HALF, 0, "0.25")),
           (_HALF, _sample(_HALF, 1, "0.5", calls=1)),
           (_HALF, _sample(_HALF, 2, None, response_tokens=30))]
  verdicts = [(True, True), (True, True), (False, True),
              (None, False), (None, True), (None, False)]
  result = benchmark_report.summarize(
      [_INTEGER, _HALF], pairs, verdicts, num_samples=4, contaminated=1)
  assert result["avg"]["mean"] == pytest.approx((2 / 3 + 1 / 3) / 2)
  assert result["pass"]["mean"] == 1.0 and result["k"] == 3
  # 12 has two of three votes; 0.25 and 0.5 have one each.
  assert result["maj"]["mean"] == pytest.approx((1 + 0.5) / 2)
  assert result["lost"] == 2 and result["disagreements"] == 1
  assert result["response_tokens"] == pytest.approx(90 / 6)
  assert result["tool_error_ratio"] == pytest.approx(1 / 4)
  assert result["truncated"] == pytest.approx(1 / 6)
  # t(0.975, 1) = 12.706 and s / sqrt(2) = 1/6 over the two problems.
  assert result["avg"]["high"] == pytest.approx(0.5 + 12.7062 / 6, rel=1e-4)
  assert benchmark_report.rows({"m": {"b": result}}) == [[
      "m", "b", "2", "3", "50.0 ± 211.8", "100.0 ± 0.0", "75.0 ± 317.7", "15",
      "0.67", "25.0 %", "16.7 %", "2"]]


def test_nothing_survived():
  result = benchmark_report.summarize(
      [_HALF], [], [], num_samples=2, contaminated=None)
  assert result["lost"] == 2 and "avg" not in result
  assert benchmark_report.rows({"m": {"b": result}}) == [
      ["m", "b", "1", *["-"] * 8, "2"]]


def test_contaminated_problems_are_counted():
  text = "one two three four five six seven eight nine"
  other = "ten eleven twelve"
  prompts = [types.Prompt(id=t, problem=t, answer="1") for t in (text, other)]
  assert benchmark_report.count_contaminated(
      prompts, [f"so {text} then"]) == 1
