#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Deploys the packages on three booted systemd machines and trains on them. n1 runs the coordinator, n2 and n3 run two workers each, and the
# host submits. A job of two stages and two replicas runs undisturbed. Then it runs again while the packages are upgraded under it and one
# worker is drained. It must go on from its checkpoint with the same losses. The script prints each step.
# Run it by hand, as root:  tests/deploy/systemd.sh   (installs debootstrap and systemd-container; the base tree stays in $MACHINES_DIR)
set -euo pipefail
cd "$(dirname "$0")/../.."
export MACHINES_DIR=${MACHINES_DIR:-/srv/takt-machines}  # not under /var/tmp, since the units have a /var/tmp of their own
. tests/deploy/jobs.sh
. tests/deploy/machines.sh
shared=$MACHINES_DIR/shared
debs=$MACHINES_DIR/debs
certs=$MACHINES_DIR/certs
coordinator=10.77.0.1:7070
workers=(2:a 2:b 3:a 3:b)

takt() {
  TAKT_COORDINATOR=$coordinator TAKT_TLS_CERTIFICATE=$certs/${as:-admin}.pem TAKT_TLS_KEY=$certs/${as:-admin}.key \
    TAKT_TLS_AUTHORITY=$certs/ca.pem build/release/bin/takt "$@"
}
# certificate MACHINE NAME: puts the files of a certificate where the daemons of that machine find them.
certificate() {
  local dir
  dir=$(machine_root "$1")/etc/takt/tls
  install -d -m 0755 "$dir"
  install -m 0644 "$certs/ca.pem" "$certs/$2.pem" "$dir"
  install -m 0640 -g "$(machine_run "$1" id -g takt)" "$certs/$2.key" "$dir"
}
tls_settings() { printf 'tls_%s: /etc/takt/tls/%s\n' certificate "$1.pem" key "$1.key" authority ca.pem; }
install_package() { machine_run "$1" sh -c "dpkg -i /srv/debs/$2/$3_*.deb" >/dev/null; }  # MACHINE old|new PACKAGE
finish() {
  local n
  if [ "$1" -ne 0 ]; then
    for n in "${machines_up[@]}"; do machine_run "$n" journalctl -u 'takt-*' --no-pager -n 40 || true; done
  fi
  machines_down
  rm -rf "$shared" "$debs" "$certs"
}
trap 'finish $?' EXIT

say "packages"
command -v debootstrap systemd-nspawn >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap systemd-container >/dev/null
mkdir -p "$shared" "$debs"/{old,new}
deploy/package.sh "$debs/old" >/dev/null
(cd build/release && cpack -D CPACK_PACKAGE_VERSION=99.0.0 -B "$debs/new" >/dev/null)
dependencies=$(for deb in "$debs"/old/*.deb; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | sed 's/(.*//; s/ //g' | grep -v '^takt-' | sort -u)

say "certificates"
rm -rf "$certs"
build/release/bin/takt certs init "$certs" >/dev/null 2>&1
issue() { build/release/bin/takt certs issue "$certs" "$@" >/dev/null 2>&1; }
issue coordinator n1 --host "${coordinator%:*}"
issue admin admin
for worker in "${workers[@]}"; do issue worker "n${worker/:/}"; done

say "machines"
# shellcheck disable=SC2086
machines_base $dependencies
for n in 1 2 3; do
  machine_up "$n" "$shared"
  cp -r "$debs" "$(machine_root "$n")/srv/debs"
done

say "install and configure"
install_package 1 old takt-coordinator
cat >"$(machine_root 1)/etc/takt/coordinator.yaml" <<YAML
state: /var/lib/takt/coordinator
listen: $coordinator
$(tls_settings n1)
metrics_listen: 10.77.0.1:9464
YAML
certificate 1 n1
machine_run 1 systemctl restart takt-coordinator
for n in 2 3; do
  install_package "$n" old takt-worker
  machine_run "$n" systemctl disable --now takt-worker 2>/dev/null
  machine_run "$n" mkdir -p /etc/systemd/system/takt-worker@.service.d
  printf '[Service]\nReadWritePaths=%s\n' "$shared" >"$(machine_root "$n")/etc/systemd/system/takt-worker@.service.d/shared.conf"
  machine_run "$n" chown takt "$shared"
done
for worker in "${workers[@]}"; do
  n=${worker%:*} name=${worker#*:}
  cat >"$(machine_root "$n")/etc/takt/worker-$name.yaml" <<YAML
name: n$n$name
coordinator: $coordinator
$(tls_settings "n$n$name")
health_socket: /run/takt-worker-$name/health.sock
data_root: $shared
checkpoint_root: $shared
data_address: 10.77.0.$n
metrics_listen: "127.0.0.1:0"
threads: 1
YAML
  certificate "$n" "n$n$name"
  machine_run "$n" systemctl daemon-reload
  machine_run "$n" systemctl enable --now "takt-worker@$name" 2>/dev/null
done
takt workers
[ "$(takt workers | grep -c IDLE)" -eq 4 ] || die "not all four workers are attached and idle"
machine_run 2 takt-worker --settings /etc/takt/worker-a.yaml --health=ready
! as=n2a takt jobs 2>/dev/null || die "a worker's certificate lists jobs"

cp deploy/examples/tiny.txt "$shared/tiny.txt"
say "an undisturbed job"
job calm 600 >"$shared/calm.yaml"
takt submit "$shared/calm.yaml" --wait >/dev/null
losses calm 600 >"$shared/calm.losses"

say "the same job, upgraded under way and one worker drained"
job upgraded 600 >"$shared/upgraded.yaml"
takt submit "$shared/upgraded.yaml"
await_step upgraded 30
takt drain n3b
install_package 1 new takt-coordinator
for n in 2 3; do install_package "$n" new takt-worker; done
takt undrain n3b
takt wait upgraded >/dev/null
losses upgraded 600 >"$shared/upgraded.losses"
cmp "$shared/calm.losses" "$shared/upgraded.losses" || die "the upgraded job's losses differ from the undisturbed ones"
takt job upgraded | grep -iE 'halt|paus|queued|drain|leav' || die "the second job was not disturbed at all"
[ "$(machine_run 2 dpkg-query -W -f '${Version}' takt-worker)" = 99.0.0 ] || die "the upgrade did not take place"

say "what the journal has"
machine_run 2 journalctl -u 'takt-worker@a' --no-pager -o cat -n 8

say "done"
