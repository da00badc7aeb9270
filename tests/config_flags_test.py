"""Flags: each field is one, each mistake is one line."""

import dataclasses
import pathlib
import subprocess
import sys

import pytest

from experiments import config_flags
from experiments import flags_help
from experiments import sft
from experiments import stage2
from experiments import stage3
from rstar2_jax import config_fields
from rstar2_jax import errors
from rstar2_jax import flag_tables
from rstar2_jax import run_folder

_ROOT = pathlib.Path(__file__).resolve().parents[1]


def _build(*arguments, configs=None):
  return config_flags.build(["program", *arguments], configs or stage2.CONFIGS)


def _error(*arguments):
  with pytest.raises(errors.UserError) as caught:
    _build(*arguments)
  assert "\n" not in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize("preset", ["laptop", "smollm2", "paper"])
def test_preset_alone_is_the_card(preset):
  assert _build(f"--preset={preset}") == stage2.CONFIGS[preset]


def test_without_flags_is_the_laptop():
  assert _build() == stage2.CONFIGS["laptop"]


@pytest.mark.parametrize("flag, field, value", [
    ("--seed=7", "seed", 7),
    ("--seed=1_000", "seed", 1000),
    ("--name=a b", "name", "a b"),
    ("--loss.clip_high=0.2", "loss.clip_high", 0.2),
    ("--loss.dual_clip=3", "loss.dual_clip", 3.0),
    ("--loss.dual_clip=none", "loss.dual_clip", None),
    ("--noroc.enabled", "roc.enabled", False),
    ("--roc.enabled=false", "roc.enabled", False),
    ("--roc.enabled=True", "roc.enabled", True),
    ("--optimizer.reset", "optimizer.reset", True),
    ("--roc.mode=release", "roc.mode", "release"),
    ("--rollout.urls=http://a:1, http://b:2", "rollout.urls",
     ("http://a:1", "http://b:2")),
    ("--data.families=", "data.families", ()),
    ("--eval.num_problems=0", "eval.num_problems", 0),
])
def test_a_flag_replaces_one_field(flag, field, value):
  before = flag_tables.values(stage2.CONFIGS["laptop"])
  after = flag_tables.values(_build(flag))
  assert after[field] == value
  assert type(after[field]) is type(value)
  assert after == before | {field: value}


def test_a_flag_wins_over_the_preset_wherever_it_stands():
  for flags in (["--seed=3", "--preset=paper"], ["--preset=paper", "--seed=3"]):
    assert _build(*flags) == dataclasses.replace(
        stage2.CONFIGS["paper"], seed=3)


def test_every_field_but_the_stage_is_a_flag():
  """Also with the value it has: what is shown can be given back."""
  for name, value in flag_tables.values(stage2.CONFIGS["laptop"]).items():
    if name == "stage":
      assert "unknown flag" in _error("--stage=sft")
    else:
      given = (",".join(value) if isinstance(value, tuple)
               else "none" if value is None else str(value))
      assert _build(f"--{name}={given}") == stage2.CONFIGS["laptop"]


@pytest.mark.parametrize("configs", [sft.CONFIGS, stage2.CONFIGS,
                                     stage3.CONFIGS])
@pytest.mark.parametrize("preset", ["laptop", "smollm2", "paper"])
def test_flags_file_of_a_run_gives_its_configuration(tmp_path, configs, preset):
  cfg = config_flags.replace(configs[preset], {
      "workdir": str(tmp_path / "a folder"), "name": "it's #1",
      "loss.dual_clip": 3.0, "optimizer.learning_rate": 1.0 / 3e5,
      "rollout.urls": ("http://a:1", "http://b:2"), "roc.enabled": False})
  with run_folder.RunFolder(cfg) as folder:
    path = folder.path
  assert _build(f"--flagfile={path}/flags.txt", configs=configs) == cfg


def test_experiments_do_not_share_flags():
  assert _build(configs=sft.CONFIGS).stage == "sft"
  assert _build(configs=stage3.CONFIGS).stage == "stage3"
  assert _build(configs=sft.CONFIGS).stage == "sft"


