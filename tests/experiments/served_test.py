"""Stages on rollout servers of their own: several at once, and wrong ones."""

import json

from rstar2_jax.chat import vocabulary
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model
from tests.engine import server_process


def test_two_servers_share_the_rollouts_of_a_stage(finished, tmp_path):
  """Both hold the last weights, and the policy is that of one engine."""
  place = finished.copy(tmp_path, "sft")
  folder = place.run("sft") / "policy"
  with server_process.running(folder) as (_, first), (
      server_process.running(folder)) as (_, second):
    done = place.call(
        "stage1", "--num_steps=4", f"--rollout.urls={first},{second}")
    assert done.returncode == 0, done.stderr
    for url in (first, second):
      info = server_process.call(url, "/model_info")[1]
      assert info["weight_version"] == "4"
      text = server_process.call(url, "/metrics")[1]
      assert "sglang:num_requests_total" in text
  steps = [json.loads(line) for line in
           (place.run("stage1") / "metrics.jsonl").read_text().splitlines()]
  assert all(s["rollout/masked_out"] == 0 for s in steps)
  assert all(s.get("learner/rollout_gap", 0.0) < 1e-5 for s in steps)


def test_a_server_of_another_model_stops_the_run_before_its_first_step(
    finished, tmp_path):
  """One line names it, and the same command goes on with the right one."""
  place = finished.copy(tmp_path, "sft")
  tokenizer = vocabulary.build(512)
  config = model.ModelConfig(
      vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=96,
      num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16)
  hf_weights.save(tmp_path / "other", config, model.init(config, 0),
                  tokenizer=tokenizer)
  with server_process.running(tmp_path / "other") as (_, url):
    done = place.call("stage1", "--num_steps=2", f"--rollout.urls={url}")
  assert done.returncode == 2
  line = done.stderr.splitlines()[-1]
  assert line.startswith(f"error: {url}") and "another architecture" in line
  assert "Traceback" not in done.stderr
  done = place.call("stage1", "--num_steps=2")
  assert done.returncode == 0, done.stderr
  assert len(place.metrics("stage1")) == 2
