#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the promise "same loss, bit for bit" from outside. The loss and grad_norm that `takt local run -o json` prints must be equal, digit
# for digit, over all families, pipeline sizes, chunks, partitions, transports and threads; with replicas over partitions and runs; with two
# copies of the weights and with twice as many replicas; and the same in bf16. The steps must name the schedule that ran.
#   tests/integration/bit_equality.sh [BIN_DIR [DEVICE]]     default: build/release/bin auto; DEVICE: cpu or cuda
set -euo pipefail
bin=$(realpath "${1:-$(dirname "$0")/../../build/release/bin}")
device=${2:-auto}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# 40 kB of text that depends on nothing outside.
for ((i = 0; i < 700; ++i)); do printf '%s is %s times seven and %s squared\n' $((i * 7)) "$i" $((i * i)); done >"$dir/text.txt"

precision=f32
job() { # job BATCH PARALLELISM
  cat <<YAML
name: bits
model: {family: gpt2, layers: 8, hidden: 48, heads: 4, context: 32, vocab: 256}
data: {train: {path: text.txt, format: bytes}, shuffle: true}
batch: {global: $1, microbatch: 1}
optimizer:
  adamw: {learning_rate: 3.0e-3, clip_norm: 1.0}
  lr_schedule: {warmup_steps: 2, decay: cosine, decay_steps: 6}
steps: 4
precision: $precision
parallelism: {$2}
seed: 11
YAML
}

# run BATCH PARALLELISM: the loss and grad_norm of each step, as printed.
# PARALLELISM names its schedule, or runs the default one.
run() {
  job "$1" "$2" >"$dir/job.yaml"
  if ! "$bin/takt" local run "$dir/job.yaml" --device "$device" -o json >"$dir/steps" 2>"$dir/talk"; then
    cat "$dir/talk" >&2
    echo "bit_equality: the job with '$2' failed" >&2
    exit 1
  fi
  local schedule
  schedule=$(sed -nE 's/.*schedule: ([^,]+).*/\1/p' <<<"$2")
  # The steps name a file by its full path.
  if [ "$(grep -cE "\"schedule\":\"${schedule/file:/file:.*}" "$dir/steps")" -lt 4 ]; then
    echo "bit_equality: the steps of '$2' do not name its schedule" >&2
    exit 1
  fi
  grep -oE '"(loss|grad_norm)":[^,]*' "$dir/steps"
}

failed=0
compare() { # compare BATCH REFERENCE_PARALLELISM PARALLELISM...
  local batch=$1 expected first=$2
  expected=$(run "$batch" "$first")
  [ "$(grep -c loss <<<"$expected")" -eq 4 ] || { echo "expected 4 steps, got: $expected" >&2; exit 1; }
  echo "reference: $first"
  shift 2
  for parallelism in "$@"; do
    if [ "$(run "$batch" "$parallelism")" == "$expected" ]; then
      echo "equal:     $parallelism"
    else
      echo "DIFFERENT: $parallelism" >&2
      failed=1
    fi
  done
}

# The families that the command line lists, except those with two copies of the weights and those without a flush.
two_copies=(dualpipe chimera)
mapfile -t one_copy < <("$bin/takt" schedule list -o json | grep -oE '"name":"[^"]*"' | cut -d'"' -f4 |
  grep -vxE 'dualpipe|chimera|pipedream.*')
[ "${#one_copy[@]}" -ge 10 ] || { echo "families: ${one_copy[*]}" >&2; exit 1; }

configurations=()
for pipeline in 1 2 3 4; do
  for schedule in naive gpipe 1f1b; do configurations+=("pipeline: $pipeline, schedule: $schedule"); done
  configurations+=("pipeline: $pipeline, schedule: interleaved-1f1b, chunks: 2")
done
for schedule in "${one_copy[@]}"; do
  case $schedule in naive | gpipe | 1f1b | interleaved-1f1b) continue ;; esac
  for pipeline in 2 4; do configurations+=("pipeline: $pipeline, schedule: $schedule"); done
done
golden=$(realpath "$(dirname "$0")/../golden/schedules")
cp "$golden/vhalf/p4_m8_v2.csv" "$dir/vhalf.csv"
cp "$golden/zb2p/p4_m8.csv" "$dir/zb2p.csv"
configurations+=(
  "pipeline: 4, schedule: file:vhalf.csv"
  "pipeline: 4, schedule: file:zb2p.csv"
  "pipeline: 3, schedule: 1f1b, stage_layers: [1, 2, 5]"
  "pipeline: 3, schedule: gpipe, stage_layers: [4, 3, 1]"
  "pipeline: 3, schedule: 1f1b, stage_layers: [0, 8, 0]"
  "pipeline: 2, schedule: interleaved-1f1b, chunks: 2, stage_layers: [1, 3, 2, 2]"
  "pipeline: 2, schedule: interleaved-1f1b, chunks: 4"
  "pipeline: 3, schedule: 1f1b, transport: shm"
  "pipeline: 3, schedule: 1f1b, transport: gloo"
  "pipeline: 4, schedule: interleaved-1f1b, chunks: 2, transport: gloo"
  "pipeline: 1, schedule: 1f1b, threads: 2"
  "pipeline: 2, schedule: 1f1b, threads: 2")
compare 8 "${configurations[0]}, threads: 1" "${configurations[@]}"
for data in 2 3; do
  compare 12 "pipeline: 1, data: $data" "pipeline: 1, data: $data" "pipeline: 2, data: $data, schedule: 1f1b" \
    "pipeline: 2, data: $data, schedule: gpipe, stage_layers: [6, 2]" "pipeline: 2, data: $data, schedule: 1f1b, transport: gloo"
done
configurations=()
for schedule in "${two_copies[@]}"; do
  for pipeline in 2 4; do configurations+=("pipeline: $pipeline, schedule: $schedule"); done
done
compare 8 "pipeline: 1, data: 2" "${configurations[@]}" "pipeline: 4, schedule: dualpipe, transport: gloo"
compare 16 "pipeline: 1, data: 4" "${configurations[@]/%/, data: 2}"

expected_in_f32=$(run 8 "pipeline: 1, schedule: 1f1b")
precision=bf16
if [ "$(run 8 "pipeline: 1, schedule: 1f1b")" == "$expected_in_f32" ]; then
  echo "bit_equality: bf16 gives the bits of f32" >&2
  exit 1
fi
echo "precision: bf16"
compare 8 "pipeline: 1, schedule: naive, threads: 1" "pipeline: 1, schedule: 1f1b, threads: 2" "pipeline: 2, schedule: 1f1b" \
  "pipeline: 3, schedule: 1f1b, stage_layers: [1, 2, 5]" "pipeline: 2, schedule: interleaved-1f1b, chunks: 2, transport: gloo" \
  "pipeline: 2, schedule: zb-h1, threads: 2" "pipeline: 2, schedule: zb-v" "pipeline: 4, schedule: file:zb2p.csv"
compare 8 "pipeline: 1, data: 2" "pipeline: 2, data: 2, schedule: 1f1b" "pipeline: 2, schedule: dualpipe"
exit "$failed"
