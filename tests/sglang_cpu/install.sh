#!/usr/bin/env bash
# Installs SGLang 0.5.23 for a machine without GPU into an environment of its
# own (2.2 GB, minutes): its torch is not the learner's.
#
#   tests/sglang_cpu/install.sh FOLDER
#
# A folder that was installed from the same requirements is left as it is.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=../../venv.sh
source "$here/../../venv.sh"
[[ $# == 1 ]] || die "usage: install.sh FOLDER"
venv="$1"
torch="torch==2.13.0"
# Neither's own dependencies: they are CUDA builds.
bare=(sglang==0.5.23 torchvision==0.28.0)
wanted="$( (cat "$here/requirements.txt"; echo "$torch" "${bare[@]}") | cksum)"
stamp="$venv/.sglang-cpu"
[[ "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]] && exit 0
if [[ -e "$venv" && ! -f "$venv/pyvenv.cfg" && -n "$(ls -A "$venv")" ]]; then
  die "$venv is there and is no virtual environment; give another folder"
fi
python="$(find_python)"
echo "installing SGLang for the CPU in $venv (2.2 GB, minutes, once)" >&2
rm -rf "$venv"
"$python" -m venv "$venv" >/dev/null || die "$python -m venv failed; on" \
  "Debian and Ubuntu: apt install python3-venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
# Where pip knows no CPU build, this is the CUDA one: it works and is several
# GB; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids it.
"${pip[@]}" "$torch" || die "pip could not install $torch"
"${pip[@]}" --no-deps "${bare[@]}" || die "pip could not install ${bare[*]}"
"${pip[@]}" -r "$here/requirements.txt" || \
  die "pip could not install $here/requirements.txt"
echo "$wanted" > "$stamp"
