"""Seeds follow identities."""

from rstar2_jax.rollout import seeds


def test_same_parts_same_seed_in_range():
  seed = seeds.derive(0, "train", 3, "p1", 5, 0)
  assert seed == seeds.derive(0, "train", 3, "p1", 5, 0)
  assert 0 <= seed < 2**31


def test_each_part_order_and_type_matter():
  variants = [(1, 2, 3), (1, 2, 4), (2, 1, 3), (1, 23), (12, 3), ("1", 2, 3)]
  assert len({seeds.derive(*v) for v in variants}) == len(variants)


def test_samples_of_a_group_differ():
  """P24: no two trajectories of a group share a seed."""
  drawn = {seeds.derive(0, "train", 0, "p", sample, turn)
           for sample in range(64) for turn in range(8)}
  assert len(drawn) == 64 * 8


def test_value_is_stable_across_processes_and_versions():
  # Taken once; a change would silently change every recorded run.
  assert seeds.derive(0, "train", 1) == 490895548
