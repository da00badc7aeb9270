"""Updates: what must change nothing, and what must change something."""

import jax
import numpy as np
import optax
import pytest

from rstar2_jax import config
from rstar2_jax import types
from rstar2_jax.learner import optimizer as optimizer_lib
from rstar2_jax.learner import train_state
from rstar2_jax.learner import update
from rstar2_jax.policy import model
from rstar2_jax.policy import sharding

CONFIG = model.ModelConfig(
    vocab_size=40, hidden_size=32, intermediate_size=48, num_layers=1,
    num_heads=2, num_kv_heads=1, head_dim=16)
LENGTHS = (9, 5, 12, 3, 7, 12, 8)


def sequences(seed=0):
  """(ids, mask, advantage, rollout logprobs) of some conversations."""
  rng = np.random.default_rng(seed)
  found = []
  for n in LENGTHS:
    mask = rng.random(n) < 0.6
    mask[0], mask[-1] = False, True
    found.append((rng.integers(0, 38, n), mask, rng.normal(),
                  np.where(mask, -rng.random(n), 0)))
  return found


def pack(placement, row_tokens, num_rows=None):
  """PackedBatch from rows that list which sequences they hold."""
  num_rows = num_rows or len(placement)
  fields = {name: np.zeros((num_rows, row_tokens), dtype) for name, dtype in (
      ("tokens", np.int32), ("positions", np.int32),
      ("segment_ids", np.int32), ("loss_mask", bool),
      ("advantages", np.float32), ("rollout_logprobs", np.float32))}
  all_sequences = sequences()
  for row, members in enumerate(placement):
    start = 0
    for segment, i in enumerate(members, 1):
      ids, mask, advantage, rollout = all_sequences[i]
      where = row, slice(start, start + len(ids))
      fields["tokens"][where] = ids
      fields["positions"][where] = np.arange(len(ids))
      fields["segment_ids"][where] = segment
      fields["loss_mask"][where] = mask
      fields["advantages"][where] = mask * advantage
      fields["rollout_logprobs"][where] = rollout
      start += len(ids)
  return types.PackedBatch(**fields)


def learner(rows=2, mesh=None, **loss):
  knobs = update.Knobs(
      loss=config.LossConfig(**loss), temperature=0.7, num_ids=38,
      max_response_tokens=20)
  params = model.init(CONFIG, 0)
  made = update.Learner(
      CONFIG, optax.sgd(1.0), knobs,
      mesh=mesh or sharding.make_mesh(config.MeshConfig()),
      rows_per_micro_batch=rows, reference_params=model.init(CONFIG, 1))
  return made, train_state.create(params, made.optimizer, made.mesh)


def gradient(batch, rows=2, method="update", **loss):
  """The gradient (SGD with rate 1 moves by it) and the metrics."""
  made, state = learner(rows, **loss)
  before = jax.device_get(state.params)
  state, metrics = getattr(made, method)(state, batch)
  moved = jax.tree.map(lambda a, b: a - np.asarray(b), before, state.params)
  return moved, metrics


def assert_same(a, b):
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-4),
      a, b)


ONE_EACH = [[i] for i in range(len(LENGTHS))]
PACKED = [[2, 3], [5], [0, 1], [4, 6]]
LOSSES = [
    {}, {"normalization": "sequence"}, {"normalization": "dr_grpo"},
    {"kl_coef": 0.3, "entropy_coef": 0.1, "importance_cap": 1.5}]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_packing_padding_and_micro_batches_change_nothing(loss):
  reference, metrics = gradient(pack(ONE_EACH, 12), rows=7, **loss)
  assert max(np.abs(x).max() for x in jax.tree.leaves(reference)) > 1e-3
  layouts = [
      (pack(PACKED, 15, num_rows=9), 4), (pack(ONE_EACH, 12), 3)]
  if not loss:  # every shape is compiled anew: more of them for one loss only
    layouts += [(pack(ONE_EACH, 12), 1), (pack(PACKED[::-1], 20), 2)]
  for batch, rows in layouts:
    other, other_metrics = gradient(batch, rows=rows, **loss)
    assert_same(reference, other)
    for name in ("loss", "entropy", "grad_norm", "rollout_gap"):
      assert other_metrics[name] == pytest.approx(
          metrics[name], rel=1e-4, abs=1e-5)


def test_sft_likewise():
  reference, metrics = gradient(pack(ONE_EACH, 12), 7, "sft_update")
  other, other_metrics = gradient(pack(PACKED, 15, 5), 2, "sft_update")
  assert_same(reference, other)
  assert other_metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)


