#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs deploy/slurm/takt.sbatch under a real Slurm: a slurmctld and three slurmd on this machine, with a munged, ports and files of their own.
# A job of three stages trains undisturbed. Then it trains again, is told that its time limit is near, pauses, is requeued by Slurm and
# goes on. The weights at the end must be the same, byte for byte. A job whose data is missing must fail with the exit code of takt. Last,
# docs/howto/slurm.md is done word by word, with one task a node instead of eight, and without GPUs.
# Run it as root:  tests/deploy/slurm.sh   (tests/long.sh slurm; installs Debian's slurmctld, slurmd, slurm-client and munge)
#   BIN=DIR     the programs; default: build/release/bin
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/deploy/jobs.sh
PATH=$(realpath "${BIN:-build/release/bin}"):$PATH
export PATH
work=$(mktemp -d /var/tmp/takt-slurm-XXXXXX)
export SLURM_CONF=$work/slurm.conf
daemons=()
made_packaged=

finish() {
  if [ "$1" -ne 0 ]; then tail -n 30 "$work"/*.log "$work"/jobs/*.log "$work"/jobs/takt-*/run-*/*.log 2>/dev/null || true; fi
  scancel --full --quiet --user=root 2>/dev/null || true
  # The first one is munged, which the others need to the end.
  for ((i = ${#daemons[@]} - 1; i >= 0; --i)); do
    kill "${daemons[i]}" 2>/dev/null && wait "${daemons[i]}" 2>/dev/null || true
  done
  [ -z "$made_packaged" ] || rm -rf /usr/share/doc/takt-cli/slurm
  rm -rf "$work"
}
trap 'finish $?' EXIT

await() { # SECONDS COMMAND...: until it succeeds
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || die "waited in vain for: $*"
    sleep 0.2
  done
}
state() { scontrol --oneliner show job "$1" | sed -n "s/.* $2=\([^ ]*\).*/\1/p"; } # JOB FIELD
is() { [ "$(state "$1" "$2")" = "$3" ]; }
idle_nodes() { [ "$(sinfo --noheader --Node --states=idle | wc -l)" -eq 3 ]; }
has_checkpoint() { compgen -G "$work/jobs/checkpoints-$1/step-*/manifest.json" >/dev/null; }

say "packages"
missing=()
for package in slurmctld slurmd slurm-client munge; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

say "slurm"
mkdir -p "$work"/{jobs,controller,n1,n2,n3}
(umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
read -r -a ports <<<"$(python3 -c '
import socket
sockets = [socket.socket() for _ in range(4)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')"
host=$(hostname -s)
cat >"$SLURM_CONF" <<CONF
ClusterName=takt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for as long as credentials are valid.
AuthInfo=socket=$work/munge.socket,cred_expire=5
StateSaveLocation=$work/controller
SlurmctldPidFile=$work/controller.pid
SlurmdPidFile=$work/%n.pid
SlurmdSpoolDir=$work/%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
KillWait=10
ReturnToService=2
$(for n in 1 2 3; do echo "NodeName=n$n NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[n]} CPUs=1 State=UNKNOWN"; done)
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
start() { # NAME COMMAND...
  "${@:2}" >"$work/$1.log" 2>&1 &
  daemons+=($!)
}
start munged munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munged.pid" \
  --log-file="$work/munge.txt" --seed-file="$work/munge.seed"
await 10 test -S "$work/munge.socket"
start slurmctld slurmctld -D -c
for n in 1 2 3; do start "slurmd-n$n" slurmd -D -N "n$n"; done
await 60 idle_nodes
sinfo

cp deploy/examples/tiny.txt "$work/jobs/"
job_file() { # NAME DATA
  cat >"$work/jobs/$1.yaml" <<YAML
name: $1
model: {family: gpt2, layers: 4, hidden: 64, heads: 4, context: 64, vocab: 256}
data: {train: {path: $2, format: bytes}, shuffle: true}
batch: {global: 16, microbatch: 2}
optimizer: {adamw: {learning_rate: 1.0e-3}}
steps: 1500
parallelism: {pipeline: 3, data: 1, schedule: 1f1b}
checkpoint: {directory: checkpoints-$1, every_steps: 100}
seed: 7
YAML
}
submit() { # NAME: prints the number of the job
  TAKT_INTERFACE=lo TAKT_STATE=$work sbatch --parsable --chdir="$work/jobs" --nodes=3 --ntasks-per-node=1 --time=30 \
    --output="$work/jobs/$1.log" deploy/slurm/takt.sbatch "$work/jobs/$1.yaml"
}

say "an undisturbed job"
job_file calm tiny.txt
calm=$(submit calm)
await 300 is "$calm" JobState COMPLETED

say "the same job, whose time ends under way"
job_file requeued tiny.txt
requeued=$(submit requeued)
await 120 has_checkpoint requeued
scancel --batch --signal=USR1 "$requeued"
await 120 is "$requeued" Restarts 1
await 300 is "$requeued" JobState COMPLETED
grep -q "takt.sbatch: paused; back to Slurm's queue" "$work/jobs/requeued.log" || die "the job was not paused"
grep -q '^resumed after step: ' "$work/jobs/requeued.log" || die "the job began anew"
for file in "$work"/jobs/checkpoints-calm/step-00001500/model-*.safetensors; do
  cmp "$file" "${file/checkpoints-calm/checkpoints-requeued}" || die "the requeued job has other weights"
done
! compgen -G "$work/jobs/takt-*/run-*/certs" >/dev/null || die "private keys were left behind"
! compgen -G "$work/takt-*" >/dev/null || die "the coordinator's state was left behind"

say "a job that cannot run"
job_file wrong missing.txt
wrong=$(submit wrong)
await 120 is "$wrong" JobState FAILED
is "$wrong" ExitCode 2:0 || die "exit code $(state "$wrong" ExitCode) instead of 2:0"

say "docs/howto/slurm.md"
packaged=/usr/share/doc/takt-cli/slurm/takt.sbatch
if [ ! -e $packaged ]; then
  made_packaged=true
  install -D deploy/slurm/takt.sbatch $packaged
fi
mkdir "$work/reader"
cat >"$work/reader/sbatch" <<'END'
#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
  case "$argument" in
    --ntasks-per-node=8) arguments+=(--ntasks-per-node=1) ;;
    --gpus-per-node=8) ;;
    *) arguments+=("$argument") ;;
  esac
