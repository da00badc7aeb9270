"""Who may import whom: rooms in one direction, JAX only where devices are."""

import ast
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ("rstar2_jax", "sandbox_runner", "experiments")
# A room imports from itself and from those before it.
_ROOMS = ("data", "chat", "rollout", "rewards", "grpo", "policy", "learner",
          "engine", "evaluation", "reports")
_HOST_ROOMS = ("data", "chat", "rollout", "rewards", "grpo", "evaluation",
               "reports")
_DEVICE_ROOMS = ("policy", "learner")
_DEVICE_LIBRARIES = {"jax", "jaxlib", "flax", "optax", "orbax"}
_LOSSES = "rstar2_jax.grpo.losses"
_WEIGHT_SYNC = "rstar2_jax.learner.weight_sync"
# Records and configuration: what every room may know.
_COMMON = {"rstar2_jax.types", "rstar2_jax.config", "rstar2_jax.config_fields",
           "rstar2_jax.config_learning", "rstar2_jax.errors"}


def _module(path):
  parts = path.relative_to(_ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


_PATHS = {_module(path): path for package in _PACKAGES
          for path in sorted((_ROOT / package).rglob("*.py"))}


def _imports(path):
  """Modules that a file names in imports, wherever they stand in it."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        found.add(name if name in _PATHS else node.module)
  return found


_IMPORTS = {module: _imports(path) for module, path in _PATHS.items()}


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
  """The room of a module of the library, "" for what is beside the rooms."""
  if not module.startswith("rstar2_jax."):
    return ""
  parts = module.split(".")
  is_package = module in _PATHS and _PATHS[module].name == "__init__.py"
  return parts[1] if len(parts) > 2 or is_package else ""


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


@pytest.mark.parametrize("room", [*_DEVICE_ROOMS, "losses"])
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
        assert name in _COMMON, f"{module} imports {name}"
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
