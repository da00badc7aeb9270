"""The source tree as tests see it: modules, what they import, their rooms."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("rstar2_jax", "sandbox_runner", "experiments")
# A room imports from itself and from those before it.
ROOMS = ("data", "chat", "rollout", "rewards", "grpo", "policy", "learner",
         "engine", "evaluation", "reports")
HOST_ROOMS = ("data", "chat", "rollout", "rewards", "grpo", "evaluation",
              "reports")
DEVICE_ROOMS = ("policy", "learner")
LOSSES = "rstar2_jax.grpo.losses"
WEIGHT_SYNC = "rstar2_jax.learner.weight_sync"
# Records and configuration: what every room may know.
COMMON = {"rstar2_jax.types", "rstar2_jax.config", "rstar2_jax.config_fields",
          "rstar2_jax.config_learning", "rstar2_jax.errors"}


def module_of(path: pathlib.Path) -> str:
  """The dotted name of a source file; a package's for its __init__.py."""
  parts = path.relative_to(ROOT).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def paths_of(*packages: str) -> dict[str, pathlib.Path]:
  """Source files below top-level folders, by module."""
  return {module_of(path): path for package in packages
          for path in sorted((ROOT / package).rglob("*.py"))}


def imports_of(path: pathlib.Path, known: dict[str, pathlib.Path]) -> set[str]:
  """Modules that a file names in imports, wherever they stand in it.

  Args:
    path: a source file.
    known: our modules: `from a import b` is a.b if that is one, else a.
  """
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: relative import"
      for alias in node.names:
        name = f"{node.module}.{alias.name}"
        found.add(name if name in known else node.module)
  return found


def room_of(module: str, known: dict[str, pathlib.Path]) -> str:
  """The room of a module of the library, "" for what is beside the rooms."""
  if not module.startswith("rstar2_jax."):
    return ""
  parts = module.split(".")
  is_package = module in known and known[module].name == "__init__.py"
  return parts[1] if len(parts) > 2 or is_package else ""
