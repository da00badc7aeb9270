"""RL against unmodified SGLang: rollouts, weights with proof, a result."""

import json

import pytest

from tests.engine import server_process
from tests.sglang_cpu import server as sglang

_STEPS = 3


@pytest.mark.sglang
def test_a_stage_trains_on_what_sglang_samples(finished, tmp_path):
  """Three updates; each step's tokens are of the weights before it."""
  if not sglang.environment():
    pytest.skip("SGLang: run ./test.sh --sglang, which installs it (2.2 GB)")
  place = finished.copy(tmp_path, "sft")
  with sglang.running(
      place.run("sft") / "policy", "--context-length=64") as (_, url):
    done = place.call("stage1", f"--rollout.urls={url}",
                      f"--num_steps={_STEPS}", "--log.groups_per_step=2")
    assert done.returncode == 0, done.stderr
    info = server_process.call(url, "/model_info")[1]
  steps = [json.loads(line) for line in
           (place.run("stage1") / "metrics.jsonl").read_text().splitlines()]
  assert [s["step"] for s in steps] == [*range(_STEPS)]
  assert sum("learner/loss" in s for s in steps) >= 1  # groups had signal
  for step in steps:
    assert step["rollout/masked_out"] == 0
    assert step["rollout/trajectories"] == 16
    assert 0 < step["rollout/sample_s"] < 60
    # P07: what SGLang says of its tokens is what the learner says.
    assert step.get("learner/rollout_gap", 0.0) < 1e-4
  assert sum(s["rollout/reward"] for s in steps) > 0
  assert sum(s["rollout/tool_calls"] for s in steps) > 0
  # The last push, for the evaluation, is of the finished stage.
  assert info["weight_version"] == str(_STEPS)
  assert place.summary("stage1")["pass_at_1_after"] is not None
