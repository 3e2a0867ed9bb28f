#!/usr/bin/env bash
# Makes sure that there are Chromium, its driver and Prometheus' promtool, for make test-console. Chromium's
# headless shell takes a fifth less of the processors than the whole of it, which does where it cannot be had.
set -euo pipefail
have() {
    local tool
    for tool in "$@"; do command -v "$tool" >/dev/null || return 1; done
}
may_install=false
if [ "$(id -u)" -eq 0 ] && have apt-get; then may_install=true; fi
install() { DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" chromium-driver prometheus; }

if have chromium-headless-shell chromedriver promtool; then exit 0; fi
if $may_install && apt-get update && install chromium-headless-shell; then exit 0; fi
if have chromium chromedriver promtool; then exit 0; fi
if $may_install; then
    install chromium
else
    echo "make test-console needs chromium, chromedriver and promtool; on Debian: chromium chromium-driver prometheus" >&2
    exit 1
fi
