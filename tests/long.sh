#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the checks that do not fit into the hour of .ci/run. Each section runs even if one before it failed.
#   tests/long.sh [SECTION...] [OTHER_BUILD]
#     SECTION      default: all; those that compare two builds only if OTHER_BUILD is given
#     OTHER_BUILD  a build directory of the version before, for bits, upgrade and speed; ours is build/release. Without it, upgrade builds
#                  the last commit of the protocol version before ours
#   tests/long.sh threads
#   tests/long.sh bits upgrade ../before/build/release
#
# Section   Minutes on two cores (?: not timed yet), and what it proves
# threads   25   no data race in the unit tests of what has threads: engine, transport, session, coordinator, rpc
# tsan      40   no data race in any unit test
# checks    45   the unit tests pass with the checks of null, vptr and alignment, too, which the asan preset leaves out
# clang     60   clang compiles everything without a warning, thread-safety annotations included; all tests pass
# tidy      30   clang-tidy has no complaint, about tests neither
# repeat    40   the tests with real daemons pass five times in a row
# mesh       5   golden models have the same bits with every shard, schedule and recompute on 12 meshes; 64 workers train on the axes data,
#                pipeline and tensor, 4 ranks each, as 4 workers do, to the bit
# matrix    12   each fault at each phase of a job leaves its losses as they are (tests/fault)
# groups     5   each rank dies in each collective of tensor, context, shard and expert groups, and its job keeps its losses
# soak      20   2,000 killed workers leave memory, descriptors and threads as they were
# power      4   the power fails 100 times while jobs save, and they go on from complete checkpoints; wants root
# failpoints 20  a debug build ends at each change that must last, and loses nothing that was acknowledged
# flips      2   every flipped bit in 4 KiB of used pages of the coordinator's state is named or changes nothing
# failover   4   50 coordinators that lead are killed; a job trains on, and nothing acknowledged is lost (tests/fault)
# fuzz      30   one minute of fuzzing finds nothing, for each parser of untrusted text
# experts  180   a mixture of experts on 4 million tokens uses them evenly and beats the dense model, with three seeds
# checkpoint 15  a checkpoint of the size of Llama 70B is planned, saved in sparse files and verified in 1 GiB of memory
# page       4   axe-core finds nothing on the page of takt ui; it keeps its limits of time and cost; 1,000 slow readers change nothing
#                (tests/ui/figures.py)
# simulation 40  no invariant of tests/simulation breaks in 100,000 simulated clusters with random faults
# bits      10   two builds compute the same bits: losses, norms, checkpoints of all jobs of tests/bits, and simulated times
# upgrade   35   a cluster of OTHER_BUILD is upgraded to ours in place, worker by worker, while it trains
# slurm      3   deploy/slurm trains, requeues itself and fails as it must under a real Slurm, and its how-to is done; needs root
# machines   2   the how-to of several machines is done on four booted systemd machines (tests/deploy/howto_machines.sh); needs root
# systems   45   Debian 13 builds Takt, its unit tests pass there and a job trains (tests/deploy/system.sh); needs root
# speed     60   no figure of takt-bench is more than 3 % worse than in OTHER_BUILD; needs an idle machine
set -euo pipefail

alone=(threads tsan checks clang tidy repeat mesh matrix groups soak power failpoints flips failover fuzz experts checkpoint page simulation slurm machines systems upgrade)
between=(bits speed)
sections=()
other=
for argument in "$@"; do
  case " ${alone[*]} ${between[*]} " in
    *" $argument "*) sections+=("$argument") ;;
    *)
      if [ "$argument" = -h ] || [ "$argument" = --help ]; then
        sed -n '3,38p' "$0" | sed 's/^# \?//'
        exit 0
      elif [ -x "$argument/bin/takt" ] && [ -z "$other" ]; then
        other=$(realpath "$argument")
      else
        echo "long.sh: '$argument' is neither a section nor a build with bin/takt (see --help)" >&2
        exit 2
      fi
      ;;
  esac
