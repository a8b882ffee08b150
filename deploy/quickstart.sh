#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Leads from a fresh clone on Debian 12 to a pipeline of four stages that trains a small GPT on real text. It installs what is
# missing, builds, and trains deploy/examples/kjv.yaml on four worker daemons of this machine. It asks nothing and may be repeated.
#   deploy/quickstart.sh [STATE_DIR]     default: build/quickstart
set -euo pipefail
cd "$(dirname "$0")/.."
state=${1:-$PWD/build/quickstart}
say() { printf '\n== %s\n' "$*"; }

say "packages"
deploy/install-deps.sh --example

say "build (release; 10 to 25 minutes on two cores, by their speed)"
cmake --preset release >/dev/null
cmake --build --preset release --target takt takt-coordinator takt-worker

say "text: the King James Bible, its last twentieth held out"
mkdir -p "$state"
deploy/examples/make-kjv-text.sh "$state"
cp deploy/examples/kjv.yaml "$state/kjv.yaml"
rm -rf "$state/kjv"  # its checkpoints: those of an earlier run would be resumed at their end
rm -f "$state/timeline.html"

say "train: one coordinator, four workers, a 1F1B pipeline of four stages"
build/release/bin/takt local run "$state/kjv.yaml" --workers 4 --state "$state/run" --trace "$state/timeline.html"

cat <<TEXT

The cluster has stopped; its store and logs are in $state/run.
The timeline of its last steps, measured above predicted; open it in a browser: $state/timeline.html
The checkpoint, a Hugging Face folder with the optimizer's state beside it: $(readlink -f "$state/kjv/latest")
Next:
  build/release/bin/takt generate $state/kjv --prompt 'And God said' --tokenizer bytes     lets the model write
  build/release/bin/takt local up --workers 4          keeps a cluster running in the background
  build/release/bin/takt ui                            shows that cluster and its jobs in a browser
  build/release/bin/takt submit JOB.yaml --wait        submits to it (deploy/examples/ has jobs to start from)
  build/release/bin/takt schedule show 1f1b --ranks 4 --microbatches 8 -f grid
TEXT
