#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that building and testing Takt needs, those that are missing and no others.
#   deploy/install-deps.sh [--no-tests] [--example] [--browser] [--prometheus] [--package] [--print]
#     --no-tests  not what only tests and linters need
#     --example   also the King James text of deploy/examples/kjv.yaml
#     --browser   also Chromium, for tests/browser
#     --prometheus  also Prometheus, for tests/dashboards
#     --package   also what deploy/package.sh needs
#     --print     only names what is missing
set -euo pipefail

build=(g++ cmake ninja-build ccache pkg-config protobuf-compiler protobuf-compiler-grpc libgrpc++-dev libprotobuf-dev
  libabsl-dev libspdlog-dev libfmt-dev libdnnl-dev ocl-icd-opencl-dev libgloo-dev prometheus-cpp-dev libsqlite3-dev libcli11-dev
  libyaml-cpp-dev nlohmann-json3-dev libxxhash-dev libisal-dev libssl-dev libsystemd-dev)
# Fuzzing (tests/fuzz/README.md) also needs clang and libclang-rt-14-dev.
# ocl-icd-opencl-dev: the CMake file of libdnnl-dev asks for OpenCL, which the package only recommends.
tests=(libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev clang-format clang-tidy git python3 python3-yaml)
example=(bible-kjv bible-kjv-text)
browser=(chromium)
prometheus=(prometheus)
package=(help2man dpkg-dev file)

wanted=("${build[@]}")
with_tests=true
print_only=false
for argument in "$@"; do
  case "$argument" in
    --no-tests) with_tests=false ;;
    --example) wanted+=("${example[@]}") ;;
    --browser) wanted+=("${browser[@]}") ;;
    --prometheus) wanted+=("${prometheus[@]}") ;;
    --package) wanted+=("${package[@]}") ;;
    --print) print_only=true ;;
    -h | --help) sed -n '3,10p' "$0"; exit 0 ;;
    *) echo "install-deps.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

$with_tests && wanted+=("${tests[@]}")

missing=()
for package in "${wanted[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "install-deps: everything is there"
  exit 0
fi
echo "install-deps: missing ${missing[*]}"
$print_only && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-deps: run as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "install-deps: installed ${#missing[@]} packages"