done
if [ ${#sections[@]} -eq 0 ]; then
  sections=("${alone[@]}")
  [ -z "$other" ] || sections+=("${between[@]}")
fi
for section in "${sections[@]}"; do
  if [ -z "$other" ] && [[ " ${between[*]} " == *" $section "* ]]; then
    echo "long.sh: '$section' needs OTHER_BUILD (see --help)" >&2
    exit 2
  fi
done

cd "$(dirname "$0")/.."

release() { # release TARGET...
  cmake --preset release >/dev/null
  cmake --build --preset release --target "$@"
}

threads() {
  local tests=(engine_test transport_test session_test job_test membership_test coordinator_rpc_test worker_rpc_test rpc_test
    discrete_test planner_test control_test)
  cmake --preset tsan >/dev/null
  cmake --build --preset tsan --target "${tests[@]}"
  ctest --preset tsan --parallel 2 --no-tests=error -R "^($(IFS='|' && echo "${tests[*]}"))$"
}

tsan() { tests/run.sh --preset tsan --label unit; }

checks() {
  cmake --preset asan -B build/checks -DTAKT_SANITIZE=address,undefined,null,vptr,alignment >/dev/null
  cmake --build build/checks --target unit_tests
  ctest --test-dir build/checks -L unit -LE gpu --parallel 2 --no-tests=error --output-on-failure
}

clang() { tests/run.sh --preset clang; }

tidy() {
  release all
  tests/lint.sh --tidy
}

repeat() {
  release all
  ctest --preset release -L slow --repeat until-fail:5
}

mesh() {
  release takt-coordinator takt-worker integration_test numerics_test
  build/release/tests/numerics_test --gtest_also_run_disabled_tests --gtest_filter='*EveryShardScheduleAndRecompute*'
  build/release/tests/integration_test --gtest_also_run_disabled_tests --gtest_filter='*SixtyFourRanks*'
}

matrix() {
  release takt-coordinator takt-worker matrix_fault_test
  build/release/tests/matrix_fault_test --gtest_also_run_disabled_tests --gtest_filter='*Whole*'
}

groups() {
  release takt-coordinator takt-worker group_fault_test
  build/release/tests/group_fault_test --gtest_also_run_disabled_tests --gtest_filter='*Whole*'
}

soak() {
  release takt-coordinator takt-worker matrix_fault_test
  build/release/tests/matrix_fault_test --gtest_also_run_disabled_tests --gtest_filter='Soak*'
}

power() {
  release takt-coordinator takt-worker matrix_fault_test
  build/release/tests/matrix_fault_test --gtest_also_run_disabled_tests --gtest_filter='PowerCut.*AHundredTimes'
}

failpoints() {
  cmake --preset dev >/dev/null
  cmake --build --preset dev --target takt-coordinator takt-worker failpoint_fault_test
  build/dev/tests/failpoint_fault_test
}

flips() {
  release store_test
  build/release/tests/store_test --gtest_also_run_disabled_tests --gtest_filter='FlippedBitTest.*Each*'
}

failover() {
  release takt takt-coordinator takt-worker failover_fault_test
  build/release/tests/failover_fault_test --gtest_also_run_disabled_tests --gtest_filter='*FiftyTimes'
}

fuzz() {
  cmake -G Ninja -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DTAKT_FUZZ=ON >/dev/null
  ninja -C build/fuzz fuzzers
  mkdir -p build/fuzz/found
  local fuzzer
  for fuzzer in build/fuzz/bin/fuzz_*; do
    "$fuzzer" -max_total_time=60 -timeout=10 -rss_limit_mb=1024 build/fuzz/found "tests/fuzz/corpus/${fuzzer##*/fuzz_}"
  done
}

experts() {
  release takt-bench
  deploy/examples/make-kjv-text.sh build/experts
  build/release/bin/takt-bench experts --data build/experts --batch 8 --steps 4000
}

checkpoint() {
  release takt-bench
  build/release/bin/takt-bench large-checkpoint
}

page() {
  release takt takt-coordinator takt-worker ui_stage cli_ui_test
  local venv=build/venv-axe
  compgen -G "$venv/lib/python3*/site-packages/axe_playwright_python/axe.min.js" >/dev/null ||
    { python3 -m venv $venv && $venv/bin/pip install -q --no-deps axe-playwright-python; }
  tests/ui/page_test.py build/release --axe $venv/lib/python3*/site-packages/axe_playwright_python/axe.min.js Page.test_axe_finds_nothing_serious
  build/release/tests/cli_ui_test --gtest_also_run_disabled_tests --gtest_filter='*AThousandSlowReaders*'
  tests/ui/figures.py build/release
}

simulation() {
  release takt-simulate
  local first status=0
  build/release/bin/takt-simulate --seeds 50000 & # each half has a core
  first=$!
  build/release/bin/takt-simulate --from 50001 --seeds 50000 || status=1
  wait "$first" || status=1
  return $status
}

slurm() {
  release takt takt-coordinator takt-worker
  tests/deploy/slurm.sh
}

machines() {
  tests/deploy/howto_machines.sh
}

systems() { tests/deploy/system.sh trixie; }

bits() {
  release takt takt-coordinator takt-worker
  local what records
  records=$(mktemp -d)
  for what in record simulate; do
    tests/bits/bits.py "$what" "$other" "$records/before.json"
    tests/bits/bits.py "$what" build/release "$records/after.json"
    tests/bits/bits.py compare "$records/before.json" "$records/after.json"
  done
  rm -r "$records"
}

# Builds the last commit of the protocol version before ours in build/before.
build_before() {
  local raised
  raised=$(git log -1 --format=%H -G'kProtocolVersion = ' -- common/base/version.h)
  git rev-parse --quiet --verify "${raised:-none}^" >/dev/null ||
    { echo "upgrade: the history does not reach back to the protocol version before: git fetch --unshallow, or name OTHER_BUILD" >&2; return 1; }
  rm -rf build/before/source
  mkdir -p build/before/source
  git archive "$raised^" | tar -x -C build/before/source
  cmake -S build/before/source -B build/before -G Ninja -DCMAKE_BUILD_TYPE=Release -DTAKT_UNITY=ON -DTAKT_CUDA=OFF >/dev/null
  ninja -C build/before takt takt-coordinator takt-worker
}

upgrade() {
  release takt takt-coordinator takt-worker
  [ -n "$other" ] || build_before
  tests/upgrade.py "${other:-build/before}" build/release
}

speed() {
  release takt-bench
  tests/bench/two_builds.py "$other" build/release
}

passed=()
failed=()
for section in "${sections[@]}"; do
  echo "== $section"
  began=$SECONDS
  # Not in an `if`, where bash would go on after a command that fails.
  set +e
  (set -e && "$section")
  status=$?
  set -e
  if [ "$status" -eq 0 ]; then passed+=("$section"); else failed+=("$section"); fi
  echo "== $section: $(((SECONDS - began) / 60)) min"
done
echo "long: passed: ${passed[*]:-none}; failed: ${failed[*]:-none}"
[ ${#failed[@]} -eq 0 ]
