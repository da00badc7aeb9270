"""BUILD files say what the source tree is; and what they forbid is forbidden.

The first test compares text. The others read the files as Bazel would, since
BUILD syntax is a part of Python, and know nothing of how they were written.
"""

import collections
import pathlib

from tests import build_files
from tests import source_tree

_FOLDERS = sorted(
    path.parent for package in (*source_tree.PACKAGES, "tests")
    for path in (source_tree.ROOT / package).rglob("BUILD"))


def test_build_files_are_those_of_the_tree():
  wrong = [str(path.relative_to(source_tree.ROOT))
           for path, text in build_files.build_files().items()
           if not path.exists() or path.read_text() != text]
  assert not wrong, "run: python -m tests.build_files"


def _package(folder):
  return "//" + folder.relative_to(source_tree.ROOT).as_posix()


def _read(folder):
  """Targets of a BUILD file by label, and who sees them by default."""
  targets, default = {}, []
  def add(name, **values):
    targets[f"{_package(folder)}:{name}"] = values
  names = dict.fromkeys(
      ("py_library", "py_binary", "pytest_test", "test_suite"), add)
  names["package"] = lambda default_visibility: default.extend(
      default_visibility)
  names["load"] = names["exports_files"] = lambda *_: None
  exec((folder / "BUILD").read_text(), names)
  return {label: {"visibility": default, **values}
          for label, values in targets.items()}


_TARGETS = {label: values for folder in _FOLDERS
            for label, values in _read(folder).items()}


def _absolute(label, package):
  """//a/b:c of :c within //a/b, and of //a/b/c."""
  if label.startswith(":"):
    return package + label
  return label if ":" in label else f"{label}:{label.rpartition('/')[2]}"


def _edges():
  for user, values in _TARGETS.items():
    package = user.partition(":")[0]
    for label in [*values.get("deps", ()), *values.get("data", ())]:
      if label.startswith(("//", ":")):
        yield user, _absolute(label, package)


def _is_visible(label, user):
  package = user.partition(":")[0]
  if package == label.partition(":")[0]:
    return True
  for pattern in _TARGETS[label]["visibility"]:
    where, _, kind = pattern.partition(":")
    if pattern == "//visibility:public" or package == where or (
        kind == "__subpackages__" and package.startswith(f"{where}/")):
      return True
  return False


def test_every_label_exists_and_is_visible():
  edges = list(_edges())
  assert len(edges) > 300
  for user, label in edges:
    assert label in _TARGETS, f"{user} needs {label}"
    assert _is_visible(label, user), f"{user} does not see {label}"


def test_every_source_with_code_is_in_one_target():
  sources = collections.Counter(
      folder / name for folder in _FOLDERS for name in _sources(folder))
  assert set(sources.values()) == {1}
  files = {path for package in (*source_tree.PACKAGES, "tests")
           for path in (source_tree.ROOT / package).rglob("*.py")}
  missing = files - sources.keys()
  assert all(path.name == "__init__.py" and "import" not in path.read_text()
             for path in missing), missing


def _sources(folder: pathlib.Path):
  for label, values in _read(folder).items():
    name = label.rpartition(":")[2]
    if "tests" not in values:  # a suite has no sources
      yield from values.get("srcs", [f"{name}.py"])


def test_the_layers_are_enforced():
  """What tests/layers_test.py forbids, Bazel refuses, too."""
  for label, user in (
      ("//sandbox_runner:slot", "//rstar2_jax/rollout:tool_client"),
      ("//rstar2_jax/reports:page", "//rstar2_jax/data:prompts"),
      ("//rstar2_jax/rollout:episode", "//rstar2_jax/policy:model"),
      ("//rstar2_jax/chat:template", "//rstar2_jax/learner:update"),
      ("//rstar2_jax:rl_loop", "//rstar2_jax/engine:engine"),
      ("//experiments:stage2", "//rstar2_jax:assembly")):
    assert label in _TARGETS and user in _TARGETS
    assert not _is_visible(label, user), f"{user} sees {label}"
