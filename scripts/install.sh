#!/usr/bin/env bash
# Installs into a virtual environment this package alone, or all its extras after it, of which PySpark takes
# longest: install.sh core|packages DIRECTORY
#
# uv installs in half of pip's time, but does not read pip's settings: where those name an index, or uv cannot
# be had or fails, pip installs.
set -euo pipefail

part=$1
python=$2/bin/python
uv=$2/bin/uv
pip=("$python" -m pip --disable-pip-version-check)

# with_uv ARGUMENT…: install by uv; a failure where pip is to do it
with_uv() {
    [ -x "$uv" ] && "$uv" pip install --quiet --python "$python" "$@"
}

case $part in
core)
    if ! "${pip[@]}" config list | grep -qE 'index-url|no-index'; then
        "${pip[@]}" install --quiet uv || true
    fi
    with_uv --editable . || "${pip[@]}" install --quiet --editable .
    ;;
packages)
    with_uv --requirement pyproject.toml --all-extras || "${pip[@]}" install --quiet --editable '.[all,dev]'
    ;;
*)
    echo "usage: install.sh core|packages DIRECTORY" >&2
    exit 2
    ;;
esac
