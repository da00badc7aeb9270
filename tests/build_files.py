"""Writes the BUILD files from the source tree: `python -m tests.build_files`.

One target for each module, with the modules that it imports as `deps` and
those that it starts as processes as `data`. Visibility states the layers: a
room is seen by the rooms after it, the sandbox by nobody but through its
protocol and as a process. `tests/build_files_test.py` compares the files with
the tree in every run.
"""

import ast
from collections.abc import Iterable, Sequence
import pathlib
import re
import sys
from typing import Any

from tests import source_tree

_PATHS = source_tree.paths_of(*source_tree.PACKAGES, "tests")
_RULES = "@rules_python//python:defs.bzl"
_EVERYWHERE = ("//experiments:__subpackages__", "//tests:__subpackages__")
# weight_sync, the one device module that knows a server.
_ALSO_SEEN_BY = {"engine": ("learner",), "grpo": ("policy", "learner")}
# An import in a program that is given to Python as text.
_IMPORT = re.compile(r"\bfrom (\w[\w.]*) import (\w+)")
# Folders whose tests start processes for minutes.
_LONG = ("engine", "experiments", "sandbox_runner")
_EXPERIMENTS = "//experiments:commands"


def build_files() -> dict[pathlib.Path, str]:
  """What every BUILD file below the packages has to say, by path."""
  folders: dict[pathlib.Path, list[str]] = {}
  for module, path in _PATHS.items():
    folders.setdefault(path.parent, []).append(module)
  return {folder / "BUILD": _build_file(folder, modules)
          for folder, modules in folders.items()}


def main() -> None:
  """Writes the files that are wrong, and says which."""
  for path, text in build_files().items():
    if not path.exists() or path.read_text() != text:
      path.write_text(text)
      print(f"wrote {path.relative_to(source_tree.ROOT)}")


def _build_file(folder: pathlib.Path, modules: Sequence[str]) -> str:
  is_test = folder.relative_to(source_tree.ROOT).parts[0] == "tests"
  targets = [text for module in modules if (text := _target(module))]
  if folder.name == "experiments" and not is_test:
    targets.append(_rule("py_library", name="commands", deps=[
        f":{_name(m)}" for m in modules if _is_program(_PATHS[m])]))
  if is_test:
    tests = [m for m in modules if m.endswith("_test")]
    below = sorted(p.name for p in folder.iterdir() if p.is_dir()
                   and any(p.glob("*_test.py")))
    targets.append(_rule("test_suite", name="all_tests", tests=[
        *(f":{_name(m)}" for m in tests),
        *(f"//tests/{name}:all_tests" for name in below)]))
    if folder.name == "tests":
      targets.insert(0, 'exports_files(["run_pytest.py"])\n')
  body = "\n".join(targets)
  rules = [r for r in ("py_binary", "py_library") if f"{r}(" in body]
  loads = []
  if "pytest_test(" in body:
    loads.append('load("//tests:pytest_test.bzl", "pytest_test")\n')
  if rules:
    names = ", ".join(f'"{r}"' for r in rules)
    loads.insert(0, f'load("{_RULES}", {names})\n')
  visible = ("//tests:__subpackages__",) if is_test else _visibility(folder)
  return "".join([
      "# Written by `python -m tests.build_files`.\n\n", *loads, "\n",
      _call("package", default_visibility=list(visible)), "\n", body])


def _target(module: str) -> str:
  """The target of a module; nothing for an __init__.py without imports."""
  path = _PATHS[module]
  imports = source_tree.imports_of(path, _PATHS)
  if path.name == "__init__.py" and not imports:
    return ""
  is_test = module.startswith("tests.")
  deps = {_label(m, module) for m in imports & _PATHS.keys()
          if _has_target(m) and m != module}
  values: dict[str, Any] = {"name": _name(module), "srcs": [path.name]}
  foreign = sorted({m.partition(".")[0] for m in imports - _PATHS.keys()}
                   - set(sys.stdlib_module_names) - {"tests"})
  started = {_EXPERIMENTS if m == "experiments" else _label(m, module)
             for m in _started(path) | _imports_in_text(path) - imports}
  if path.name == "trajectory_viewer.py":
    started |= {f"{path.stem}.{end}" for end in ("css", "html", "js")}
  if module in source_tree.COMMON or module == "sandbox_runner.__main__":
    values["visibility"] = ["//visibility:public"]
  if module == "sandbox_runner.protocol":
    values["visibility"] = _sorted(
        [*_EVERYWHERE, "//rstar2_jax:__subpackages__"])
  if is_test:
    deps |= {_label(m, module) for m in _conftests(path) if m != module}
  if started:
    values["data"] = _sorted(started)
  if deps:
    values["deps"] = _sorted(deps)
  if is_test and module.endswith("_test"):
    del values["srcs"]
    if path.parent.name in _LONG:
      values["size"] = "large"
    return _rule("pytest_test", foreign, **values)
  if _is_program(path):
    if path.name == "__main__.py":
      values["main"] = path.name
    return _rule("py_binary", foreign, **values)
  if is_test:
    values["testonly"] = True
  return _rule("py_library", foreign, **values)


