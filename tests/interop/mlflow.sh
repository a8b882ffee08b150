#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the curves that the coordinator sends (logging.mlflow) with a real `mlflow server` and MLflow's own client.
#   tests/interop/mlflow.sh [BIN]
#     BIN   folder of takt, takt-worker and takt-coordinator; default: build/release/bin
#     VENV  (environment) folder of the Python package; default: in the user's cache, outside the repository
# It installs the package there if it is missing, which takes some hundred megabytes. Where that fails, it says so and ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../build/release/bin}
venv=${VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-mlflow}

if ! "$venv/bin/python" -c 'import mlflow' 2>/dev/null; then
  echo "mlflow: installing mlflow in $venv" >&2
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q mlflow; } >&2; then
    echo "mlflow: SKIPPED: the Python package cannot be installed here"
    exit 0
  fi
fi
exec "$venv/bin/python" "$here/real_mlflow.py" "$bin"
