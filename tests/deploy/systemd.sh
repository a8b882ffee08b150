#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Deploys the packages on booted systemd machines and trains on them. n1 runs the coordinator, n2 and n3 run two workers each, and the host
# submits. A job of two stages and two replicas runs undisturbed. Then it runs again while the packages are upgraded under it and one worker
# is drained. It must go on from its checkpoint with the same losses. In the end n1 to n3 get an etcd, and n1 and n4 a coordinator each, as
# docs/two-coordinators.md has it. The process of the one that leads is killed, and then the machine of the one that leads. A job trains on
# in the same generation, also with the same losses, and nothing acknowledged is lost. The script prints each step.
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
etcd_certs=$MACHINES_DIR/etcd-certs
members=(1 2 3)  # of etcd
coordinators=(1 4)  # in the end
failover_seconds=15  # at most

takt() {
  TAKT_COORDINATOR=$coordinator TAKT_TLS_CERTIFICATE=$certs/${as:-admin}.pem TAKT_TLS_KEY=$certs/${as:-admin}.key \
    TAKT_TLS_AUTHORITY=$certs/ca.pem build/release/bin/takt "$@"
}
# certificate MACHINE NAME [DIRECTORY GROUP FROM]: puts the files of a certificate where the daemons of that machine find them.
certificate() {
  local dir from=${5:-$certs}
  dir=$(machine_root "$1")${3:-/etc/takt/tls}
  install -d -m 0755 "$dir"
  install -m 0644 "$from/ca.pem" "$from/$2.pem" "$dir"
  install -m 0640 -g "$(machine_run "$1" id -g "${4:-takt}")" "$from/$2.key" "$dir"
}
tls_settings() { printf 'tls_%s: /etc/takt/tls/%s\n' certificate "$1.pem" key "$1.key" authority ca.pem; }
install_package() { machine_run "$1" sh -c "dpkg -i /srv/debs/$2/$3_*.deb" >/dev/null; }  # MACHINE old|new PACKAGE
# leader: the machine of the coordinator that leads.
leader() {
  local n
  for _ in $(seq 300); do
    for n in "${coordinators[@]}"; do
      machine_run "$n" systemctl is-active -q takt-coordinator || continue
      case "$(machine_run "$n" systemctl show -p StatusText --value takt-coordinator)" in serves*) echo "$n"; return 0 ;; esac
    done
    sleep 0.1
  done
  return 1
}
# takes_over NAME: submits a job of that name, which only a leader acknowledges.
takes_over() {
  local since=$SECONDS
  job "$1" 20 >"$shared/$1.yaml"
  takt --timeout 60 submit "$shared/$1.yaml" >/dev/null
  [ $((SECONDS - since)) -le "$failover_seconds" ] || die "nobody led for $((SECONDS - since)) s"
  echo "another one leads after $((SECONDS - since)) s"
}
finish() {
  local n
  if [ "$1" -ne 0 ]; then
    for n in "${machines_up[@]}"; do machine_run "$n" journalctl -u 'takt-*' --no-pager -n 40 || true; done
  fi
  machines_down
  rm -rf "$shared" "$debs" "$certs" "$etcd_certs"
}
trap 'finish $?' EXIT

say "packages"
machines_tools
mkdir -p "$shared" "$debs"/{old,new}
deploy/package.sh "$debs/old" >/dev/null
(cd build/release && cpack -D CPACK_PACKAGE_VERSION=99.0.0 -B "$debs/new" >/dev/null)
dependencies=$(machines_dependencies "$debs/old")

say "certificates"
rm -rf "$certs" "$etcd_certs"
for authority in "$certs" "$etcd_certs"; do build/release/bin/takt certs init "$authority" >/dev/null 2>&1; done
issue() { build/release/bin/takt certs issue "$@" >/dev/null 2>&1; }
for n in "${coordinators[@]}"; do issue "$certs" coordinator "n$n" --host "10.77.0.$n"; done
for n in "${members[@]}" 4; do issue "$etcd_certs" coordinator "n$n" --host "10.77.0.$n"; done
issue "$certs" admin admin
for worker in "${workers[@]}"; do issue "$certs" worker "n${worker/:/}"; done

say "machines"
# shellcheck disable=SC2086
machines_base $dependencies etcd-server
for n in 1 2 3 4; do
  machine_up "$n" "$shared"
  # The package has started it as a cluster of its own.
  machine_run "$n" systemctl disable --now etcd 2>/dev/null
  machine_run "$n" rm -rf /var/lib/etcd/default
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

