#!/usr/bin/env bash
# Makes sure that Spark finds Java 17 or newer: installs it with the system's package manager when run as root,
# else says in one line what to install. JAVA_HOME, where set, is what Spark starts, so it is what is looked at.
set -euo pipefail

fail() {
    echo "setup: $1" >&2
    exit 1
}

java_command() {
    if [ -n "${JAVA_HOME:-}" ]; then echo "$JAVA_HOME/bin/java"; else echo java; fi
}

# "17.0.15" of the Java found; "8.0" for its old numbering "1.8.0_392"; nothing where there is none.
java_version() {
    { "$(java_command)" -version 2>&1 || true; } | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9.]*\).*/\2/p' | head -n 1
}

# Java 25 before 25.0.3 corrupts data under its default garbage collector.
usable() {
    local version major patch
    version=$(java_version)
    major=${version%%.*}
    [ -n "$major" ] && [ "$major" -ge 17 ] || return 1
    if [ "$major" -eq 25 ]; then
        case "$version" in 25.*.*) patch=${version##*.} ;; *) patch=0 ;; esac
        [ "$patch" -ge 3 ] || return 1
    fi
}

install_first() {
    local manager=("${@:1:2}") package
    shift 2
    for package in "$@"; do
        if "${manager[@]}" -y "$package" >&2; then return 0; fi
    done
    return 1
}

install_java() {
    if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update >&2 || true
        install_first apt-get install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless
    elif command -v dnf >/dev/null; then
        install_first dnf install java-17-openjdk-headless java-21-openjdk-headless
    elif command -v apk >/dev/null; then
        apk add openjdk17-jre-headless >&2 || apk add openjdk21-jre-headless >&2
    else
        return 1
    fi
}

advice() {
    if [ "$(uname -s)" = Darwin ]; then
        echo "run 'brew install openjdk@17' and set JAVA_HOME to \$(brew --prefix openjdk@17)"
    elif command -v apt-get >/dev/null; then
        echo "run 'sudo apt-get install openjdk-17-jre-headless' (or openjdk-21-jre-headless)"
    elif command -v dnf >/dev/null; then
        echo "run 'sudo dnf install java-17-openjdk-headless' (or java-21-openjdk-headless)"
    elif command -v apk >/dev/null; then
        echo "run 'sudo apk add openjdk17-jre-headless'"
    else
        echo "install a Java 17 or 21 runtime and set JAVA_HOME to it"
    fi
}

if usable; then exit 0; fi
version=$(java_version)
if [ -n "${JAVA_HOME:-}" ]; then
    fail "JAVA_HOME=$JAVA_HOME has Java ${version:-(none)}; Spark needs Java 17 or 21: point JAVA_HOME at one, or unset it"
fi
if [ "$(id -u)" -eq 0 ] && [ "$(uname -s)" != Darwin ] && install_java && usable; then exit 0; fi
fail "Spark needs Java 17 or 21${version:+ (found $version)}: $(advice)"
