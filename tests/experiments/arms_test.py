"""Arms, the queue of runs, ablations and sweep as commands."""

import json

import pytest

from experiments import ablations
from experiments import arms
from experiments import config_flags
from experiments import run_queue
from experiments import stage1
from experiments import stage2
from experiments import sweep
from rstar2_jax import errors
from rstar2_jax import flag_tables
from rstar2_jax.evaluation import comparison

_ARMS = [(suite, arm) for suite, found in arms.SUITES.items() for arm in found]
_IDS = [f"{suite}-{arm.name}" for suite, arm in _ARMS]
_TWO_STEPS = ("--num_steps=2", "--rollout.max_turns=2")


@pytest.mark.parametrize("preset", ["laptop", "smollm2", "paper"])
@pytest.mark.parametrize("suite,arm", _ARMS, ids=_IDS)
def test_every_arm_parses_and_changes_what_it_says(suite, arm, preset):
  del suite
  base = stage1.CONFIGS[preset]
  changes = arm.changes(base)
  job = run_queue.make(arm.name, 3, "stage1", stage1.CONFIGS,
                       ["x", f"--preset={preset}"], changes)
  was, now = flag_tables.values(base), flag_tables.values(job.cfg)
  differing = {k for k in now if now[k] != was[k]}
  assert differing - {"seed", "name"} == set(changes)
  assert job.cfg.seed == 3 and job.cfg.name == f"{arm.name}-s3"


def test_plain_grpo_takes_as_many_trajectories_as_roc_keeps():
  grpo = next(arm for arm in arms.SUITES["roc"] if arm.name == "grpo")
  # The paper's 16 against 16 of 32.
  assert grpo.changes(stage1.CONFIGS["paper"]) == {
      "roc.enabled": False, "rollout.group_size": 16}


@pytest.mark.parametrize("suite", arms.SUITES)
def test_claims_are_about_arms_and_measures_that_exist(suite):
  names = [arm.name for arm in arms.SUITES[suite]]
  assert len(set(names)) == len(names) and arms.CLAIMS[suite]
  for claim in arms.CLAIMS[suite]:
    assert {claim.arm, claim.baseline} <= set(names)
    assert claim.measure in comparison.MEASURES


def test_commands_are_those_that_a_user_would_type(capsys):
  ablations.main(ablations.Options(suite="loss", seeds="1", dry_run=True,
                                   arms=("clip_symmetric", "kl")),
                 ["x", "--num_steps=7"])
  assert capsys.readouterr().out.splitlines() == [
      "python -m experiments.stage1 --num_steps=7 --seed=1"
      " --name=clip_symmetric-s1 --loss.clip_high=0.2",
      "python -m experiments.stage1 --num_steps=7 --seed=1 --name=kl-s1"
      " --loss.kl_coef=0.01"]


@pytest.mark.parametrize("text,seeds", [
    ("0", (0,)), ("0,2, 5", (0, 2, 5)), ("1-3,2,7", (1, 2, 3, 7))])
def test_seeds(text, seeds):
  assert run_queue.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "a", "1-", "-1", "1.5", "3-1"])
def test_what_is_no_seeds(text):
  with pytest.raises(ValueError, match="--seeds"):
    run_queue.parse_seeds(text)


@pytest.mark.parametrize("arg", ["--seed=1", "--name=x", "-seed=1"])
def test_seed_and_name_are_not_the_users(arg):
  with pytest.raises(errors.UserError, match="--seeds"):
    run_queue.make("a", 0, "stage1", stage1.CONFIGS, ["x", arg], {})


def test_a_grid_has_every_combination(capsys):
  sweep.main(sweep.Options(
      experiment="stage2", seeds="0,1", dry_run=True,
      grid="loss.clip_high=0.2,0.28; roc.mode=paper,release"), ["x"])
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 8 == len(set(lines))
  assert lines[1] == (
      "python -m experiments.stage2 --seed=0"
      " --name=clip_high=0.2,mode=release-s0 --loss.clip_high=0.2"
      " --roc.mode=release")
  cfg = config_flags.build(["x", *lines[7].split()[3:]], stage2.CONFIGS)
  assert (cfg.seed, cfg.loss.clip_high, cfg.roc.mode) == (1, 0.28, "release")