@pytest.mark.parametrize("arguments, parts", [
    (["--seeed=1"], ["--seeed", "did you mean --seed?"]),
    (["--clip_high=1"], ["--clip_high", "did you mean --loss.clip_high?"]),
    (["--norocenabled"], ["did you mean --roc.enabled?"]),
    (["--xyzzy"], ["--xyzzy", "--help"]),
    (["--seed=x"], ["--seed=x", "whole number"]),
    (["--seed=1.5"], ["--seed=1.5", "whole number"]),
    (["--seed=-1"], ["--seed=-1", "at least 0"]),
    (["--seed"], ["--seed"]),
    (["--loss.clip_high=x"], ["--loss.clip_high=x", "number"]),
    (["--loss.clip_high=inf"], ["--loss.clip_high=inf", "finite"]),
    (["--optimizer.weight_decay=nan"], ["weight_decay=nan", "finite"]),
    (["--loss.clip_low=2"], ["--loss.clip_low=2", "between 0 and 1"]),
    (["--roc.mode=foo"], ["--roc.mode=foo", "paper, release"]),
    (["--preset=huge"], ["--preset=huge", "laptop, smollm2, paper"]),
    (["--roc.enabled=maybe"], ["--roc.enabled=maybe", "true or false"]),
    (["--noroc.enabled=1"], ["--noroc.enabled=1"]),
    (["--roc.keep=99"], ["--roc.keep=99", "rollout.group_size=16"]),
    (["--flagfile=missing.txt"], ["missing.txt"]),
    (["stage1"], ["'stage1'"]),
])
def test_mistakes_name_the_flag_the_value_and_what_is_allowed(arguments, parts):
  message = _error(*arguments)
  for part in parts:
    assert part in message


def _help(groups, options=None):
  return flags_help.text("What it is.", stage2.CONFIGS, options, groups)


def test_full_help_shows_every_flag_with_text_and_default():
  text = _help("all")
  assert max(map(len, text.splitlines())) <= 80
  for name in flag_tables.values(stage2.CONFIGS["laptop"]):
    assert (f"  --{name}=" in text) == (name != "stage")
  assert f"  --num_steps={stage2.CONFIGS['laptop'].num_steps}\n" in text
  assert "  --loss.dual_clip=none\n" in text
  assert "One of: paper, release, random." in " ".join(text.split())


def test_help_is_a_screen_of_groups():
  """Flags of no group in full; of groups what they are about, and how many."""
  text = _help("")
  assert text.startswith("What it is.\n")
  assert len(text.splitlines()) <= 45
  assert max(map(len, text.splitlines())) <= 80
  values = flag_tables.values(stage2.CONFIGS["laptop"])
  for group in {name.partition(".")[0] for name in values if "." in name}:
    num = sum(name.startswith(f"{group}.") for name in values)
    doc = getattr(stage2.CONFIGS["laptop"], group).__doc__.splitlines()[0]
    assert f" {group} {doc} ({num}) " in " ".join(text.split()), group
  assert "  --seed=0\n" in text
  assert "--loss.clip_low" not in text


def test_help_beside_own_flags_only_names_the_groups():
  @dataclasses.dataclass
  class Options:
    first: int = config_fields.field(3, "Where to begin.")
  text = _help("", Options)
  assert "  --first=3\n      Where to begin.\n" in text
  assert "data, policy, sft, rollout," in text
  assert "Where problems come from." not in text


def test_help_of_groups_is_their_flags_alone():
  text = _help("roc,log")
  assert "What it is." not in text
  assert {line.partition(".")[0].strip() for line in text.splitlines()
          if line.startswith("  --")} == {"--roc", "--log"}
  with pytest.raises(errors.UserError, match="no such group.* roc,"):
    _help("rock")


@pytest.mark.parametrize("argument, groups", [
    ("--help", ""), ("-h", ""), ("-help", ""), ("--help=roc", "roc"),
    ("--helpfull", "all"), ("--seed=1", None), ("help", None)])
def test_how_help_is_asked_for(argument, groups):
  assert flags_help.asked(["stage2", "--name=x", argument]) == groups


@pytest.mark.parametrize("what, code, says", [
    ("return None", 0, ""),
    ("raise errors.UserError('no such\\n file')", 2, "error: no such file\n"),
    ("raise ConnectionError('no server')", 2, "error: no server\n"),
    ("raise interruption.Interrupted('saved')", 130, "saved\n"),
])
def test_what_an_experiment_may_end_with(what, code, says):
  done = _experiment(what)
  assert (done.returncode, done.stderr) == (code, says)


def test_a_defect_keeps_its_traceback():
  done = _experiment("raise ValueError('a defect')")
  assert done.returncode == 1
  assert "Traceback" in done.stderr


def test_second_interrupt_ends_in_one_line():
  done = _experiment("raise KeyboardInterrupt")
  assert done.returncode == 130
  assert len(done.stderr.splitlines()) == 1


def _experiment(statement):
  code = ("from experiments import config_flags, stage2\n"
          "from rstar2_jax import errors, interruption\n"
          f"def main(cfg):\n  {statement}\n"
          "config_flags.run(main, stage2.CONFIGS)\n")
  return subprocess.run([sys.executable, "-c", code], cwd=_ROOT, text=True,
                        capture_output=True, timeout=60, check=False)
