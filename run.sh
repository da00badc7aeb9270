#!/usr/bin/env bash
# Makes .venv, installs requirements.txt, runs the whole loop at laptop size.
# Arguments are flags of experiments.stage2: ./run.sh --seed=1
set -euo pipefail
caller="$PWD"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=venv.sh
source "$here/venv.sh"
make_venv "$here/.venv" "$here/requirements.txt"
cd "$caller"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
exec "$here/.venv/bin/python" -m experiments.stage2 "$@"
