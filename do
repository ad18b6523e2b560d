#!/bin/sh
# Set up nox in .venv-nox, and run it: `./do` runs the tests, `./do -s demo` the demo.
# Needs Python >= 3.11 with venv, a C compiler and make; everything else installs itself.
set -eu
cd "$(dirname "$0")"

fail() {
    echo "do: $1" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

if [ ! -x .venv-nox/bin/nox ]; then
    for python in python3 python3.13 python3.12 python3.11 python3.14 python3.15 none; do
        new_enough "$python" && break
    done
    [ "$python" != none ] || fail "no Python >= 3.11 found (on Debian or Ubuntu: apt-get install python3 python3-venv)"
    command -v make >/dev/null || fail "make is missing (on Debian or Ubuntu: apt-get install build-essential)"
    command -v cc >/dev/null || fail "a C compiler is missing (on Debian or Ubuntu: apt-get install build-essential)"
    "$python" -m venv .venv-nox || fail "$python has no venv (on Debian or Ubuntu: apt-get install python3-venv)"
    .venv-nox/bin/python -m pip install --quiet --disable-pip-version-check nox
fi
[ $# -gt 0 ] || exec .venv-nox/bin/python -m tools.all_parts
exec .venv-nox/bin/nox "$@"
