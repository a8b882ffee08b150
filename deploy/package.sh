#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages takt-coordinator, takt-worker and takt-cli.
#   deploy/package.sh [OUT]     default OUT: build/release/packages
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in
  -h | --help) sed -n '3,4p' "$0"; exit 0 ;;
esac
out=$(realpath -m "${1:-build/release/packages}")

deploy/install-deps.sh --package
cmake --preset release -DTAKT_PACKAGES=ON >/dev/null
cmake --build --preset release --target takt-coordinator-man takt-worker-man takt-man takt-completions
(cd build/release && cpack -B "$out" >/dev/null)
rm -rf "$out/_CPack_Packages"
ls -l "$out"/*.deb
