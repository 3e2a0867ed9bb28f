#!/usr/bin/env bash
# Creates the virtual environment in the directory given, unless it is there: make-venv.sh DIRECTORY
# The interpreter is $PYTHON (default: python3) and must be Python 3.11 or newer.
set -euo pipefail

directory=$1
python=${PYTHON:-python3}

fail() {
    echo "setup: $1" >&2
    exit 1
}

if [ -x "$directory/bin/python" ] && "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
command -v "$python" >/dev/null || fail "no '$python' here: install Python 3.11 or newer, or run make with PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "Python 3.11 or newer is needed and '$python' is $("$python" -V 2>&1): run make with PYTHON=/path/to/python3.11"

# Debian and Ubuntu keep what a virtual environment needs in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update >&2 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y python3-venv >&2 || true
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "'$python' cannot make virtual environments: run 'sudo apt-get install python3-venv' (or your system's package of it)"
fi
"$python" -m venv "$directory"