say "two coordinators with their state in etcd"
cluster=$(printf ',n%s=https://10.77.0.%s:2380' 1 1 2 2 3 3)
endpoints=$(printf ',10.77.0.%s:2379' "${members[@]}")
for n in "${members[@]}"; do
  certificate "$n" "n$n" /etc/etcd etcd "$etcd_certs"
  cat >"$(machine_root "$n")/etc/default/etcd" <<SETTINGS
ETCD_NAME=n$n
ETCD_LISTEN_CLIENT_URLS=https://10.77.0.$n:2379
ETCD_ADVERTISE_CLIENT_URLS=https://10.77.0.$n:2379
ETCD_LISTEN_PEER_URLS=https://10.77.0.$n:2380
ETCD_INITIAL_ADVERTISE_PEER_URLS=https://10.77.0.$n:2380
ETCD_INITIAL_CLUSTER=${cluster:1}
ETCD_CERT_FILE=/etc/etcd/n$n.pem
ETCD_KEY_FILE=/etc/etcd/n$n.key
ETCD_TRUSTED_CA_FILE=/etc/etcd/ca.pem
ETCD_CLIENT_CERT_AUTH=true
ETCD_PEER_CERT_FILE=/etc/etcd/n$n.pem
ETCD_PEER_KEY_FILE=/etc/etcd/n$n.key
ETCD_PEER_TRUSTED_CA_FILE=/etc/etcd/ca.pem
ETCD_PEER_CLIENT_CERT_AUTH=true
ETCD_AUTO_COMPACTION_MODE=periodic
ETCD_AUTO_COMPACTION_RETENTION=1h
SETTINGS
  machine_run "$n" systemctl start --no-block etcd  # it waits for the others
done
install_package 4 new takt-coordinator
takt admin backup "$shared/state.sqlite" >/dev/null
machine_run 1 chown takt "$shared/state.sqlite"
machine_run 1 systemctl stop takt-coordinator
for n in "${coordinators[@]}"; do
  cat >"$(machine_root "$n")/etc/takt/coordinator.yaml" <<YAML
state: /var/lib/takt/coordinator
store: etcd
etcd_endpoints: ${endpoints:1}
etcd_certificate: /etc/takt/etcd/n$n.pem
etcd_key: /etc/takt/etcd/n$n.key
etcd_authority: /etc/takt/etcd/ca.pem
listen: 10.77.0.$n:7070
$(tls_settings "n$n")
metrics_listen: 10.77.0.$n:9464
YAML
  certificate "$n" "n$n"
  certificate "$n" "n$n" /etc/takt/etcd takt "$etcd_certs"
done
machine_run 4 systemctl stop takt-coordinator
machine_run 1 runuser -u takt -- takt-coordinator --import-state "$shared/state.sqlite"
for n in "${coordinators[@]}"; do machine_run "$n" systemctl start takt-coordinator; done
leader >/dev/null || die "no coordinator leads"
coordinator=10.77.0.1:7070,10.77.0.4:7070
takt job calm >/dev/null || die "the state in the file did not come into etcd"
for worker in "${workers[@]}"; do
  n=${worker%:*} name=${worker#*:}
  sed -i "s/^coordinator: .*/coordinator: $coordinator/" "$(machine_root "$n")/etc/takt/worker-$name.yaml"
  machine_run "$n" systemctl restart "takt-worker@$name"
done
[ "$(takt workers | grep -c IDLE)" -eq 4 ] || die "not all four workers are attached and idle"
job failover 6000 >"$shared/failover.yaml"
takt submit "$shared/failover.yaml" >/dev/null
await_step failover 100
generation=$(takt -o json job failover | jq .generation)
job before 20 >"$shared/before.yaml"
takt submit "$shared/before.yaml" >/dev/null

killed=$(leader)
say "the coordinator on n$killed, which leads, is killed"
machine_run "$killed" systemctl kill -s KILL takt-coordinator
takes_over after-process
await_step failover 200

killed=$(leader)
say "the machine n$killed, whose coordinator leads, dies"
machine_down "$killed"
takes_over after-machine
await_step failover 300
[ "$(takt -o json job failover | jq .generation)" = "$generation" ] || die "the job did not train on"
takt wait failover >/dev/null
losses failover 6000 >"$shared/failover.losses"
head -n 600 "$shared/failover.losses" | cmp - "$shared/calm.losses" || die "the losses under two coordinators differ"
for name in before after-process after-machine; do takt wait "$name" >/dev/null || die "job $name, which was acknowledged, is lost"; done

say "what the journal has"
machine_run 2 journalctl -u 'takt-worker@a' --no-pager -o cat -n 8

say "done"
