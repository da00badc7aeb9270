# Sourced by run.sh and test.sh: a virtual environment with what a
# requirements file names, made once and again when the file has changed.

die() {
  echo "error: $*" >&2
  exit 2
}

find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c \
        'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "no Python >= 3.11 found; install one (for example: apt install python3)"
}

# make_venv FOLDER REQUIREMENTS
make_venv() {
  local folder="$1" requirements="$2" python stamp wanted
  stamp="$folder/.requirements-$(basename "$requirements")"
  wanted="$(cat "$(dirname "$requirements")"/requirements*.txt | cksum)"
  if [[ ! -x "$folder/bin/python" ]] || \
      ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    python="$(find_python)"
    if [[ -e "$folder" && ! -f "$folder/pyvenv.cfg" && \
          -n "$(ls -A "$folder")" ]]; then
      die "$folder is there and is no virtual environment; give another folder"
    fi
    echo "making a virtual environment in $folder" >&2
    rm -rf "$folder"
    "$python" -m venv "$folder" >/dev/null || \
      die "$python -m venv failed; on Debian and Ubuntu:" \
        "apt install python3-venv"
  fi
  if [[ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]]; then
    echo "installing $(basename "$requirements") (minutes, once)" >&2
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
      -r "$requirements" || die "pip could not install $requirements"
    echo "$wanted" > "$stamp"
  fi
}
