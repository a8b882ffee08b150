#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: run.sh [BIN]
# Checks what we read and write against the Python packages safetensors, transformers and torch.
# BIN: folder of takt, takt-worker and takt-coordinator; default: build/release/bin.
# VENV: where the Python packages are, installed there if they are not; default: outside the
# repository, in the user's cache. Several gigabytes. Where they cannot be had, says so and ends.
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
exec "$venv/bin/python" "$here/interop.py" "$bin"
