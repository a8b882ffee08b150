#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Git hook that checks the formatting of what is staged. To install it: ln -s ../../deploy/pre-commit.sh .git/hooks/pre-commit
set -euo pipefail
mapfile -t staged < <(git diff --cached --name-only --diff-filter=d -- '*.h' '*.cc')
[ ${#staged[@]} -eq 0 ] || clang-format --dry-run -Werror "${staged[@]}"
