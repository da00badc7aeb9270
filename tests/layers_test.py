"""Who may import whom: rooms in one direction, JAX only where devices are."""

import pytest

from tests import source_tree

_ROOMS, _HOST_ROOMS = source_tree.ROOMS, source_tree.HOST_ROOMS
_DEVICE_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax"}
_LOSSES, _WEIGHT_SYNC = source_tree.LOSSES, source_tree.WEIGHT_SYNC
_PATHS = source_tree.paths_of(*source_tree.PACKAGES)
_IMPORTS = {module: source_tree.imports_of(path, _PATHS)
            for module, path in _PATHS.items()}


def _reached(module):
  """Everything that comes with a module: what its imports import, and so on.

  Packages come along too: to import a.b.c runs a and a.b.
  """
  reached, pending = set(), [module]
  while pending:
    parts = pending.pop().split(".")
    names = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
    for name in names - reached:
      reached.add(name)
      pending += _IMPORTS.get(name, ())
  return reached - {module}


def _room(module):
  return source_tree.room_of(module, _PATHS)


def _in_rooms(rooms):
  return [module for module in _PATHS if _room(module) in rooms]


def test_this_test_sees_the_rooms():
  for room in _ROOMS:
    assert _in_rooms([room]), room
  assert "jax" in _reached("rstar2_jax.rl_loop")
  assert _room("rstar2_jax.types") == ""


@pytest.mark.parametrize("room", _HOST_ROOMS)
def test_host_rooms_know_nothing_of_devices(room):
  for module in _in_rooms([room]):
    if module != _LOSSES:
      found = {name.partition(".")[0] for name in _reached(module)}
      assert not found & _DEVICE_LIBRARIES, module


@pytest.mark.parametrize("room", [*source_tree.DEVICE_ROOMS, "losses"])
def test_device_rooms_know_nothing_of_host_rooms(room):
  modules = [_LOSSES] if room == "losses" else _in_rooms([room])
  for module in modules:
    if module == _WEIGHT_SYNC:
      continue
    host = {name for name in _reached(module)
            if _room(name) in _HOST_ROOMS} - {_LOSSES, "rstar2_jax.grpo"}
    assert not host, module


@pytest.mark.parametrize("room", _ROOMS)
def test_rooms_import_from_rooms_above_them(room):
  for module in _in_rooms([room]):
    for name in _IMPORTS[module]:
      if not name.startswith("rstar2_jax"):
        continue
      if not _room(name):
        assert name in source_tree.COMMON, f"{module} imports {name}"
      elif not (module == _WEIGHT_SYNC and _room(name) == "engine"):
        assert _ROOMS.index(_room(name)) <= _ROOMS.index(room), (
            f"{module} imports {name}")


def test_no_module_imports_itself_on_a_detour():
  done, path = set(), []

  def visit(module):
    assert module not in path, " -> ".join(
        [*path[path.index(module):], module])
    if module in done:
      return
    path.append(module)
    for name in sorted(_IMPORTS[module] & _PATHS.keys()):
      visit(name)
    done.add(path.pop())

  for module in _PATHS:
    visit(module)


def test_the_sandbox_stands_alone():
  for module in _PATHS:
    if module.startswith("sandbox_runner"):
      found = {name.partition(".")[0] for name in _reached(module)}
      assert not found & (_DEVICE_LIBRARIES | {"rstar2_jax", "experiments"}), (
          module)


def test_the_library_knows_only_the_protocol_of_the_sandbox():
  for module, names in _IMPORTS.items():
    if module.startswith("rstar2_jax"):
      found = {n for n in names if n.startswith("sandbox_runner")}
      assert found <= {"sandbox_runner.protocol"}, module


def test_the_library_knows_nothing_of_experiments_and_tests():
  for module, names in _IMPORTS.items():
    if not module.startswith("experiments"):
      for name in names:
        assert name.partition(".")[0] not in ("experiments", "tests"), module


def test_torch_is_for_tests_only():
  for module in _PATHS:
    assert "torch" not in {n.partition(".")[0] for n in _IMPORTS[module]}, (
        module)
