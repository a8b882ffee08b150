#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does docs/howto/several-machines.md word by word: on n1, which the page calls c1, and on n2 to n4, which it calls n01 to n03, all booted
# systemd machines, with this one as the reader's own. ssh and scp are stand-ins, which reach the machines without a network.
# Run it by hand, as root:  tests/deploy/howto_machines.sh   (installs what systemd.sh installs)
set -euo pipefail
cd "$(dirname "$0")/../.."
export MACHINES_DIR=${MACHINES_DIR:-/srv/takt-machines}
. tests/deploy/jobs.sh
. tests/deploy/machines.sh
work=$(mktemp -d /var/tmp/takt-howto-XXXXXX)
[ ! -e /shared ] || die "/shared is there already"

finish() {
  local n
  if [ "$1" -ne 0 ]; then
    for n in "${machines_up[@]}"; do machine_run "$n" journalctl -u 'takt-*' --no-pager -n 40 || true; done
  fi
  machines_down
  [ ! -e "$work/hosts" ] || cat "$work/hosts" >/etc/hosts
  rm -rf "$work" /shared
}
trap 'finish $?' EXIT

say "packages"
machines_tools
deploy/package.sh "$work" >/dev/null

say "machines"
mkdir /shared
# shellcheck disable=SC2046
machines_base $(machines_dependencies "$work")
for n in 1 2 3 4; do
  machine_up "$n" /shared
  echo "10.77.0.1 c1.lab.example" >>"$(machine_root "$n")/etc/hosts"
done
cp /etc/hosts "$work/hosts"
echo "10.77.0.1 c1.lab.example" >>/etc/hosts

say "docs/howto/several-machines.md"
mkdir "$work/reader"
cat >"$work/reader/ssh" <<'END'
#!/usr/bin/env bash
. "$TAKT_SOURCE/tests/deploy/machines.sh"
case "$1" in root@c1) n=1 ;; root@n0[123]) n=$((1 + ${1#root@n0})) ;; *) echo "ssh: unknown $1" >&2; exit 255 ;; esac
machine_run "$n" sh -c "cd /root; ${*:2}"
END
cat >"$work/reader/scp" <<'END'
#!/usr/bin/env bash
. "$TAKT_SOURCE/tests/deploy/machines.sh"
to=${*: -1}
case "$to" in root@c1:*) n=1 ;; root@n0[123]:*) n=${to#root@n0} n=$((1 + ${n%%:*})) ;; *) echo "scp: unknown $to" >&2; exit 255 ;; esac
path=${to#*:}
cp -r "${@:$(($# > 2 ? 2 : 1)):$(($# > 2 ? $# - 2 : 1))}" "$(machine_root "$n")/${path:-root}"
END
# This machine's addresses are other ones, and the page is not done in the folder of the sources.
cat >"$work/reader/read" <<'END'
#!/usr/bin/env bash
sed "s,^deploy/package.sh,$TAKT_SOURCE/deploy/package.sh >/dev/null,; s,build/release/packages,$TAKT_SOURCE/build/release/packages,g
  s/10\.0\.0\.100/10.77.0.1/; s/10\.0\.0\.\[1-3\]/10.77.0.[2-4]/"
END
chmod +x "$work"/reader/*
(cd tests/howto && BIN=$PWD/../../build/release/bin HAS=systemd READER=$work/reader/read MORE_STAND_INS=$work/reader \
  python3 -B -m unittest -v howto_test.Pages.test_several_machines)

say "done"
