#!/usr/bin/env bash
# Makes sure that there are Chromium and its driver, for make test-browser.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends chromium chromium-driver
else
    echo "make test-browser needs Chromium and chromedriver; install them (Debian: chromium chromium-driver)" >&2
    exit 1
fi
