#!/usr/bin/env bash
# Makes .venv with the test requirements and runs the test suite.
#
#   ./test.sh               all tests but the slow ones
#   ./test.sh --slow        all tests
#   ./test.sh tests/grpo    arguments go to pytest
#
# RSTAR2_VENV=FOLDER uses another folder than .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./venv.sh
venv="${RSTAR2_VENV:-$PWD/.venv}"
make_venv "$venv" "$PWD/requirements-dev.txt"
marks=(-m "not slow")
args=()
for arg in "$@"; do
  if [[ "$arg" == --slow ]]; then marks=(); else args+=("$arg"); fi
done
exec "$venv/bin/python" -m pytest "${marks[@]}" "${args[@]}"
