#!/usr/bin/env bash
# Makes sure that there are Chromium, its driver and Prometheus' promtool, for make test-console.
set -euo pipefail
if command -v chromium >/dev/null && command -v chromedriver >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends chromium chromium-driver prometheus
else
    echo "make test-console needs chromium, chromedriver and promtool; on Debian: chromium chromium-driver prometheus" >&2
    exit 1
fi
