#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes DIR/kjv.txt (for training) and DIR/val.txt (held out: the last twentieth) from Debian's bible-kjv, if they are not there. It makes DIR.
set -euo pipefail
dir=${1:?usage: make-kjv-text.sh DIR}
[ -s "$dir/kjv.txt" ] && [ -s "$dir/val.txt" ] && exit 0
program=$(command -v bible || ls /usr/games/bible 2>/dev/null || true)
[ -n "$program" ] || { echo "make-kjv-text: install bible-kjv and bible-kjv-text (deploy/install-deps.sh --example)" >&2; exit 1; }
mkdir -p "$dir"
all=$(mktemp "$dir/all.XXXXXX")
trap 'rm -f "$all"' EXIT
# The program prints one verse a line (-f). Its reference ("Ge1:1 ") is cut off, so that prose is left.
"$program" -f -l99999 'gen1:1-rev22:21' | sed -E 's/^[^ ]*[0-9]+:[0-9]+ +//' >"$all"
size=$(stat -c %s "$all")
held_out=$((size / 20))
tail -c "$held_out" "$all" >"$dir/val.txt"
head -c $((size - held_out)) "$all" >"$dir/kjv.txt"
echo "$dir/kjv.txt: $((size - held_out)) bytes; $dir/val.txt: $held_out bytes"
