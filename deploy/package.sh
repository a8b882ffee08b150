#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages takt-coordinator, takt-worker and takt-cli, and takt-worker-cuda where the CUDA toolkit is.
#   deploy/package.sh [--no-tests] [--cuda AUTO|ON|OFF] [OUT]     default OUT: build/release/packages
#     --no-tests  does not install what only the tests need
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/release/packages
dependencies=(--package)
options=(-DTAKT_PACKAGES=ON)
while [ $# -gt 0 ]; do
  case "$1" in
    --no-tests) dependencies+=(--no-tests); options+=(-DBUILD_TESTING=OFF) ;;
    --cuda) options+=("-DTAKT_CUDA=$2"); shift ;;
    -h | --help) sed -n '3,5p' "$0"; exit 0 ;;
    -*) echo "package.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
    *) out=$1 ;;
  esac
  shift
done
out=$(realpath -m "$out")

deploy/install-deps.sh "${dependencies[@]}"
cmake --preset release "${options[@]}" >/dev/null
cmake --build --preset release --target takt-coordinator-man takt-worker-man takt-relay-man takt-man takt-completions takt-schema takt-modules
(cd build/release && cpack -B "$out" >/dev/null)
rm -rf "$out/_CPack_Packages"
ls -l "$out"/*.deb
