#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what we read, write and generate against the Python packages safetensors, transformers and torch.
#   tests/interop/run.sh [BIN]
#     BIN   folder of takt, takt-worker and takt-coordinator; default: build/release/bin
#     VENV  (environment) folder of the Python packages; default: in the user's cache, outside the repository
# It installs the packages there if they are missing, which takes several gigabytes. Where that fails, it says so and ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../build/release/bin}
venv=${VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-interop}

if ! "$venv/bin/python" -c 'import safetensors, torch, transformers' 2>/dev/null; then
  echo "interop: installing safetensors, torch and transformers in $venv" >&2
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q numpy safetensors torch transformers; } >&2; then
    echo "interop: SKIPPED: the Python packages cannot be installed here"
    exit 0
  fi
fi
"$venv/bin/python" "$here/interop.py" "$bin"
exec "$venv/bin/python" "$here/generate.py" "$bin"
