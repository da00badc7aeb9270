"""Runs pytest on the files named in the arguments; Bazel's entry to tests."""

import sys

import pytest

if __name__ == "__main__":
  sys.exit(pytest.main(["-m", "not slow and not sglang", *sys.argv[1:]]))
