# SPDX-License-Identifier: Apache-2.0
# Boots systemd machines on one host, for tests that source this file. Each machine has a network namespace on a bridge, a cgroup, and an
# overlay of its own over one base tree. The host is 10.77.0.254 on the same bridge. This needs root, systemd-container, debootstrap,
# iproute2 and util-linux.
#
#   machines_base PACKAGE...      make the base tree (once; kept in $MACHINES_DIR/base, about a minute)
#   machine_up N [SHARED]         boot machine N = 1..9 as nN, 10.77.0.N; SHARED: a host directory that it sees under the same path
#   machine_run N COMMAND...      run as root inside; returns its exit status
#   machine_down N                end it at once, as a power cut would, and remove it
#   machines_down                 remove all of them, and the bridge
machines_bridge=takt-br0
machines_up=()
MACHINES_DIR=${MACHINES_DIR:-/srv/takt-machines}

# Installs what boots machines.
machines_tools() {
  if ! command -v debootstrap >/dev/null || ! command -v systemd-nspawn >/dev/null; then
    apt-get install -y -qq --no-install-recommends debootstrap systemd-container >/dev/null
  fi
}

# machines_dependencies FOLDER: the packages that the .deb files there depend on.
machines_dependencies() {
  for deb in "$1"/*.deb; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | sed 's/(.*//; s/ //g' | grep -v '^takt-' | sort -u
}

machine_root() { echo "$MACHINES_DIR/n$1/tree"; }

machines_base() {
  local base=$MACHINES_DIR/base mark
  mark=$base/.complete-$(echo "$*" | md5sum | cut -c1-8)
  [ ! -e "$mark" ] || return 0
  rm -rf "$base"
  mkdir -p "$base"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,iproute2 bookworm "$base" >"$MACHINES_DIR/base.log"
  chroot "$base" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >>"$MACHINES_DIR/base.log" 2>&1
  : >"$base/etc/machine-id"
  rm -f "$base/etc/hostname" "$base"/etc/systemd/system/timers.target.wants/*
  touch "$mark"
}

# The process id of the machine's systemd, which is the child of its nspawn.
machine_leader() { pgrep -P "$(cat "$MACHINES_DIR/n$1/pid")" -x systemd | head -1 | grep .; }

machine_run() {
  local leader
  leader=$(machine_leader "$1") || return 1
  shift
  nsenter -t "$leader" -m -u -i -n -p -C -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"
}

machine_up() {
  local n=$1 shared=${2:-} dir=$MACHINES_DIR/n$1 group bind=() host
  ip link show "$machines_bridge" >/dev/null 2>&1 || {
    ip link add "$machines_bridge" type bridge
    ip addr add 10.77.0.254/24 dev "$machines_bridge"
    ip link set "$machines_bridge" up
  }
  machines_up+=("$n")
  mkdir -p "$dir"/{upper,work,tree}
  ip netns add "takt-n$n"
  ip link add "takt-v$n" type veth peer name eth0 netns "takt-n$n"
  ip link set "takt-v$n" master "$machines_bridge" up
  ip -n "takt-n$n" link set lo up
  ip -n "takt-n$n" addr add "10.77.0.$n/24" dev eth0
  ip -n "takt-n$n" link set eth0 up
  mount -t overlay overlay -o "lowerdir=$MACHINES_DIR/base,upperdir=$dir/upper,workdir=$dir/work" "$dir/tree"
  echo "n$n" >"$dir/tree/etc/hostname"
  { echo "127.0.0.1 localhost"; for host in 1 2 3 4 5 6 7 8 9; do echo "10.77.0.$host n$host"; done; } >"$dir/tree/etc/hosts"
  [ -z "$shared" ] || bind=(--bind="$shared")
  (
    # Without a cgroup of its own a machine would share its units with its neighbour.
    for group in /sys/fs/cgroup/*/; do
      mkdir -p "$group/takt-n$n" 2>/dev/null && echo $BASHPID >"$group/takt-n$n/cgroup.procs" 2>/dev/null || true
    done
    exec setsid systemd-nspawn -q --register=no --keep-unit -M "takt-n$n" -b -D "$dir/tree" --network-namespace-path="/run/netns/takt-n$n" \
      --link-journal=no --resolv-conf=off "${bind[@]}" </dev/null >"$dir/console.log" 2>&1
  ) &
  echo $! >"$dir/pid"
  for _ in $(seq 300); do
    case "$(machine_run "$n" systemctl is-system-running 2>/dev/null)" in running | degraded) return 0 ;; esac
    sleep 0.1
  done
  echo "machine $n does not come up; its console:" >&2
  tail -n 20 "$dir/console.log" >&2
  return 1
}

machine_down() {
  local n=$1 dir=$MACHINES_DIR/n$1 group leader other left=()
  leader=$(machine_leader "$n") && kill -9 "$leader"
  for _ in $(seq 100); do kill -0 "$(cat "$dir/pid")" 2>/dev/null || break; sleep 0.1; done
  umount "$dir/tree" 2>/dev/null
  ip link del "takt-v$n" 2>/dev/null
  ip netns del "takt-n$n" 2>/dev/null
  rm -rf "$dir"
  for group in /sys/fs/cgroup/*/takt-n"$n"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
  done
  for other in "${machines_up[@]}"; do [ "$other" = "$n" ] || left+=("$other"); done
  machines_up=("${left[@]}")
  return 0
}

machines_down() {
  local n
  for n in "${machines_up[@]}"; do machine_down "$n"; done
  machines_up=()
  ip link del "$machines_bridge" 2>/dev/null
  return 0
}
