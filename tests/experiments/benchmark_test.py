"""Benchmarks and sample filters as a user runs them, at a size of seconds."""

import json

import pytest

_FAST = ("--eval.num_samples=4",)


@pytest.fixture(name="place", scope="module")
def _place(finished, tmp_path_factory):
  return finished.copy(tmp_path_factory.mktemp("benchmark") / "x", "sft",
                       "stage1")


@pytest.fixture(name="policy", scope="module")
def _policy(place):
  return f"--policy.path={place.run('stage1')}/policy"


@pytest.fixture(name="sets", scope="module")
def _sets(place, tmp_path_factory):
  path = tmp_path_factory.mktemp("sets") / "half.jsonl"
  path.write_text(json.dumps(
      {"problem": "What is 2 + 2?", "answer": r"\frac{8}{2}"}) + "\n")
  return f"--benchmark=tiny={place.problems},half={path}"


def _last(done):
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def test_benchmarks_resume_and_join(place, policy, sets):
  first = place.call("evaluate", sets, policy, "--label=a", *_FAST)
  results = _last(first)["results"]
  assert results["tiny"]["samples"] == 12 and results["half"]["samples"] == 4
  assert results["tiny"]["lost"] == 0
  assert results["tiny"]["contaminated"] is not None  # --data.train is a file
  # 8/2 is no integer for the strict grader's reference; math-verify decides.
  right = [json.loads(line)["answer"] for line in (
      place.workdir / "evaluations/a/samples.jsonl").read_text().splitlines()
           if json.loads(line)["set"] == "half"].count("4")
  assert results["half"]["avg"]["mean"] == right / 4

  path = place.workdir / "evaluations/a/samples.jsonl"
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join(lines[:-5]) + lines[-5][:20])  # as if killed
  again = place.call("evaluate", sets, policy, "--label=a", *_FAST)
  assert _last(again)["results"] == results
  assert "16/16" in again.stderr

  other = place.call("evaluate", sets, policy, "--label=b", "--first=1",
                     *_FAST)
  assert _last(other)["results"]["tiny"]["problems"] == 1
  rows = [line.split()[:2] for line in other.stdout.splitlines()
          if line.startswith(("a ", "b "))]
  assert rows == [["a", "tiny"], ["b", "tiny"], ["a", "half"], ["b", "half"]]

  mixed = place.call("evaluate", sets, policy, "--label=a", "--seed=1", *_FAST)
  assert mixed.returncode == 2
  assert "seed=0, now it is 1" in mixed.stderr
  assert mixed.stderr.count("\n") == 1


def test_hard_problems_and_labels(place, policy, tmp_path):
  problems = tmp_path / "problems.jsonl"
  rows = [json.loads(line) for line in place.problems.read_text().splitlines()]
  rows += [{"problem": "What is 2 + 2?", "answer": 999_999}]  # a wrong label
  problems.write_text("".join(json.dumps(r) + "\n" for r in rows))
  flags = (f"--problems={problems}", policy, f"--out={tmp_path}/out")
  hard = _last(place.call("filter_hard", *flags))
  counts = [json.loads(line) for line in
            (tmp_path / "out/counts.jsonl").read_text().splitlines()]
  assert [c["sampled"] for c in counts] == [8] * 4
  assert counts[3]["right"] == 0
  assert hard["kept"] == sum(c["right"] < 8 for c in counts)
  kept = (tmp_path / "out/problems.jsonl").read_text()
  assert "999999" in kept

  # The same samples serve the other rule.
  label = _last(place.call("filter_hard", *flags, "--rule=label",
                           "--num_samples=8"))
  assert label["kept"] == sum(c["right"] >= 2 for c in counts)
  assert label["rejects"]["too few samples agree with the label"] >= 1
  assert "999999" not in (tmp_path / "out/problems.jsonl").read_text()


@pytest.mark.parametrize("flags,message", [
    (["--benchmark=aime99"], "unknown benchmark 'aime99'"),
    (["--benchmark=x=none.jsonl"], "there is no such file"),
    (["--benchmark=a=x.jsonl,a=y.jsonl"], "x.jsonl: there is no such file"),
    (["--label=a/b"], "--label=a/b"), (["--served"], "--rollout.urls"),
])
def test_bad_input(place, policy, flags, message):
  done = place.call("evaluate", policy, *flags)
  assert done.returncode == 2
  assert message in done.stderr and done.stderr.count("\n") == 1
