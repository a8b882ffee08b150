#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages that are needed to build and test Takt. It installs only those that are missing.
#   deploy/install-deps.sh [--no-tests] [--example] [--browser] [--prometheus] [--package] [--cuda] [--print]
#     --no-tests  leaves out what only tests and linters need
#     --example   also installs the King James text of deploy/examples/kjv.yaml
#     --browser   also installs Chromium, for tests/browser
#     --prometheus  also installs Prometheus, for tests/dashboards
#     --package   also installs what deploy/package.sh needs
#     --cuda      also says which parts of CUDA are there, and fails without the toolkit. Debian has no packages of it; NVIDIA has.
#                 The toolkit is CUDA 12 or newer (13.0 is tested) with nvcc on PATH or in /usr/local/cuda/bin, cudart and
#                 cuBLASLt. cuDNN 9 with the headers of nvidia-cudnn-frontend (docs/deploy.md) and NCCL 2.28 are optional.
#     --print     only prints what is missing
set -euo pipefail

build=(g++ cmake ninja-build ccache pkg-config protobuf-compiler protobuf-compiler-grpc libgrpc++-dev libprotobuf-dev
  libabsl-dev libspdlog-dev libfmt-dev libdnnl-dev ocl-icd-opencl-dev libgloo-dev prometheus-cpp-dev libsqlite3-dev libcli11-dev
  libyaml-cpp-dev nlohmann-json3-dev libxxhash-dev libisal-dev libssl-dev libcurl4-openssl-dev libsystemd-dev
  libpcre2-dev libutf8proc-dev libcpp-httplib-dev)
# Fuzzing (tests/fuzz/README.md) also needs clang and libclang-rt-14-dev.
# ocl-icd-opencl-dev: the CMake file of libdnnl-dev asks for OpenCL, which the package only recommends.
tests=(libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev clang-format clang-tidy git python3 python3-yaml
  python3-kubernetes iproute2 etcd-server sentencepiece rsync zsh fish)
# A kubectl of another origin is as good, and Debian's would conflict with it.
command -v kubectl >/dev/null || tests+=(kubernetes-client)
example=(bible-kjv bible-kjv-text)
browser=(chromium)
prometheus=(prometheus)
package=(help2man dpkg-dev file)

wanted=("${build[@]}")
with_tests=true
with_cuda=false
print_only=false
for argument in "$@"; do
  case "$argument" in
    --no-tests) with_tests=false ;;
    --example) wanted+=("${example[@]}") ;;
    --browser) wanted+=("${browser[@]}") ;;
    --prometheus) wanted+=("${prometheus[@]}") ;;
    --package) wanted+=("${package[@]}") ;;
    --cuda) with_cuda=true ;;
    --print) print_only=true ;;
    -h | --help) sed -n '3,13p' "$0"; exit 0 ;;
    *) echo "install-deps.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done

# Prints a line for each part; fails without the toolkit.
check_cuda() {
  local nvcc prefix
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
  [ -n "$nvcc" ] || { echo "install-deps: CUDA: no nvcc on PATH or in /usr/local/cuda/bin: install NVIDIA's CUDA toolkit" >&2; return 1; }
  prefix=$(dirname "$(dirname "$(realpath "$nvcc")")")
  echo "install-deps: CUDA: $nvcc $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
  part() { # NAME WITHOUT FILE...
    local name=$1 without=$2 file folder
    shift 2
    for file in "$@"; do
      for folder in "$prefix"/{include,lib64,lib,targets/*/lib,targets/*/include} /usr/{include,lib/*,local/include,local/lib}; do
        [ ! -e "$folder/$file" ] || continue 2
      done
      echo "install-deps: CUDA: no $name ($file): $without"
      return
    done
    echo "install-deps: CUDA: $name"
  }
  part cuBLASLt "no GPU modules" cublasLt.h libcublasLt.so
  part cuDNN "attention takes 2 to 4 times as long, and TAKT_CUDA=ON is refused" cudnn.h libcudnn.so
  part "cudnn_frontend" "the same, unless -DTAKT_CUDNN_FRONTEND=DIR names its headers (docs/deploy.md)" cudnn_frontend.h
  part NCCL "GPUs exchange through the host" nccl.h libnccl.so
  if [ -e /proc/driver/nvidia/version ]; then
    echo "install-deps: CUDA: $(head -1 /proc/driver/nvidia/version)"
  else
    echo "install-deps: CUDA: no driver here: the modules build, and workers compute on cores"
  fi
}

if $with_cuda; then check_cuda; fi
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