def test_sft_loss_is_the_mean_over_trained_tokens():
  made, state = learner()
  batch = pack(PACKED, 15)
  states = model.hidden(state.params, CONFIG, batch.tokens, batch.positions,
                        batch.segment_ids)
  logits = np.array(model.logits(state.params, CONFIG, states), np.float64)
  logits[..., 38:] = -np.inf
  table = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  chosen = [table[r, t - 1, batch.tokens[r, t]]
            for r, t in zip(*np.nonzero(batch.loss_mask), strict=True)]
  _, metrics = made.sft_update(state, batch)
  assert metrics["loss"] == pytest.approx(-np.mean(chosen), rel=1e-5)


def test_rows_of_padding_alone_are_finite_and_move_nothing():
  moved, metrics = gradient(pack([], 12, num_rows=2))
  assert metrics["loss"] == 0
  jax.tree.map(lambda x: np.testing.assert_array_equal(x, 0), moved)


def test_logprobs_do_not_depend_on_packing():
  made, state = learner(rows=2)
  alone = made.scores(state.params, pack(ONE_EACH, 12)).logprobs
  packed = made.scores(state.params, pack(PACKED, 15)).logprobs
  np.testing.assert_allclose(packed[0, :12], alone[2, :12], atol=1e-5)
  np.testing.assert_allclose(packed[0, 12:15], alone[3, :3], atol=1e-5)
  assert packed.shape == (4, 15)


def test_good_trajectories_become_likelier_and_bad_ones_less_likely():
  made, state = learner()
  batch = pack(ONE_EACH, 12)
  before = made.scores(state.params, batch).logprobs
  state, _ = made.update(state, batch)
  after = made.scores(state.params, batch).logprobs
  change = (after - before) * batch.loss_mask
  signs = np.sign([advantage for _, _, advantage, _ in sequences()])
  assert (np.sign(change.sum(axis=1)) == signs).mean() > 0.8


def test_more_rows_compile_nothing_more():
  made, state = learner(rows=2)
  state, _ = made.update(state, pack(PACKED, 15))
  compiled = made._grpo._cache_size()  # pylint: disable=protected-access
  state, _ = made.update(state, pack(PACKED, 15, num_rows=11))
  assert made._grpo._cache_size() == compiled == 1  # pylint: disable=protected-access


def test_a_batch_that_is_not_finite_ends_the_run_by_name():
  made, state = learner()
  batch = pack(PACKED, 15)
  broken = batch._replace(advantages=batch.advantages * np.nan)
  with pytest.raises(FloatingPointError, match="loss is nan"):
    made.update(state, broken)


def test_rows_that_cannot_be_cut_over_the_mesh_are_refused():
  if jax.device_count() < 2:
    devices = sharding.make_mesh(config.MeshConfig())
    assert devices.size == 1
    pytest.skip("one device: nothing to cut; sharding_test covers four")
  with pytest.raises(ValueError, match="rows_per_micro_batch=3"):
    learner(rows=3)


class TestOptimizer:

  def test_warm_up_moves_from_the_first_update_and_ends_at_the_peak(self):
    schedule = optimizer_lib.constant(1.0, 4)
    assert [float(schedule(i)) for i in (0, 1, 3, 4, 99)] == pytest.approx(
        [0.2, 0.4, 0.8, 1.0, 1.0])

  def test_cosine_ends_at_zero(self):
    schedule = optimizer_lib.cosine(2.0, 0, 10)
    assert [float(schedule(i)) for i in (0, 5, 10)] == pytest.approx(
        [2.0, 1.0, 0.0])

  @pytest.mark.parametrize("name", ["adamw", "muon"])
  def test_decay_spares_norms(self, name):
    made = optimizer_lib.chain(
        name, lambda _: 0.1, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.5,
        max_grad_norm=1.0)
    params = model.init(CONFIG, 0)
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = made.update(zeros, made.init(params), params)
    assert np.abs(updates["norm"]["scale"]).max() == 0
    decay = updates["layers"]["mlp"]["up_proj"]["kernel"]
    np.testing.assert_allclose(
        decay, -0.05 * params["layers"]["mlp"]["up_proj"]["kernel"], rtol=1e-4)

  def test_muon_moves_layer_matrices_by_near_orthogonal_steps(self):
    made = optimizer_lib.chain(
        "muon", lambda _: 1.0, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.0,
        max_grad_norm=1e9)
    params = model.init(CONFIG, 0)
    gradients = model.init(CONFIG, 3)
    updates, _ = made.update(gradients, made.init(params), params)
    for matrix in updates["layers"]["self_attn"]["q_proj"]["kernel"]:
      singular = np.linalg.svd(matrix, compute_uv=False)
      # Five Newton-Schulz steps bring them near one value, not all to 1.
      assert singular.max() / singular.min() < 5
