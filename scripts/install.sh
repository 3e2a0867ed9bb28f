#!/usr/bin/env bash
# Installs this package with all its extras into a virtual environment, compiles the kernels and makes Spark's
# class archive: install.sh DIRECTORY
#
# PySpark takes longest to install, the kernels to compile, and neither needs the other: they are done beside
# each other. uv installs in half of pip's time, but does not read pip's settings: where those name an index,
# or uv cannot be had or fails, pip installs.
set -euo pipefail

python=$1/bin/python
uv=$1/bin/uv
pip=("$python" -m pip --disable-pip-version-check)

# with_uv ARGUMENT…: install by uv; a failure where pip is to do it
with_uv() {
    [ -x "$uv" ] && "$uv" pip install --quiet --python "$python" "$@"
}

if ! "${pip[@]}" config list | grep -qE 'index-url|no-index'; then
    "${pip[@]}" install --quiet uv || true
fi
with_uv --editable . || "${pip[@]}" install --quiet --editable .
"$python" -m siltstone.warmup kernels &
kernels=$!
with_uv --requirement pyproject.toml --all-extras || "${pip[@]}" install --quiet --editable '.[all,dev]'
"$python" -m siltstone.warmup spark
wait "$kernels"
