#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds Takt with the packages of another system, in a chroot, runs its unit tests there and trains a small job. Needs root, debootstrap, a
# mirror, 10 GB of disk and three quarters of an hour on two cores. docs/deploy.md says with which systems it was done.
#   tests/deploy/system.sh [SUITE [MIRROR]]
#     SUITE    default: trixie
#     MIRROR   address of an archive that has SUITE; default: where this machine gets its packages of the section main
# The tree stays in build/systems/SUITE, so that a second run only builds what has changed. Delete it by hand.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=${1:-trixie}
mirror=${2:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' | sed -n 1p)}
tree=$PWD/build/systems/$suite
[ "$(id -u)" -eq 0 ] || { echo "system.sh: run it as root, because it makes a chroot" >&2; exit 2; }
if ! command -v debootstrap >/dev/null || ! command -v rsync >/dev/null; then
  apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap rsync >/dev/null
fi

if [ ! -e "$tree" ]; then
  echo "== $suite from $mirror"
  rm -rf "$tree.partial"
  mkdir -p "$(dirname "$tree")"
  components=main
  case "$mirror" in *ubuntu*) components=main,universe ;; esac
  debootstrap --variant=minbase --components=$components --include=ca-certificates,git,python3,python3-yaml "$suite" "$tree.partial" "$mirror"
  mv "$tree.partial" "$tree"
fi

echo "== sources"
mkdir -p "$tree/takt"
# What was built there before stays, and of the sources what git knows and is there now. What has other bytes is new to the build, whatever
# its date.
git ls-files -z | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done >"$tree/sources"
(cd "$tree/takt" && find . -path ./build -prune -o -type f -printf '%P\0' | { grep -zvxF -f <(tr '\0' '\n' <"$tree/sources") || true; } | xargs -0 -r rm)
rsync --archive --no-times --checksum --from0 --files-from="$tree/sources" ./ "$tree/takt/"
cp /etc/resolv.conf "$tree/etc/resolv.conf"

cat >"$tree/takt/build-here.sh" <<'END'
set -euo pipefail
cd /takt
. /etc/os-release
echo "== packages of $PRETTY_NAME"
deploy/install-deps.sh --no-tests
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  libgtest-dev libgmock-dev libbenchmark-dev librapidcheck-dev iproute2 >/dev/null
echo "== build"
cmake --preset release -DTAKT_CUDA=OFF
cmake --build --preset release --target unit_tests takt takt-coordinator takt-worker -- -k 0
echo "== unit tests"
ctest --preset release -L unit -LE gpu --parallel "$(nproc)"
echo "== train"
build/release/bin/takt local run deploy/examples/tiny.yaml --workers 2
echo "== shown on $PRETTY_NAME"
dpkg-query -W -f='${Package} ${Version}\n' g++ libabsl-dev libprotobuf-dev 'libgrpc++-dev' libdnnl-dev libgloo-dev libcli11-dev libspdlog-dev
END
# The mounts vanish with the namespace, whatever happens.
unshare --mount --fork bash -c '
  set -euo pipefail
  mount --rbind /proc "$1/proc"  # a container may not mount one of its own
  mount --rbind /dev "$1/dev"
  mount -t tmpfs tmpfs "$1/tmp"
  exec chroot "$1" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}" bash /takt/build-here.sh' - "$tree"
