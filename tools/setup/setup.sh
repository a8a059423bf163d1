#!/usr/bin/env bash
# Sets everything up: system packages, then .venv with all Python packages and the interfaces.
# Run it with `make setup`. Environment: ROS_DISTRO (jazzy or kilted; that of an existing .venv if
# unset), PYTHON, XDG_CACHE_HOME.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# True for an interpreter the ROS wheels exist for: CPython 3.10 to 3.13.
suitable() {
  "$1" -c 'import sys
ok = sys.implementation.name == "cpython" and (3, 10) <= sys.version_info[:2] <= (3, 13)
sys.exit(not ok)' 2>/dev/null
}

# Sets `python` to the interpreter itself: not a link to it in a virtual environment, nor a wrapper.
choose_python() {
  local candidate candidates=(python3 python3.12 python3.11 python3.13 python3.10)
  if [[ -n "${PYTHON:-}" ]]; then
    candidates=("$PYTHON")
  fi
  for candidate in "${candidates[@]}"; do
    if command -v "$candidate" >/dev/null && suitable "$candidate"; then
      python=$("$candidate" -c 'import sys; print(sys._base_executable)')
      return 0
    fi
  done
  return 1
}

# Debian's names of what is missing, one a line.
missing_packages() {
  local version
  command -v g++ >/dev/null || echo build-essential
  command -v make >/dev/null || echo make
  command -v cmake >/dev/null || echo cmake
  if ! choose_python; then
    printf '%s\n' python3 python3-venv python3-dev
    return
  fi
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "python$version-venv"
  "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    echo "python$version-dev"
}

install_packages() {
  local command="apt-get install -y --no-install-recommends $*"
  command -v apt-get >/dev/null ||
    die "missing system packages (Debian's names): $*. Install them, then run this again."
  [[ $(id -u) == 0 ]] || die "missing system packages. Run this, then try again:
  sudo $command"
  echo "[1/6] System packages: installing $* (about a minute)"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive $command -qq >/dev/null
}

if [[ -n "${PYTHON:-}" ]] && ! suitable "$PYTHON"; then
  die "PYTHON=$PYTHON is not CPython 3.10 to 3.13"
fi
mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
  install_packages "${missing[@]}"
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]} == 0)) || die "still missing after the installation: ${missing[*]}"
fi
choose_python || die "no CPython 3.10 to 3.13 found; name one with PYTHON=/path/to/python3"
exec "$python" -m tools.setup