def _visibility(folder: pathlib.Path) -> Iterable[str]:
  """Who sees the modules of a folder."""
  parts = folder.relative_to(source_tree.ROOT).parts
  if parts[0] != "rstar2_jax" or len(parts) == 1:
    return _EVERYWHERE
  room = parts[1]
  later = source_tree.ROOMS[source_tree.ROOMS.index(room) + 1:]
  if room in source_tree.HOST_ROOMS:
    later = tuple(r for r in later if r not in source_tree.DEVICE_ROOMS)
  seen_by = {*later, *_ALSO_SEEN_BY.get(room, ())}
  if len(parts) > 2:
    seen_by.add(room)
  return _sorted([*_EVERYWHERE, "//rstar2_jax:__pkg__",
                  *(f"//rstar2_jax/{r}:__subpackages__" for r in seen_by)])


def _started(path: pathlib.Path) -> set[str]:
  """Modules that a file starts by `-m NAME`; "experiments" for any of them."""
  found = set()
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if not isinstance(node, ast.List):
      continue
    for flag, name in zip(node.elts, node.elts[1:], strict=False):
      if not isinstance(flag, ast.Constant) or flag.value != "-m":
        continue
      if isinstance(name, ast.JoinedStr):
        found.add("experiments")
      elif isinstance(name, ast.Constant) and isinstance(name.value, str):
        found |= {m for m in (name.value, f"{name.value}.__main__")
                  if m in _PATHS and _has_target(m)}
  # An experiment that queues others does not hold them.
  if path.is_relative_to(source_tree.ROOT / "experiments"):
    found.discard("experiments")
  return found


def _imports_in_text(path: pathlib.Path) -> set[str]:
  """Modules that programs import which stand in a file as strings."""
  texts = [node.value for node in ast.walk(ast.parse(path.read_text()))
           if isinstance(node, ast.Constant) and isinstance(node.value, str)]
  found = {".".join(names) for text in texts for names in _IMPORT.findall(text)}
  return {m for m in found & _PATHS.keys() if _has_target(m)}


def _conftests(path: pathlib.Path) -> set[str]:
  """Fixtures that pytest gives a file."""
  above = (source_tree.module_of(folder / "conftest.py")
           for folder in path.parents if source_tree.ROOT in folder.parents)
  return {module for module in above if module in _PATHS}


def _has_target(module: str) -> bool:
  path = _PATHS[module]
  return path.name != "__init__.py" or bool(
      source_tree.imports_of(path, _PATHS))


def _is_program(path: pathlib.Path) -> bool:
  return (path.name == "__main__.py" or path.parts[-2] in (
      "experiments", "benchmarks")) and "__main__" in (
          path.read_text() + path.name) and "tests" not in path.parts


def _name(module: str) -> str:
  return module.rpartition(".")[2].replace("__main__", "main")


def _label(module: str, seen_from: str) -> str:
  """The label of a module, short within its own folder."""
  def folder(name):
    return _PATHS[name].parent.relative_to(source_tree.ROOT).as_posix()
  if folder(module) == folder(seen_from):
    return f":{_name(module)}"
  where, name = folder(module), _name(module)
  return f"//{where}" if where.endswith(f"/{name}") else f"//{where}:{name}"


def _sorted(labels: Iterable[str]) -> list[str]:
  """As buildifier wants them: files, own targets, then others."""
  def key(label):
    phase = 2 if label.startswith("//") else 1 if label.startswith(":") else 0
    return phase, label.replace(":", "!")
  return sorted(labels, key=key)


def _rule(rule: str, foreign: Sequence[str] = (), **values) -> str:
  comment = f"# Third party: {', '.join(foreign)}.\n" if foreign else ""
  return comment + _call(rule, **values)


_ORDER = ("name", "size", "testonly", "srcs", "main", "data", "tests",
          "visibility", "deps")


def _call(rule: str, **values) -> str:
  if len(values) == 1 and rule == "package":
    ((name, value),) = values.items()
    return f"{rule}({name} = {_value(value, 0)})\n"
  lines = [f"    {name} = {_value(values[name], 4)},\n"
           for name in sorted(values, key=_ORDER.index)]
  return f"{rule}(\n{''.join(lines)})\n"


def _value(value: str | bool | list[str], indent: int) -> str:
  if isinstance(value, bool):
    return str(value)
  if isinstance(value, str):
    return f'"{value}"'
  if len(value) == 1:
    return f'["{value[0]}"]'
  pad = " " * indent
  items = "".join(f'{pad}    "{item}",\n' for item in value)
  return f"[\n{items}{pad}]"


if __name__ == "__main__":
  main()
