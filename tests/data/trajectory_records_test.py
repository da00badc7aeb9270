"""Records are read back as they were written, and damage is named."""

import gzip
import json

import hypothesis
from hypothesis import strategies as st
import pytest

from rstar2_jax import errors
from rstar2_jax import types
from rstar2_jax.data import trajectory_records

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_LOGPROB = st.integers(-20_000_000, 0).map(lambda n: n / 1_000_000)


@st.composite
def _spans(draw):
  spans = []
  for source in draw(st.lists(st.sampled_from(types.Source), max_size=5)):
    ids = tuple(draw(st.lists(st.integers(0, 99), min_size=1, max_size=4)))
    sampled = source is types.Source.POLICY
    spans.append(types.Span(
        token_ids=ids, source=source,
        logprobs=tuple(draw(_LOGPROB) for _ in ids) if sampled else None,
        policy_version=3 if sampled else None, seed=9 if sampled else None))
  return tuple(spans)


@st.composite
def _records(draw):
  spans = draw(_spans())
  num = sum(len(s.logprobs or ()) for s in spans)
  statuses = draw(st.lists(st.sampled_from(types.ToolStatus), max_size=3))
  trajectory = types.Trajectory(
      prompt=types.Prompt(id=draw(_TEXT), problem=draw(_TEXT), answer="7",
                          source="s", level=2, metadata={"a": [1]}),
      sample=draw(st.integers(0, 31)), spans=spans,
      tool_calls=tuple(types.ToolCall(
          turn=i, name=draw(_TEXT), arguments={"code": draw(_TEXT)},
          status=None if i else types.ToolStatus.MALFORMED_CALL)
                       for i in range(len(statuses))),
      tool_results=tuple(types.ToolResult(
          status=s, stdout=draw(_TEXT), exit_code=1, wall_ms=1.5)
                         for s in statuses),
      stop_reason=draw(st.sampled_from(types.StopReason)),
      turn_texts=tuple(draw(st.lists(_TEXT, max_size=3))),
      reward=draw(st.sampled_from([None, 0.0, 1.0])), timings={"wall_s": 0.5})
  return trajectory_records.Record(
      step=draw(st.integers(0, 9)), trajectory=trajectory,
      pieces=tuple(tuple(draw(_TEXT) for _ in s.token_ids) for s in spans),
      fate=draw(st.sampled_from(trajectory_records.Fate)),
      advantage=draw(st.sampled_from([None, -1.25])), error_ratio=0.5,
      answer_format=1.0, learner_logprobs=(-0.5,) * num,
      entropy=(0.25,) * num)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True,
                     database=None)
@hypothesis.given(_records())
def test_a_record_comes_back_as_it_was(record):
  line = json.dumps(trajectory_records.to_json(record))
  assert trajectory_records.from_json(json.loads(line)) == record


def _write(folder, step, *sample):
  spans = (types.Span(token_ids=(1,), source=types.Source.PROMPT),)
  (folder / trajectory_records.file_name(step)).write_bytes(
      trajectory_records.to_bytes(
          trajectory_records.Record(
              step=step, pieces=(("a",),), advantage=None, error_ratio=0.5,
              answer_format=1.0, fate=trajectory_records.Fate.NO_SIGNAL,
              trajectory=types.Trajectory(
                  # What a byte-level policy can say: no UTF-8 has it.
                  prompt=types.Prompt(id="p", problem="\udc80", answer="1"),
                  sample=i, spans=spans, reward=0.0,
                  stop_reason=types.StopReason.MAX_TOKENS))
          for i in sample))


def test_steps_come_in_order_and_as_asked(tmp_path):
  for step in (10, 2, 1_000_000):
    _write(tmp_path, step, 0, 1)
  (tmp_path / "step_000002.txt").write_text("a transcript")
  (tmp_path / "step_000003.jsonl.gz.new").write_text("torn")
  read = trajectory_records.read
  assert [(r.step, r.trajectory.sample) for r in read(str(tmp_path))] == [
      (2, 0), (2, 1), (10, 0), (10, 1), (1_000_000, 0), (1_000_000, 1)]
  assert {r.step for r in read(str(tmp_path), first_step=3)} == {10, 1_000_000}
  assert {r.step for r in read(str(tmp_path), last_step=10)} == {2, 10}


def test_equal_records_give_equal_files(tmp_path):
  (tmp_path / "a").mkdir()
  (tmp_path / "b").mkdir()
  for name in "ab":
    _write(tmp_path / name, 0, 0, 1)
  assert (tmp_path / "a" / "step_000000.jsonl.gz").read_bytes() == (
      tmp_path / "b" / "step_000000.jsonl.gz").read_bytes()


@pytest.mark.parametrize("content", [
    b"no gzip", gzip.compress(b"no json\n"), gzip.compress(b"{}\n"),
    gzip.compress(b"[1]\n"), gzip.compress(b"x" * 999)[:-4]])
def test_a_damaged_file_is_named(tmp_path, content):
  (tmp_path / "step_000004.jsonl.gz").write_bytes(content)
  with pytest.raises(errors.UserError, match="step_000004.jsonl.gz:"):
    list(trajectory_records.read(str(tmp_path)))


def test_no_folder_is_one_line(tmp_path):
  with pytest.raises(errors.UserError, match="no folder of trajectories"):
    list(trajectory_records.read(str(tmp_path / "absent")))


def _one_record():
  span = types.Span(token_ids=(1, 2), source=types.Source.POLICY,
                    logprobs=(-0.5, -0.5))
  return trajectory_records.Record(
      step=0, trajectory=types.Trajectory(
          prompt=types.Prompt(id="p", problem="?", answer="7"), sample=0,
          spans=(span,), stop_reason=types.StopReason.ANSWERED, reward=0.0),
      pieces=(("a", "b"),), fate=trajectory_records.Fate.TRAINED,
      advantage=1.0, error_ratio=0.5, answer_format=1.0,
      learner_logprobs=(-0.5, -0.5), entropy=(0.25, 0.25))


@pytest.mark.parametrize("change", [
    {"pieces": [["a"]]}, {"pieces": [["a", 7]]}, {"pieces": []},
    {"entropy": [0.5]}, {"entropy": ["x", "y"]}, {"learner_logprobs": [1.0]},
    {"spans": None}, {"tool_calls": [{"turn": 0}]}, {"timings": None},
    {"fate": "eaten"}, {"error_ratio": None}, {"spans": [7]}, {"prompt": 7}])
def test_what_does_not_belong_together_is_damage(tmp_path, change):
  value = trajectory_records.to_json(_one_record())
  assert trajectory_records.from_json(value) == _one_record()
  path = tmp_path / trajectory_records.file_name(0)
  path.write_bytes(gzip.compress(json.dumps(value | change).encode()))
  with pytest.raises(errors.UserError, match="no record of a trajectory"):
    list(trajectory_records.read(str(tmp_path)))


def test_flipped_bytes_and_empty_files_are_damage(tmp_path):
  whole = trajectory_records.to_bytes([_one_record()] * 50)
  path = tmp_path / trajectory_records.file_name(0)
  for content in (b"", whole[:40] + b"\xff" * 20 + whole[60:], whole[:-9]):
    path.write_bytes(content)
    with pytest.raises(errors.UserError, match="no record of a trajectory"):
      list(trajectory_records.read(str(tmp_path)))
