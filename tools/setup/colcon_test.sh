#!/usr/bin/env bash
# colcon test of this package as `make setup` has built it. Needs tools/setup/env.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=.venv/colcon
colcon --log-base "$work/log" test --paths . --build-base "$work/build" --install-base .venv \
  --merge-install --event-handlers console_direct+ --return-code-on-test-failure
colcon --log-base "$work/log" test-result --test-result-base "$work/build" --all
