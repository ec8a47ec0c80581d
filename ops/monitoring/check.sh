#!/usr/bin/env bash
# Checks the scrape configuration, the alert rules and their histories with promtool: the installed one, else Debian's,
# unpacked into .cache (no root needed). Metrics on standard input are linted too where `--metrics` is given.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${PROMTOOL_CACHE:-$here/../../.cache/promtool}

fail() {
    echo "promtool: $1" >&2
    exit 1
}

# A box whose package lists are empty gets lists of its own, beside the system's.
private_apt() {
    apt-get -qq -o Dir::State::Lists="$cache/lists" -o Dir::Cache="$cache/apt" -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}

fetch() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null ||
        fail "not installed, and this box has no apt-get to fetch it with; install Prometheus"
    rm -rf "$cache"
    mkdir -p "$cache/lists/partial" "$cache/apt/archives/partial" "$cache/package"
    (
        cd "$cache/package"
        apt-get -qq -o APT::Sandbox::User= download prometheus 2>/dev/null ||
            { private_apt update && private_apt download prometheus; }
    ) || fail "not installed, and the package prometheus could not be fetched"
    dpkg -x "$cache"/package/prometheus_*.deb "$cache/root"
    rm -rf "$cache/package" "$cache/lists" "$cache/apt"
}

if ! tool=$(command -v promtool); then
    tool=$cache/root/usr/bin/promtool
    [ -x "$tool" ] || fetch
fi

"$tool" check config "$here/prometheus.yml"
"$tool" check rules "$here/alerts.yml"
"$tool" test rules "$here/alerts.test.yml"
if [ "${1:-}" = --metrics ]; then
    "$tool" check metrics
fi
