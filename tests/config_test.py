"""Configuration: presets fit together, and wrong values name their flag."""

import dataclasses
import json
import typing

import pytest

from experiments import config_flags
from experiments import predecessor
from experiments import presets
from experiments import recipe
from experiments import sft
from experiments import stage1
from experiments import stage2
from experiments import stage3
from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import run_folder

_STAGES = {"sft": sft, "stage1": stage1, "stage2": stage2, "stage3": stage3}
_GROUPS = [f.name for f in dataclasses.fields(config.Config)
           if dataclasses.is_dataclass(f.type)]


@pytest.mark.parametrize("name", _STAGES)
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_cards_say_what_they_are(name, preset):
  cfg = _STAGES[name].CONFIGS[preset]
  assert (cfg.stage, cfg.preset) == (name, preset)


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_stages_of_a_preset_share_the_policy(preset):
  cards = [stage.CONFIGS[preset] for stage in _STAGES.values()]
  for card in cards:
    assert card.policy == cards[0].policy
    assert card.data.max_prompt_tokens == cards[0].data.max_prompt_tokens
    assert card.eval == cards[0].eval


def test_the_recipe_ends_with_the_last_stage():
  assert recipe.CONFIGS == stage3.CONFIGS


def test_the_paper_preset_has_the_paper_numbers():
  cards = [stage.CONFIGS["paper"] for stage in (stage1, stage2, stage3)]
  assert [c.num_steps for c in cards] == [300, 85, 125]
  assert [c.rollout.max_turns for c in cards] == [10, 10, 15]
  assert [c.rollout.max_response_tokens for c in cards] == [
      8192, 12_288, 12_288]
  assert [c.optimizer.reset for c in cards] == [False, False, True]
  for card in cards:
    assert card.rollout.prompts_per_step == 512
    assert card.rollout.group_size == 32
    assert card.roc.keep == 16
    assert card.rollout.temperature == 1.0
    assert (card.loss.clip_low, card.loss.clip_high) == (0.2, 0.28)
    assert (card.loss.kl_coef, card.loss.entropy_coef) == (0.0, 0.0)
    assert card.optimizer.learning_rate == 1e-6
    assert card.optimizer.warmup_steps == 20


@pytest.mark.parametrize("name", _STAGES)
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_the_longest_trajectory_fits_the_engine_and_a_row(name, preset):
  cfg = _STAGES[name].CONFIGS[preset]
  longest = cfg.data.max_prompt_tokens + cfg.rollout.max_response_tokens
  assert longest <= cfg.engine.max_seq_len
  assert longest <= cfg.batch.row_tokens


@pytest.mark.parametrize("group", [f"{g}" for g in _GROUPS])
def test_every_field_is_documented_and_of_an_allowed_type(group):
  cls = next(f.type for f in dataclasses.fields(config.Config)
             if f.name == group)
  assert cls.__doc__ and not cls.__doc__.startswith(cls.__name__)
  hints = typing.get_type_hints(cls)
  for field in dataclasses.fields(cls):
    assert field.metadata["help"].endswith("."), field.name
    inner = [hints[field.name], *typing.get_args(hints[field.name])]
    assert set(inner) & {bool, int, float, str} or (
        typing.get_origin(inner[0]) is typing.Literal), field.name


@pytest.mark.parametrize("flag, value", [
    ("data.min_level", 0), ("data.max_level", 4), ("data.max_prompt_tokens", 0),
    ("policy.num_layers", 0), ("policy.num_kv_heads", 3),
    ("policy.head_dim", 33), ("policy.vocab_size", 300), ("sft.slip_rate", 1.5),
    ("sft.num_epochs", 0), ("rollout.group_size", 0), ("rollout.top_p", 0.0),
    ("rollout.top_p", 1.1), ("rollout.top_k", 0), ("rollout.temperature", 0.0),
    ("rollout.request_timeout_s", 1e6), ("rollout.trajectory_timeout_s", 1e6),
    ("tool.timeout_s", 0.0), ("tool.deadline_s", 0.5), ("roc.keep", 0),
    ("roc.epsilon", 0.0), ("roc.min_negatives", -1), ("loss.clip_low", 1.0),
    ("loss.clip_high", 0.0), ("loss.dual_clip", 1.0), ("loss.std_ddof", 2),
    ("loss.kl_coef", -0.1), ("loss.importance_cap", 0.0),
    ("optimizer.learning_rate", -1.0), ("optimizer.b1", 1.0),
    ("optimizer.max_grad_norm", 0.0), ("batch.row_tokens", 0),
    ("mesh.data", 0), ("checkpoint.every_steps", 0), ("eval.num_samples", 0),
    ("eval.temperature", -0.1), ("log.trajectories_per_step", -1),
    ("log.groups_per_step", -1),
    ("num_steps", -1), ("seed", -1), ("batch.row_tokens", 64),
])
def test_a_wrong_value_names_its_flag(flag, value):
  with pytest.raises(ValueError) as caught:
    config_flags.replace(stage2.CONFIGS["laptop"], {flag: value})
  assert str(caught.value).startswith(f"--{flag}={value}: must be ")


@pytest.mark.parametrize("flag", ["rollout.urls", "tool.urls"])
@pytest.mark.parametrize("url", ["localhost:30000", "http://", "http:///x"])
def test_what_is_no_url_is_named(flag, url):
  with pytest.raises(ValueError) as caught:
    config_flags.replace(
        stage2.CONFIGS["laptop"], {flag: ("http://127.0.0.1:30000", url)})
  assert str(caught.value).startswith(f"--{flag}={url}: must be a URL")


def test_roc_may_not_keep_more_than_there_are():
  with pytest.raises(ValueError, match="--roc.keep=17.*group_size=16"):
    config_flags.replace(stage2.CONFIGS["laptop"], {"roc.keep": 17})
  config_flags.replace(
      stage2.CONFIGS["laptop"], {"roc.keep": 17, "roc.enabled": False})


def test_a_configuration_is_json():
  cfg = stage2.CONFIGS["laptop"]
  read = json.loads(json.dumps(dataclasses.asdict(cfg)))
  assert read["rollout"]["group_size"] == cfg.rollout.group_size


def test_flags_of_one_stage_do_not_change_the_stage_before():
  """Arms of an ablation start from the same predecessor."""
  card = stage1.CONFIGS["laptop"]
  arm = config_flags.replace(stage2.CONFIGS["laptop"], {
      "roc.enabled": False, "loss.clip_high": 0.2, "num_steps": 3})
  assert predecessor.carry_over(arm, card) == card


def test_what_describes_the_whole_run_reaches_the_stage_before():
  cfg = config_flags.replace(stage2.CONFIGS["laptop"], {
      "seed": 3, "workdir": "elsewhere", "policy.num_layers": 1,
      "tool.timeout_s": 1.0, "data.families": ("gcd",)})
  before = predecessor.carry_over(cfg, stage1.CONFIGS["laptop"])
  assert run_folder.path_of(before) == "elsewhere/laptop-s3-stage1"
  assert before.policy.num_layers == 1
  assert before.tool.timeout_s == 1.0
  assert before.data.families == ("gcd",)
  assert before.data.max_level == stage1.CONFIGS["laptop"].data.max_level


def test_large_presets_ask_for_the_stage_before(tmp_path):
  cfg = config_flags.replace(
      stage2.CONFIGS["smollm2"], {"workdir": str(tmp_path), "seed": 5})
  with pytest.raises(errors.UserError) as caught:
    predecessor.require(cfg, stage1)
  assert "--preset=smollm2 --seed=5" in str(caught.value)
  assert "stage1" in str(caught.value)
