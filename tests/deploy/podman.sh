#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the image and runs the pods of deploy/kubernetes/overlays/local under podman: a coordinator and four workers with certificates,
# a network of their own, and the users, mounts, limits and probes of the manifests. A job of two stages and two replicas trains. Then it
# trains again while one worker's pod is stopped and started and the coordinator's container is killed. The losses must be the same.
# Run it by hand, as root:  tests/deploy/podman.sh   (needs podman, kubectl, python3-yaml, jq; an image debian:bookworm-slim)
#   CCACHE=DIR     a ccache that the image's build may use
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/deploy/jobs.sh
image=localhost/takt:dev
subnet=10.89.77
work=$(mktemp -d /var/tmp/takt-pods-XXXXXX)
network=${work##*/}  # new in each run: when a run is cut off, podman 4.3 remembers addresses by this name, even after a reset
pods=(takt-coordinator-0 takt-worker-0 takt-worker-1 takt-worker-2 takt-worker-3)

address() { case "$1" in takt-coordinator-0) echo $subnet.10 ;; *) echo $subnet.$((20 + ${1##*-})) ;; esac; }
client() {
  podman run -d --name takt-client --network $network --add-host takt-coordinator:$subnet.10 -v "$work:$work" -v takt-data:/var/lib/takt/data \
    -e TAKT_COORDINATOR=takt-coordinator:7070 -e TAKT_TLS_CERTIFICATE="$work/alice.pem" -e TAKT_TLS_KEY="$work/alice.key" \
    -e TAKT_TLS_AUTHORITY="$work/ca.pem" $image sleep infinity >/dev/null 2>&1
}
takt() { podman exec -i takt-client takt "$@"; }
container_of() { echo "$1-${1%-*}" | sed 's/-takt-/-/'; }  # POD-CONTAINER
cleanup() {
  local pod
  set +e
  if [ "$1" -ne 0 ]; then
    cat "$work/play.log" 2>&1
    for pod in "${pods[@]}"; do podman logs --tail 15 "$(container_of "$pod")" 2>&1; done
  fi
  podman rm -f -t 0 takt-client >/dev/null
  for pod in "${pods[@]}"; do podman pod rm -f "$pod" >/dev/null; done
  # A ConfigMap becomes a volume with the hash of its content in its name.
  podman volume ls -q | grep -E '^(run-takt-|state-takt-|takt-data$|takt-checkpoints$|takt-(coordinator|worker)-[a-z0-9]{10}$)' |
    xargs -r podman volume rm -f >/dev/null
  podman network rm -f $network >/dev/null
  rm -rf "$work"
} 2>/dev/null
trap 'cleanup $?' EXIT

say "image"
podman build --quiet --pull=missing ${CCACHE:+-v "$CCACHE:/ccache"} -f deploy/container/Containerfile -t $image . >/dev/null
podman network create --subnet $subnet.0/24 $network >/dev/null
podman images --format '{{.Repository}}:{{.Tag}} {{.Size}}' $image
for tool in gcc g++ cc c++ ld as make cmake; do
  ! podman run --rm $image sh -c "command -v $tool" || die "the image has $tool"
done

say "certificates"
chown 10001:10001 "$work"
client
takt certs init "$work" >/dev/null 2>&1
takt certs issue "$work" coordinator takt-coordinator --host takt-coordinator >/dev/null 2>&1
takt certs issue "$work" user alice >/dev/null 2>&1
for n in 0 1 2 3; do takt certs issue "$work" worker takt-worker-$n >/dev/null 2>&1; done
# A kubelet puts the Secrets of docs/deploy.md there in this way.
mkdir -p "$work"/takt-{coordinator,worker}-tls
cp "$work/takt-coordinator.pem" "$work/takt-coordinator-tls/tls.crt"
cp "$work/takt-coordinator.key" "$work/takt-coordinator-tls/tls.key"
cp "$work"/takt-worker-?.{pem,key} "$work/takt-worker-tls/"
for secret in "$work"/takt-{coordinator,worker}-tls; do
  cp "$work/ca.pem" "$secret/ca.crt"
  chown -R root:10001 "$secret"
  chmod 0440 "$secret"/*
done

say "pods"
podman exec -i takt-client sh -c 'cat > /var/lib/takt/data/tiny.txt' <deploy/examples/tiny.txt
for pod in "${pods[@]}"; do
  python3 -B tests/deploy/pods.py overlays/local "${pod%-*}" "${pod##*-}" "$(address "$pod")" "$work" takt-coordinator=$subnet.10 >"$work/$pod.yaml"
  podman kube play --network "$network:ip=$(address "$pod")" "$work/$pod.yaml" >>"$work/play.log" 2>&1
done
for _ in $(seq 100); do [ "$(takt workers 2>/dev/null | grep -c IDLE || true)" -ne 4 ] || break; sleep 0.2; done
takt workers
[ "$(takt workers | grep -c IDLE)" -eq 4 ] || die "not all four workers are attached and idle"

say "what the manifests promise"
for pod in "${pods[@]}"; do
  program=${pod%-*}
  container=$(container_of "$pod")
  podman exec "$container" "$program" --health=ready >/dev/null || die "$pod is not ready"
  podman healthcheck run "$container" || die "the liveness probe of $pod fails"
  [ "$(podman exec "$container" id -u)" = 10001 ] || die "$pod runs as another user"
  ! podman exec "$container" touch /etc/x 2>/dev/null || die "the root of $pod can be written"
  podman exec "$container" grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status | tr -s '\t\n' ' ' | grep -q 'CapBnd: 0000000000000000 CapEff: 0000000000000000\|CapEff: 0000000000000000 CapBnd: 0000000000000000' || die "$pod has capabilities"
  podman exec "$container" grep -qE '^Seccomp:\s+2$' /proc/1/status || die "$pod has no seccomp filter"
done

submit() { job "$1" 400 >"$work/$1.yaml"; takt submit "$work/$1.yaml" "${@:2}"; }

say "an undisturbed job"
submit calm --wait | tail -1
losses calm 400 >"$work/calm.losses"

say "the same job; a worker's pod stops and starts, the coordinator is killed"
submit disturbed
await_step disturbed 30
# The container is stopped, as a kubelet does, not the pod: podman would remove the network at the same time.
podman stop -t 360 "$(container_of takt-worker-3)" >/dev/null 2>&1
[ "$(podman inspect "$(container_of takt-worker-3)" --format '{{.State.ExitCode}}')" = 0 ] || die "the worker did not leave in peace"
podman logs "$(container_of takt-worker-3)" 2>&1 | grep -E '"asked to halt"|"rank halted"|"worker ends"'
podman start "$(container_of takt-worker-3)" >/dev/null 2>&1
await_step disturbed 150
kill -9 "$(podman inspect "$(container_of takt-coordinator-0)" --format '{{.State.Pid}}')"  # restartPolicy: Always
for _ in $(seq 100); do ! podman exec "$(container_of takt-coordinator-0)" takt-coordinator --health=ready >/dev/null 2>&1 || break; sleep 0.2; done
takt wait disturbed >/dev/null
losses disturbed 400 >"$work/disturbed.losses"
cmp "$work/calm.losses" "$work/disturbed.losses" || die "the disturbed job's losses differ from the undisturbed ones"
takt job disturbed

restarts=$(podman inspect "$(container_of takt-coordinator-0)" --format '{{.RestartCount}}')
[ "$restarts" = 1 ] || die "the coordinator was started again $restarts times, not once"

say "done"
