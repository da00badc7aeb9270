#!/usr/bin/env bash
# Makes .venv with the test requirements and runs the test suite.
#
#   ./test.sh               all tests but the slow ones
#   ./test.sh --slow        these, too
#   ./test.sh --sglang      also those that talk to a real SGLang, on the CPU;
#                           it is installed in .venv-sglang (2.2 GB)
#   ./test.sh tests/grpo    arguments go to pytest
#
# RSTAR2_VENV=FOLDER uses another folder than .venv, RSTAR2_SGLANG=FOLDER
# another than .venv-sglang.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ./venv.sh
venv="${RSTAR2_VENV:-$PWD/.venv}"
make_venv "$venv" "$PWD/requirements-dev.txt"
left_out=(slow sglang)
args=()
for arg in "$@"; do
  case "$arg" in
    --slow | --sglang) left_out=("${left_out[@]/${arg#--}/}") ;;
    *) args+=("$arg") ;;
  esac
done
marks=""
for mark in ${left_out[@]}; do marks+="${marks:+ and }not $mark"; done
if [[ "$marks" == *sglang* ]]; then
  echo "left out: tests against a real SGLang (2.2 GB; ./test.sh --sglang)" >&2
else
  export RSTAR2_SGLANG="${RSTAR2_SGLANG:-$PWD/.venv-sglang}"
  tests/sglang_cpu/install.sh "$RSTAR2_SGLANG"
fi
exec "$venv/bin/python" -m pytest ${marks:+-m "$marks"} "${args[@]}"
