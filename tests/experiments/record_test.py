"""`experiments.record`: weights and a server's answers say the same."""

import re
import subprocess
import sys

import numpy as np
import pytest

from rstar2_jax.data import trajectory_records
from tests.experiments import tiny


@pytest.fixture(scope="module", name="url")
def _url(finished):
  """A server of stage 1's policy."""
  process = subprocess.Popen(
      [sys.executable, "-m", "rstar2_jax.engine", "--port=0",
       f"--model_path={finished.run('stage1')}/policy", "--context_length=64",
       "--max_running_requests=16", "--prefill_rows=4",
       "--chunked_prefill_size=16"], cwd=tiny.ROOT, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
  try:
    ready = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert ready, process.stderr.read()
    yield ready[0]
  finally:
    process.kill()
    process.communicate()


def _record(place, out, *flags):
  done = place.call(
      "record", f"--policy.path={place.run('stage1')}/policy",
      f"--out={out}", "--problems=2", *flags)
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.splitlines()[-1].startswith(
      f"16 trajectories of 2 problems: {out}")
  return list(trajectory_records.read(str(out / "trajectories")))


def _ids(record):
  return [span.token_ids for span in record.trajectory.spans]


def test_a_server_says_what_the_weights_say(finished, url, tmp_path):
  """Entropies from 20 logprobs are those of all 512 ids, or a little over."""
  ours = _record(finished, tmp_path / "ours")
  served = _record(
      finished, tmp_path / "served", "--served", f"--rollout.urls={url}")
  assert [_ids(r) for r in ours] == [_ids(r) for r in served]
  assert {r.trajectory.reward for r in ours} == {0.0, 1.0}
  assert {r.fate for r in ours} > {trajectory_records.Fate.TRAINED}
  for name, low, high in (("learner_logprobs", -1e-4, 1e-4),
                          ("entropy", -1e-4, 0.02)):
    gaps = np.concatenate([
        np.subtract(getattr(b, name), getattr(a, name))
        for a, b in zip(ours, served, strict=True)])
    assert gaps.size > 100
    assert low <= gaps.min() and gaps.max() <= high, (name, gaps)


def test_view_and_analyze_read_it(finished, tmp_path):
  _record(finished, tmp_path / "seen")
  for command in ("view", "analyze"):
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{command}", tmp_path / "seen"],
        cwd=tiny.ROOT, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "16 trajectories" in done.stdout


def test_bad_input_is_one_line(finished, tmp_path):
  policy = f"--policy.path={finished.run('stage1')}/policy"
  (tmp_path / "file").write_text("")
  for flags, said in [
      (["--served", policy], "--served: needs the servers' --rollout.urls"),
      ([policy, "--problems=0"], "--problems=0: must be positive"),
      ([policy, f"--out={tmp_path}/file/x"], "cannot be written"),
      ([policy, "--out="], "--out=: must be a folder's name"),
      ([policy, f"--out={finished.run('stage1')}"], "is a run's folder"),
      ([f"--policy.path={tmp_path}"], "config.json")]:
    done = finished.call("record", *flags)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
