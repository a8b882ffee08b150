#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does the checks of docs/gpu-checks.md that say most, unattended, on one GPU, and writes one report.
#
#   tests/gpu/first-hour.sh [--build DIR] [--report FILE] [--python VENV/bin/python] [--parts 1,2,...]
#
# --build: a build of the release preset that was carried here, with bin/ and lib/takt; without it build/release is built
# first if it lacks takt-bench. --python: one that has PyTorch, for part 6; without it our figures stand alone.
# Every part ends after 10 minutes at the latest, and a part that fails stops no other one. Exit: 0 if every part passed.
set -uo pipefail
cd "$(dirname "$0")/../.."

build=build/release report=first-hour.txt python="" parts=1,2,3,4,5,6
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2 ;;
    --report) report=$2 ;;
    --python) python=$2 ;;
    --parts) parts=$2 ;;
    -h | --help) sed -n '3,11p' "$0"; exit 0 ;;
    *) echo "first-hour.sh: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift 2 || { echo "first-hour.sh: an argument lacks its value (see --help)" >&2; exit 2; }
done
bench=$build/bin/takt-bench
limit=${FIRST_HOUR_LIMIT:-600} # seconds of a part
cuda=${CUDA_HOME:-/usr/local/cuda}
PATH=$cuda/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()

say() { echo "$*" | tee -a "$report"; }

# part NUMBER TITLE FUNCTION: runs the function with the limit, its output in the report.
part() {
  local number=$1 title=$2 body=$3 begin=$SECONDS status
  case ",$parts," in *",$number,"*) ;; *) return ;; esac
  say "" && say "== $number. $title"
  export -f "$body"
  timeout --kill-after=10 "$limit" bash -c "set -uo pipefail; $body" 2>&1 | tee -a "$report"
  status=${PIPESTATUS[0]}
  if [ "$status" -eq 0 ]; then
    say "== $number passed in $((SECONDS - begin)) s"
  else
    [ "$status" -ne 124 ] || say "it did not end within $limit s"
    say "== $number FAILED (exit $status) after $((SECONDS - begin)) s"
    failed+=("$number")
  fi
}

sanitizers() {
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer on PATH or in $cuda/bin"; return 1; }
  local tool model precision bad=0
  for tool in memcheck racecheck initcheck synccheck; do
    for model in tiny tiny-llama; do
      for precision in f32 bf16; do
        echo "-- $tool $model $precision"
        compute-sanitizer --tool "$tool" --error-exitcode 9 "$bench" train --device cuda --model "$model" \
          --precision "$precision" --batch 2 --context 64 --steps 2 >"$work/sanitizer" 2>&1 || bad=1
        grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|========= (Invalid|Error|Uninitialized|Race)|takt-bench:' "$work/sanitizer" | head -20
      done
    done
  done
  return $bad
}

kernels() { "$bench" kernels --device cuda --precision bf16 --batch 64 --context 1024; }

far_products() {
  "$build/tests/gpu_far_product_test" || return 1
  "$bench" kernels --device cuda --precision bf16 --batch 64 --context 1024 --only head
}

attention() {
  local order shape
  for shape in "64 1024" "4 4096"; do
    for order in "" --any-order; do
      set -- $shape
      echo "-- batch $1, context $2, ${order:-deterministic}"
      "$bench" kernels --device cuda --precision bf16 --only attention --batch "$1" --context "$2" $order || return 1
    done
  done
}

# The launches of one step of gpt2-124m beside those that `takt-bench count` expects.
launches() {
  "$bench" count --model gpt2-124m || return 1
  command -v nsys >/dev/null || { echo "no nsys on PATH or in $cuda/bin: launches were not counted"; return 1; }
  nsys profile -t cuda --force-overwrite true -o "$work/step" "$bench" train --device cuda --precision bf16 \
    --model gpt2-124m --batch 64 --microbatch 64 --context 1024 --warmup 2 --steps 1 || return 1
  nsys stats --report cuda_gpu_kern_sum --format csv --force-export true "$work/step.nsys-rep" >"$work/kernels" || return 1
  # Column 3 is the number of instances, and three steps ran.
  awk -F, '$3 ~ /^[0-9]+$/ { n += $3 } END { printf "launches of a step: %.0f, with the tuning of kernels\n", n / 3 }' "$work/kernels"
  head -40 "$work/kernels"
}

speed() {
  local row model batch micro context
  if [ -n "$python" ]; then
    tests/bench/beside_torch.py --takt "$bench" --python "$python"
    return
  fi
  for row in "gpt2-124m 128 64 1024" "gpt2-355m 64 32 1024" "gpt2-774m 64 32 1024" "gpt2-1558m 32 16 1024" \
    "llama-1b 8 4 4096" "llama-8b-slice 4 2 4096"; do
    read -r model batch micro context <<<"$row"
    "$bench" train --device cuda --precision bf16 --model "$model" --batch "$batch" --microbatch "$micro" \
      --context "$context" --warmup 5 --steps 10 || return 1
  done
}

: >"$report"
say "first hour on a GPU, $(date -u +%FT%TZ)"
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1 | head -1)"
say "$(nvcc --version 2>/dev/null | tail -2 | head -1)"
if [ ! -x "$bench" ]; then
  say "building $build"
  cmake --preset release -DTAKT_CUDA=ON >>"$report" 2>&1 && cmake --build "$build" >>"$report" 2>&1 ||
    { say "the build FAILED"; exit 1; }
fi
say "$("$build/bin/takt" version 2>&1 | tr '\n' ' ')"
export bench build work cuda python PATH
part 1 "sanitizers on tiny models" sanitizers
part 2 "kernels at batch 64" kernels
part 3 "a product of 65,536 x 50,304" far_products
part 4 "attention, deterministic and not" attention
part 5 "launches of a step of gpt2-124m" launches
part 6 "speed" speed
say ""
if [ ${#failed[@]} -eq 0 ]; then
  say "every part passed"
else
  say "FAILED: ${failed[*]}"
  exit 1
fi
