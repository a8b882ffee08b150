#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs first-hour.sh with programs that only print, so that the script is tested without a GPU: the report has every part,
# a part that fails or hangs stops no other one, and the exit says so.
set -euo pipefail
script=$(cd "$(dirname "$0")" && pwd)/first-hour.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/build/bin" "$work/build/tests" "$work/cuda/bin"

fake() { # PATH BODY
  printf '#!/bin/sh\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
fake "$work/build/bin/takt" 'echo "takt 1.0 built in: cuda 13.0"'
fake "$work/build/bin/takt-bench" 'echo "bench $*"'
fake "$work/build/tests/gpu_far_product_test" 'echo "[  PASSED  ] 1 test."'
fake "$work/cuda/bin/compute-sanitizer" 'echo "========= ERROR SUMMARY: 0 errors"'
fake "$work/cuda/bin/nvidia-smi" 'echo "NVIDIA H200, 580.1, 143771 MiB"'
fake "$work/cuda/bin/nvcc" 'printf "a\nrelease 13.0\nb\n"'
fake "$work/cuda/bin/nsys" 'case "$1" in stats) printf "Time,Total,Instances,Name\n50,9,300,a\n50,9,600,b\n" ;; esac'

run() { CUDA_HOME=$work/cuda "$script" --build "$work/build" --report "$work/report" "$@" >"$work/out" 2>&1; }
expect() { grep -q -- "$1" "$work/report" || { echo "the report lacks '$1':"; cat "$work/report"; exit 1; }; }

run || { cat "$work/out"; exit 1; }
for number in 1 2 3 4 5 6; do expect "== $number passed"; done
for text in "NVIDIA H200" "release 13.0" "built in: cuda" "racecheck tiny-llama bf16" "--batch 64" "--only head" \
  "--any-order" "launches of a step: 300" "llama-8b-slice" "every part passed"; do
  expect "$text"
done

fake "$work/cuda/bin/compute-sanitizer" 'echo "========= ERROR SUMMARY: 3 errors"; exit 9'
fake "$work/build/tests/gpu_far_product_test" 'sleep 60'
if FIRST_HOUR_LIMIT=1 run; then echo "two parts failed and it says 0"; exit 1; fi
expect "ERROR SUMMARY: 3 errors"
expect "== 1 FAILED (exit 1)"
expect "== 3 FAILED (exit 124)"
expect "== 6 passed"
expect "FAILED: 1 3"

run --parts 2
expect "== 2 passed"
if grep -q "== 1" "$work/report"; then echo "--parts is ignored"; exit 1; fi
echo "first-hour.sh passed"