done
TAKT_INTERFACE=lo TAKT_STATE=$READER_WORK /usr/bin/sbatch "${arguments[@]}" | tee "$READER_WORK/submitted"
END
# Who follows the log stops when it names the job, and the coordinator knows it.
cat >"$work/reader/tail" <<'END'
#!/usr/bin/env bash
[ "$1" = -f ] || exec /usr/bin/tail "$@"
for _ in $(seq 300); do
  if grep -qs job=slurm- "${2%.log}/run-0/coordinator.log" && grep -s -m 1 slurm- "$2"; then exit 0; fi
  sleep 0.2
done
exit 1
END
cat >"$work/reader/read" <<'END'
#!/usr/bin/env bash
number=$(sed -n 's/.* //p' "$READER_WORK/submitted" 2>/dev/null || true)
sed "s/10\.1\.0\.11:14711/127.0.0.1:$((10000 + ${number:-0} % 20000))/; s/4711/${number:-4711}/g"
END
chmod +x "$work"/reader/*
(cd tests/howto && BIN=$(dirname "$(command -v takt)") HAS=slurm READER=$work/reader/read MORE_STAND_INS=$work/reader READER_WORK=$work \
  python3 -B -m unittest -v howto_test.Pages.test_slurm)
await 60 is "$(sed -n 's/.* //p' "$work/submitted")" JobState COMPLETED

say "done"