@pytest.mark.parametrize("grid", ["a", "a=", "=1", "seed=1,2", "a b=1"])
def test_what_is_no_grid(grid):
  with pytest.raises(ValueError, match="--grid"):
    sweep.parse_grid(grid)


def test_a_sweep_needs_a_grid():
  with pytest.raises(errors.UserError, match="--grid: must name at least one"):
    sweep.main(sweep.Options(grid=" ; "), ["x"])


def test_names_of_points_are_told_apart():
  assert sweep.name_of({"sft.learning_rate": "1",
                        "optimizer.learning_rate": "2"}) == (
      "sft.learning_rate=1,optimizer.learning_rate=2")


@pytest.fixture(name="place")
def _place(finished, tmp_path):
  return finished.copy(tmp_path / "copy", "sft")


@pytest.mark.parametrize("flags,said", [
    (["--suite=rocks"], "roc, failed_attempts, loss"),
    (["--arms=grpo,xx"], "roc_paper, grpo"),
    (["--seeds=x"], "--seeds=x"),
    (["--parallel=0"], "parallel=0"),
    (["--roc.kep=1"], "did you mean --roc.keep"),
    (["--seed=1"], "--seeds"),
])
def test_bad_input_is_one_line(place, flags, said):
  done = place.call("ablations", *flags)
  assert done.returncode == 2
  assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_ablation_runs_resumes_and_reports(place):
  flags = ["--suite=roc", "--arms=roc_paper,grpo", "--seeds=0", *_TWO_STEPS]
  done = place.call("ablations", *flags)
  assert done.returncode == 0, done.stderr
  out = place.workdir / "ablation-roc"
  rows = (out / "results.csv").read_text().splitlines()
  assert [row.split(",")[:3] for row in rows[1:]] == [
      ["roc_paper", "0", "2"], ["grpo", "0", "2"]]
  last = json.loads(done.stdout.splitlines()[-1])
  assert last["runs"] == 2 and set(last["verdicts"].values()) == {"undecided"}
  before = (place.workdir / "grpo-s0" / "summary.json").stat().st_mtime_ns

  again = place.call("ablations", *flags)
  assert again.returncode == 0, again.stderr
  assert "2 of them finished before" in again.stdout
  after = (place.workdir / "grpo-s0" / "summary.json").stat().st_mtime_ns
  assert after == before

  other = place.call("ablations", *flags, "--loss.clip_low=0.1")
  assert other.returncode == 2
  assert "--loss.clip_low was 0.2, is 0.1" in other.stderr


def test_a_run_that_fails_is_named_and_the_others_are_reported(place):
  (place.workdir / "grpo-s0").write_text("in the way")
  done = place.call("ablations", "--arms=grpo,roc_paper", "--seeds=0",
                    *_TWO_STEPS)
  assert done.returncode == 2
  assert "1 of 2 runs failed" in done.stderr
  rows = (place.workdir / "ablation-roc/results.csv").read_text().splitlines()
  assert [row.split(",")[0] for row in rows[1:]] == ["roc_paper"]


@pytest.mark.slow
@pytest.mark.parametrize("suite", arms.SUITES)
def test_every_arm_runs_two_steps(place, suite):
  done = place.call("ablations", f"--suite={suite}", "--seeds=0", *_TWO_STEPS)
  assert done.returncode == 0, done.stderr + done.stdout
  assert json.loads(done.stdout.splitlines()[-1])["runs"] == len(
      arms.SUITES[suite])
  for arm in arms.SUITES[suite]:
    lines = (place.workdir / f"{arm.name}-s0/metrics.jsonl").read_text()
    assert lines.count("\n") == 2, arm.name


