"""ruff and mypy find nothing."""

import subprocess
import sys

import pytest

from tests import source_tree


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("mypy",)],
                         ids=lambda command: command[0])
def test_clean(command):
  done = subprocess.run(
      [sys.executable, "-m", *command], cwd=source_tree.ROOT, text=True,
      capture_output=True, timeout=300, check=False)
  assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_is_over_400_lines():
  """Longer ones have two subjects."""
  paths = source_tree.paths_of(*source_tree.PACKAGES, "tests").values()
  long = {path.relative_to(source_tree.ROOT).as_posix(): lines
          for path in paths
          if (lines := len(path.read_text().splitlines())) > 400}
  assert not long
