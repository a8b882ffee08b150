# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Deployment tests train a job undisturbed, then the same job disturbed, and compare every loss. This file is for scripts that source it
# and have a function `takt`, which is the command line with its certificates. It needs jq.
say() { printf '== %s (%s s)\n' "$*" "$SECONDS"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# job NAME STEPS: the file of a job of two stages, two replicas and a checkpoint every 20 steps.
job() {
  cat <<YAML
name: $1
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, context: 64, vocab: 256}
data: {train: {path: tiny.txt, format: bytes}, shuffle: true}
batch: {global: 16, microbatch: 2}
optimizer: {adamw: {learning_rate: 1.0e-3}}
steps: $2
parallelism: {pipeline: 2, data: 2, schedule: 1f1b}
checkpoint: {directory: checkpoints-$1, every_steps: 20}
seed: 7
YAML
}

# await_step NAME STEP
await_step() { until [ "$(takt -o json job "$1" | jq -r '.last_step.step // 0')" -ge "$2" ]; do sleep 0.2; done; }

# losses NAME STEPS: "STEP LOSS" of each of its steps, which must be so many.
losses() {
  local all
  all=$(takt -o json watch "$1" --after-step 0 | jq -r 'select(.step) | "\(.step) \(.loss)"' | sort -n -u)
  [ "$(wc -l <<<"$all")" -eq "$2" ] || die "the step log of $1 does not have $2 steps"
  printf '%s\n' "$all"
}
