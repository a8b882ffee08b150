#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and runs every test that needs no accelerator. It asks nothing and may be repeated.
#   tests/run.sh [--gpu] [--preset release|dev|clang|asan|tsan] [--label unit|slow]
#     --gpu      also runs the tests labelled gpu
#     --preset   default: release
#     --label    default: all
set -euo pipefail
cd "$(dirname "$0")/.."

preset=release
target=all
selection=(-LE gpu)
label=()
while [ $# -gt 0 ]; do
  case "$1" in
    --gpu) selection=() ;;
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --label)
      label=(-L "${2:?--label needs a name}")
      if [ "$2" = unit ]; then target=unit_tests; fi
      shift
      ;;
    -h | --help) sed -n '3,7p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

deploy/install-deps.sh --browser --prometheus
echo "== configure and build ($preset)"
cmake --preset "$preset" >/dev/null
cmake --build --preset "$preset" --target "$target"
echo "== test ($preset)"
# Two tests run at a time. Tests with real daemons start a cluster of their own each, which keeps a core busy: at most one of them runs at a time
# (RESOURCE_LOCK daemons), and those that look at rates and limits run alone (RUN_SERIAL).
ctest --preset "$preset" "${selection[@]}" "${label[@]}" --parallel 2
