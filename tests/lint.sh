#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a machine can say about the source: formatting, the include rules of docs/architecture.md, sizes, READMEs; and, with
# --tidy, clang-tidy and clang's thread safety over every source of build/release (only those that differ from REV: --tidy --since REV; only
# what ships: --tidy --without-tests).
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
complain() { echo "lint: $*" >&2; failed=1; }

mapfile -t sources < <(git ls-files '*.h' '*.cc' '*.cuh' '*.cu')
clang-format --dry-run -Werror "${sources[@]}" || complain "formatting: clang-format -i the files above"

# Rooms: common includes no other room; coordinator, worker and cli never include one another; gRPC stays in rpc/ and cli/.
rule() { # rule WHERE PATTERN WHY
  local hits
  hits=$(git grep -nE "$2" -- $1 || true)
  [ -z "$hits" ] || complain "$3:"$'\n'"$hits"
}
rule 'common/*' '#include "(coordinator|worker|cli|tests)/' "common includes another room"
rule 'coordinator/*' '#include "(worker|cli)/' "coordinator includes another program"
rule 'worker/*' '#include "(coordinator|cli)/' "worker includes another program"
rule 'cli/*' '#include "(coordinator|worker)/' "cli includes another program"
rule 'common/* :!common/rpc/* coordinator/membership/* coordinator/job/* coordinator/store/* worker/engine/* worker/transport/* worker/train/* worker/backend/* worker/data/* worker/checkpoint/*' \
  '#include [<"]grpcpp/' "grpcpp outside rpc/ and cli/"
rule 'common/* coordinator/* worker/engine/* worker/train/* worker/backend/* worker/data/* worker/checkpoint/* cli/*' '#include [<"]gloo/' "Gloo outside worker/transport/gloo"
rule '*.h *.cc :!worker/backend/cuda/* :!worker/transport/nccl/*' '#include [<"](cuda_runtime|cuda_runtime_api|cudnn|cudnn_frontend|cublasLt|nccl)\.h' \
  "CUDA outside worker/backend/cuda and worker/transport/nccl"

for file in $(git ls-files '*.h' '*.cc' '*.cuh' '*.cu' '*.proto' '*.sh' '*.py' '*.cmake' '*CMakeLists.txt'); do
  lines=$(wc -l <"$file")
  [ "$lines" -le 600 ] || complain "$file has $lines lines (at most 600)"
done
for file in "${sources[@]}"; do
  head -1 "$file" | grep -q 'SPDX-License-Identifier' || complain "$file: first line must carry the licence"
done
for folder in $(git ls-files '*.cc' '*.h' '*.cu' | xargs -n1 dirname | sort -u); do
  [ -e "$folder/README.md" ] || complain "$folder has no README.md"
done

if [ "${1:-}" = --tidy ]; then
  # A source that the build does not compile (the fuzzers' entry point; the GPU modules' without the toolkit) has no flags to be judged with.
  mapfile -t tidy < <(comm -12 \
    <(case "${2:-}" in
        --since) git diff --name-only --diff-filter=d "$3" -- '*.cc' ;;
        --without-tests) git ls-files '*.cc' ':!tests' ':!*_test.cc' ;;
        *) git ls-files '*.cc' ;;
      esac | sort) \
    <(sed -n "s#^ *\"file\": \"$PWD/\(.*\)\".*#\1#p" build/release/compile_commands.json | sort -u))
  [ ${#tidy[@]} -eq 0 ] || printf '%s\0' "${tidy[@]}" | xargs -0 -P"$(nproc)" -n1 clang-tidy --quiet --extra-arg=-Wthread-safety -p build/release || complain "clang-tidy"
fi
[ "$failed" -eq 0 ] && echo "lint: clean"
exit "$failed"
