"""Puts the parts of a stage together from its configuration.

The only place where a configuration becomes objects: tokenizer, policy,
learner, rollout servers, sandbox. The loops then pass plain values between
them.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import tempfile
from typing import Any, Literal

import jax
import optax

from rstar2_jax import config
from rstar2_jax import errors
from rstar2_jax import progress
from rstar2_jax import run_folder
from rstar2_jax import sft_data
from rstar2_jax import types
from rstar2_jax import workers
from rstar2_jax.chat import tokenizer as tokenizer_lib
from rstar2_jax.chat import vocabulary
from rstar2_jax.data import prompts as prompts_lib
from rstar2_jax.learner import checkpoints as checkpoints_lib
from rstar2_jax.learner import optimizer as optimizer_lib
from rstar2_jax.learner import train_state
from rstar2_jax.learner import update
from rstar2_jax.policy import attention
from rstar2_jax.policy import hf_weights
from rstar2_jax.policy import model
from rstar2_jax.policy import sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy:
  """A tokenizer and a model that belong together."""

  tokenizer: tokenizer_lib.Tokenizer
  config: model.ModelConfig
  params: Any


class Stage:
  """Learner, checkpoints and policy of a stage; base of both loops.

  Attributes:
    cfg: the configuration.
    policy: where the stage started.
    learner: compiled updates.
    history: evaluations of the stages before.
    heldout: prompts of the evaluation at the end.
  """

  def __init__(
      self, cfg: config.Config, folder: run_folder.RunFolder, policy: Policy,
      optimizer: optax.GradientTransformation, history: Sequence[Any] = (),
  ):
    mesh = sharding.make_mesh(cfg.mesh)
    self.cfg = cfg
    self.policy = policy
    self.history = list(history)
    # Read now: a mistake in them must not show after hours of training.
    self.heldout = heldout_prompts(cfg)
    try:
      attention.check(cfg.policy.attention, cfg.batch.row_tokens,
                      jax.default_backend())
    except ValueError as e:
      raise errors.UserError(str(e)) from e
    # Of the learner alone: its rows have one length, which a kernel fits.
    self.learner = update.Learner(
        dataclasses.replace(policy.config, attention=cfg.policy.attention),
        optimizer, _knobs(cfg, policy), mesh=mesh,
        rows_per_micro_batch=cfg.batch.rows_per_micro_batch,
        reference_params=policy.params)
    self._folder = folder
    self._checkpoints = checkpoints_lib.Checkpoints(
        folder.checkpoint_dir, keep=cfg.checkpoint.keep)

  def restore(
      self, predecessor: str | None = None
  ) -> tuple[train_state.TrainState, int]:
    """The newest checkpoint, or the start of the stage.

    Args:
      predecessor: folder of the stage whose optimizer state goes on; None: a
        fresh one.

    Returns:
      The state and the number of steps done.
    """
    step = self._checkpoints.latest_step()
    if step is not None:
      state, data = _read(self._checkpoints, step, self)
      return state, int(data["next_step"])
    state = train_state.create(
        self.policy.params, self.learner.optimizer, self.learner.mesh)
    # SFT has an optimizer of its own; RL starts with a fresh one.
    if predecessor and run_folder.read_summary(predecessor)["stage"] != "sft":
      earlier = checkpoints_lib.Checkpoints(
          run_folder.checkpoint_dir(predecessor), keep=1)
      step = earlier.latest_step()
      if step is not None:
        state, _ = _read(earlier, step, self)
      earlier.close()
    return state, 0

  def save(self, state: train_state.TrainState, next_step: int) -> None:
    """Saves what the run needs to go on with `next_step`."""
    self._checkpoints.save(next_step, state, {"next_step": next_step})

  def is_checkpoint_step(self, step: int) -> bool:
    """Whether the state after `step` is saved."""
    return (step + 1) % self.cfg.checkpoint.every_steps == 0

  def save_policy(self, state: train_state.TrainState) -> None:
    """Writes the policy as a Hugging Face folder, for the next stage."""
    hf_weights.save(policy_dir(self._folder.path), self.policy.config,
                    state.params, tokenizer=self.policy.tokenizer)

  def close(self) -> None:
    """Ends the checkpointer."""
    self._checkpoints.close()


@contextlib.contextmanager
def open_sft(
    cfg: config.Config, folder: run_folder.RunFolder
) -> Iterator[tuple[Stage, types.PackedBatch]]:
  """The SFT stage and its packed rows."""
  keep_compilations(cfg.workdir)
  policy = _first_policy(cfg)
  rows = sft_data.packed_rows(cfg, policy.tokenizer)
  num_updates = sft_data.num_updates(cfg, len(rows.tokens))
  stage = Stage(cfg, folder, policy,
                optimizer_lib.for_sft(cfg.sft, num_updates))
  try:
    yield stage, rows
  finally:
    stage.close()


@contextlib.contextmanager
def open_rl(
    cfg: config.Config, folder: run_folder.RunFolder, start: str
) -> Iterator[tuple[Stage, workers.Workers, prompts_lib.Source]]:
  """An RL stage, its rollout workers and its training prompts.

  Args:
    cfg: the stage's configuration.
    folder: its run folder.
    start: run folder of the stage before.
  """
  keep_compilations(cfg.workdir)
  policy = load_policy(cfg, policy_dir(start))
  source = training_prompts(cfg, policy.tokenizer)
  stage = Stage(
      cfg, folder, policy, optimizer_lib.for_rl(cfg.optimizer, cfg.num_steps),
      run_folder.read_summary(start)["history"])
  with contextlib.closing(stage):
    with workers.open_workers(
        cfg, policy.tokenizer, policy.config, policy.params,
        scratch=folder.path) as opened:
      yield stage, opened, source


def keep_compilations(workdir: str) -> None:
  """Compiled programs are kept on disk: the next stage or start finds them."""
  jax.config.update(
      "jax_compilation_cache_dir", os.path.join(workdir, ".compiled"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def training_prompts(
    cfg: config.Config, tokenizer: tokenizer_lib.Tokenizer
) -> prompts_lib.Source:
  """What --data.train names, without prompts that are too long."""
  source = _open_source("data.train", cfg.data.train, "train", cfg,
                        cfg.data.min_level, cfg.data.max_level)
  if not isinstance(source, prompts_lib.Recorded):
    return source
  most = cfg.data.max_prompt_tokens
  try:
    short = source.only(
        lambda p: len(tokenizer.render_prompt(p.problem)) <= most)
  except ValueError as e:
    raise errors.UserError(
        f"--data.train={cfg.data.train}: every prompt is longer than"
        f" --data.max_prompt_tokens={most}") from e
  if len(short) < len(source):
    progress.say(f"--data.train: {len(source) - len(short)} of {len(source)}"
                 f" prompts are longer than {most} tokens and left out")
  return short


def heldout_prompts(cfg: config.Config) -> list[types.Prompt]:
  """The first --eval.num_problems of what --data.heldout names."""
  if not cfg.eval.num_problems:
    return []
  source = _open_source("data.heldout", cfg.data.heldout, "heldout", cfg,
                        cfg.eval.min_level, cfg.eval.max_level)
  num = cfg.eval.num_problems
  if isinstance(source, prompts_lib.Recorded):
    num = min(num, len(source))
  return [source[i] for i in range(num)]


def load_policy(
    cfg: config.Config, path: str, *, with_weights: bool = True
) -> Policy:
  """Opens a Hugging Face folder.

  Args:
    cfg: the configuration.
    path: the folder.
    with_weights: else only tokenizer and config.json are read, and `params`
      is None.

  Raises:
    errors.UserError: nothing usable there.
  """
  shared: dict[str, Any] = {
      "dtype": cfg.policy.dtype, "remat": cfg.policy.remat}
  params = None
  try:
    if with_weights:
      model_config, params = hf_weights.load(path, **shared)
    else:
      model_config = hf_weights.read_config(path, **shared)
    tokenizer = tokenizer_lib.Tokenizer.from_folder(path)
  except ValueError as e:
    raise errors.UserError(str(e)) from e
  if tokenizer.vocab_size > model_config.vocab_size:
    raise errors.UserError(
        f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model only"
        f" {model_config.vocab_size}")
  return Policy(tokenizer=tokenizer, config=model_config, params=params)


@contextlib.contextmanager
def open_sampling(
    cfg: config.Config, path: str, *, served: bool = False
) -> Iterator[workers.Workers]:
  """Rollout workers with the policy of a Hugging Face folder.

  Args:
    cfg: the configuration.
    path: the folder.
    served: the servers of --rollout.urls already have the weights; of the
      folder only tokenizer and `config.json` are read.

  Raises:
    errors.UserError: nothing usable there, or something does not start.
  """
  if served and not cfg.rollout.urls:
    raise errors.UserError("--served: needs the servers' --rollout.urls")
  keep_compilations(cfg.workdir)
  policy = load_policy(cfg, path, with_weights=not served)
  with tempfile.TemporaryDirectory() as scratch, workers.open_workers(
      cfg, policy.tokenizer, policy.config, policy.params, scratch=scratch
  ) as opened:
    if cfg.rollout.urls and not served:
      opened.push(policy.params, policy_version=0)
    yield opened


def scoring_learner(cfg: config.Config, policy: Policy) -> update.Learner:
  """A learner that scores trajectories of a policy and never trains it."""
  return update.Learner(
      policy.config, optax.identity(), _knobs(cfg, policy),
      mesh=sharding.make_mesh(cfg.mesh),
      rows_per_micro_batch=cfg.batch.rows_per_micro_batch)


def _knobs(cfg: config.Config, policy: Policy) -> update.Knobs:
  return update.Knobs(
      loss=cfg.loss, temperature=cfg.rollout.temperature,
      num_ids=policy.tokenizer.vocab_size,
      max_response_tokens=cfg.rollout.max_response_tokens)


def evaluate_folder(
    cfg: config.Config, path: str, *, served: bool = False
) -> dict[str, Any]:
  """Held-out metrics of the policy in a Hugging Face folder.

  Raises:
    errors.UserError: nothing usable there, or no held-out problems.
  """
  prompts = heldout_prompts(cfg)
  if not prompts:
    raise errors.UserError("--eval.num_problems=0: nothing to evaluate")
  with open_sampling(cfg, path, served=served) as opened:
    total = len(prompts) * cfg.eval.num_samples
    with progress.counter(total, "evaluate") as counter:
      evaluation, _ = opened.evaluate(
          prompts, on_done=lambda _: counter.advance())
  return evaluation


def policy_dir(run: str) -> str:
  """Where a finished stage keeps its policy as a Hugging Face folder."""
  return os.path.join(run, "policy")


def _first_policy(cfg: config.Config) -> Policy:
  """The policy that SFT starts from: a folder, or fresh with a tokenizer."""
  if cfg.policy.path:
    return load_policy(cfg, cfg.policy.path)
  tokenizer = vocabulary.build(cfg.policy.vocab_size)
  sizes = {name: getattr(cfg.policy, name) for name in (
      "num_layers", "hidden_size", "intermediate_size", "num_heads",
      "num_kv_heads", "head_dim", "rope_theta", "dtype", "remat")}
  model_config = model.ModelConfig(vocab_size=tokenizer.vocab_size, **sizes)
  return Policy(tokenizer=tokenizer, config=model_config,
                params=model.init(model_config, cfg.seed))


def _open_source(
    flag: str, name: str, split: Literal["train", "heldout"],
    cfg: config.Config, min_level: int, max_level: int,
) -> prompts_lib.Source:
  try:
    return prompts_lib.open_source(
        name, split=split, seed=cfg.seed if split == "train" else 0,
        families=cfg.data.families, min_level=min_level,
        max_level=max_level)
  except ValueError as e:
    raise errors.UserError(f"--{flag}={name}: {e}") from e


def _read(
    checkpoints: checkpoints_lib.Checkpoints, step: int, stage: Stage
) -> tuple[train_state.TrainState, dict[str, Any]]:
  params, optimizer = stage.policy.params, stage.learner.optimizer
  like = jax.eval_shape(
      lambda p: train_state.TrainState(
          step=jax.numpy.int32(0), params=p, opt_state=optimizer.init(p)),
      params)
  return checkpoints.restore(
      step, like, train_state.shardings(params, optimizer, stage.learner.mesh))
