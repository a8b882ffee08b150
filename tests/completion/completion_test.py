#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completes command lines of takt in bash, zsh and fish, with the scripts that `takt completion` prints.

A stand-in for `takt` on PATH answers `takt complete KIND -- WORD...`, which needs a coordinator, and checks what it is
given. BIN is the folder of the real one.
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import unittest

TAKT = pathlib.Path(os.environ["BIN"]) / "takt"
STAND_IN = """#!/bin/sh
[ "$1" = complete ] && [ "$3" = -- ] || exit 1
case "$2" in
  jobs) echo alpha; echo beta ;;
  workers) echo n1; echo n2 ;;
  steps) shift 3; for word in "$@"; do [ "$word" = alpha ] && echo 250; done ;;
esac
"""
# Each prints what it offers for the words after `takt`, of which the last is being written.
BASH = """
source {script}
COMP_WORDS=(takt {words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_LINE={line}
compgen() {{ if [ "$1" = -f ]; then echo FILES; else builtin compgen "$@"; fi; }}
_takt
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ : }}
source {script}
words=(takt {words}) CURRENT=${{#words}}
compadd() {{ shift; for word in "$@"; do [[ $word == $words[CURRENT]* ]] && print -r -- "$word"; done }}
_files() {{ print FILES }}
_takt
"""
FISH = """
source {script}
complete -C {line} | string replace -r '\\t.*' ''
"""


class Shells(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="takt-completion-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for shell in ["bash", "zsh", "fish"]:
            text = subprocess.run([TAKT, "completion", shell], check=True, capture_output=True, text=True).stdout
            (cls.folder / f"script.{shell}").write_text(text)
        (cls.folder / "takt").write_text(STAND_IN)
        (cls.folder / "takt").chmod(0o755)

    def offers(self, shell, words):
        """What the shell offers for the last word of a line, as a set."""
        line = shlex.quote(" ".join(["takt", *words]))
        template = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
        text = template.format(script=self.folder / f"script.{shell}", words=" ".join(map(shlex.quote, words)), line=line)
        plain = {"bash": ["bash", "--norc"], "zsh": ["zsh", "-f"], "fish": ["fish", "--no-config"]}[shell]
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        done = subprocess.run([*plain, "-c", text], capture_output=True, text=True, env=environment, cwd=self.folder,
                              timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.stderr, "", f"{shell}: takt {' '.join(words)}")
        return {word for word in done.stdout.split("\n") if word}

    def check(self, words, offered, not_offered=()):
        for shell in ["bash", "zsh", "fish"]:
            with self.subTest(shell=shell, words=words):
                if shutil.which(shell) is None:
                    self.fail(f"{shell} is not installed: deploy/install-deps.sh")
                offers = self.offers(shell, words)
                self.assertLessEqual(set(offered), offers)
                self.assertFalse(set(not_offered) & offers)

    def test_commands(self):
        self.check([""], ["job", "worker", "schedule", "submit"])
        self.check(["sch"], ["schedule"], ["submit"])
        self.check(["schedule", ""], ["show", "list", "verify"], ["submit"])
        self.check(["job", "wat"], ["watch"])

    def test_options_and_their_choices(self):
        self.check(["schedule", "show", "--micro"], ["--microbatches"], ["--memory"])
        self.check(["schedule", "show", "-f", ""], ["csv", "svg"], ["--memory"])
        self.check(["--output", ""], ["json"], ["job"])

    def test_names_of_jobs_workers_and_steps(self):
        self.check(["job", "cancel", ""], ["alpha", "beta"], ["n1"])
        self.check(["cancel", "al"], ["alpha"], ["beta"])
        self.check(["--output", "json", "job", "watch", ""], ["alpha", "beta"])
        self.check(["worker", "drain", ""], ["n1", "n2"], ["alpha"])
        self.check(["drain", "n"], ["n1", "n2"])
        self.check(["checkpoint", "verify", "alpha", "--step", ""], ["250"])

    def test_files_where_a_file_may_stand(self):
        (self.folder / "job.yaml").write_text("")
        for shell, file in [("bash", "FILES"), ("zsh", "FILES"), ("fish", "job.yaml")]:
            with self.subTest(shell=shell):
                self.assertIn(file, self.offers(shell, ["submit", "job"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
