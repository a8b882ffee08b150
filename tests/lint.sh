#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks what a machine can say about the source: formatting, the include rules of docs/architecture.md, sizes, READMEs; and, with
# --tidy, clang-tidy and clang's thread safety over every source of build/release (only those that differ from REV: --tidy --since REV; only
# what ships: --tidy --without-tests).
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
complain() { echo "lint: $*" >&2; failed=1; }

mapfile -t sources < <(git ls-files '*.h' '*.cc' '*.cuh' '*.cu')
clang-format --dry-run -Werror "${sources[@]}" || complain "formatting: clang-format -i the files above"

# Which folder includes which, and what CMake links.
tests/includes.py || complain "includes, or what CMake links (tests/includes.py)"

rule() { # rule WHERE PATTERN WHY
  local hits
  hits=$(git grep -nE "$2" -- $1 || true)
  [ -z "$hits" ] || complain "$3:"$'\n'"$hits"
}
# Test doubles and tests may hold messages of any kind.
tests=':!tests/* :!*_test.cc :!*_testing.h :!*_harness.* :!*/fake_* :!*/testing/*'
rule "*.h *.cc $tests :!cli/* :!common/rpc/* :!coordinator/rpc/* :!coordinator/etcd/* :!worker/rpc/* :!proto/*" '#include [<"]grpcpp/' "grpcpp outside rpc/, coordinator/etcd and cli/"
rule "*.h *.cc $tests :!cli/* :!*/rpc/* :!*/store/* :!coordinator/etcd/* :!*_serde.h :!*_serde.cc :!common/config/* :!coordinator/job/*_checkpoints.cc :!proto/*" '#include [<"]takt/v1/' \
  "generated messages outside rpc/, store/, cli/, common/config and *_serde"
rule "*.h *.cc $tests :!worker/transport/gloo/*" '#include [<"]gloo/' "Gloo outside worker/transport/gloo"
rule "coordinator worker/rpc worker/session common/daemon $tests" \
  '(Await|Wait|Notification)With(Timeout|Deadline)' "a wait on the wall clock (common/base/steady_cond_var.h)"
rule '*.h *.cc :!worker/backend/cuda/* :!worker/transport/nccl/*' '#include [<"](cuda_runtime|cuda_runtime_api|cudnn|cudnn_frontend|cublasLt|nccl)\.h' \
  "CUDA outside worker/backend/cuda and worker/transport/nccl"

for file in $(git ls-files '*.h' '*.cc' '*.cuh' '*.cu' '*.proto' '*.sh' '*.py' '*.cmake' '*CMakeLists.txt'); do
  lines=$(wc -l <"$file")
  [ "$lines" -le 500 ] || complain "$file has $lines lines (at most 500)"
done
for file in "${sources[@]}"; do
  head -1 "$file" | grep -q 'SPDX-License-Identifier' || complain "$file: first line must carry the licence"
done
for folder in $(git ls-files '*.cc' '*.h' '*.cu' | xargs -n1 dirname | sort -u); do
  [ -e "$folder/README.md" ] || complain "$folder has no README.md"
done

# Lines of Markdown. Tables, links and code may be longer.
long=$(git ls-files '*.md' | xargs awk 'FNR == 1 { code = 0 } /^ *```/ { code = !code }
  !code && length > 120 && !/^ *\|/ && !/https?:/ { print FILENAME ":" FNR }')
[ -z "$long" ] || complain "more than 120 columns:"$'\n'"$long"

if [ "${1:-}" = --tidy ]; then
  # A source that the build does not compile (the fuzzers' entry point; the GPU modules' without the toolkit) has no flags to be judged with.
  mapfile -t tidy < <(comm -12 \
    <(case "${2:-}" in
        --since) git diff --name-only --diff-filter=d "$3" -- '*.cc' ;;
        --without-tests) git ls-files '*.cc' ':!tests' ':!*_test.cc' ;;
        *) git ls-files '*.cc' ;;
      esac | sort) \
    <(sed -n "s#^ *\"file\": \"$PWD/\(.*\)\".*#\1#p" build/release/compile_commands.json | sort -u))
  # Only what ships must keep its functions short.
  is_test='^tests/|_(test|testing|benchmark|harness)\.|/(fake_|testing/)'
  check() { xargs -r -P"$(nproc)" -n1 clang-tidy --quiet --extra-arg=-Wthread-safety -p build/release "$@"; }
  { printf '%s\n' "${tidy[@]}" | grep -vE "$is_test" || true; } | check || complain "clang-tidy"
  { printf '%s\n' "${tidy[@]}" | grep -E "$is_test" || true; } | check --checks=-readability-function-size || complain "clang-tidy"
fi
[ "$failed" -eq 0 ] && echo "lint: clean"
exit "$failed"
