#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the pages of docs/howto word by word, each in an empty folder with the build's programs on PATH.

A fence says what its block is:

  sh test           commands that this test runs, in the order of the page, all in one shell
  sh serves         a command that serves a page until it is stopped; the test reads the page, then stops it
  sh stand-in=NAME  commands that call NAME, which needs the network or changes the machine; the test runs them with the
                    program NAME of stand_ins/, which checks what it is given
  sh needs=WHAT     commands that need what this machine may not have (NEEDS); they are left out, which is printed, unless
                    the variable HAS names it (tests/deploy/slurm.sh). Then the program READER puts in place what the
                    page tells its reader to replace: from stdin to stdout.
  LANG file=NAME    the content of a file that the reader saves

A line `<!-- test: COMMAND -->`, which readers do not see, puts what the reader is told to bring.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PAGES = SOURCE / "docs/howto"
STAND_INS = SOURCE / "tests/howto/stand_ins"
NEEDS = {"gpu", "slurm", "systemd"}
SECONDS_PER_PAGE = 240
FENCE = re.compile(r"^ *```(\S+) *(.*)$")
SETUP = re.compile(r"^ *<!-- test: (.*) -->$")


@dataclasses.dataclass
class Block:
    line: int
    language: str  # "setup" for what readers do not see
    mark: str      # what follows the language
    text: str


# Reads the page of a server whose first line of output is its address. COMMAND is in its place.
SERVE = """coproc SERVER {{ exec {command}; }}
server=$SERVER_PID
read -r address <&"${{SERVER[0]}}"
python3 -c 'import sys, urllib.request as http
http.build_opener(http.ProxyHandler({{}})).open(sys.argv[1], timeout=30).read()' "$address"
kill "$server"
wait "$server"
"""


READ = """commands=$("$READER" <<'END_OF_THE_BLOCK'
{text}END_OF_THE_BLOCK
)
eval "$commands"
"""


def blocks_of(page):
    """The fenced blocks and the setup lines of a page, in order."""
    lines = page.read_text().splitlines()
    blocks = []
    i = 0
    while i < len(lines):
        begin = i + 1
        if setup := SETUP.match(lines[i]):
            blocks.append(Block(begin, "setup", "", setup[1] + "\n"))
        elif fence := FENCE.match(lines[i]):
            i += 1
            body = []
            while lines[i].strip() != "```":
                body.append(lines[i])
                i += 1
            blocks.append(Block(begin, fence[1], fence[2].strip(), textwrap.dedent("\n".join(body)) + "\n"))
        i += 1
    return blocks


def pages():
    return sorted(page for page in PAGES.glob("*.md") if page.name != "README.md")


def script_of(page):
    """The shell script that does what the page says."""
    script = ["set -euo pipefail\n"]
    for block in blocks_of(page):
        place = f"{page.name}:{block.line}"
        if block.language == "setup":
            script.append(block.text)
        elif block.mark.startswith("file="):
            script.append(f"{os.environ.get('READER', 'cat')} >{block.mark.removeprefix('file=')} <<'END_OF_THE_FILE'\n"
                          f"{block.text}END_OF_THE_FILE\n")
        elif block.mark == "serves":
            script.append(f"echo '== {place}'\n{SERVE.format(command=block.text.strip())}")
        elif block.mark == "test" or block.mark.startswith("stand-in="):
            script.append(f"echo '== {place}'\n{block.text}")
        elif os.environ.get("HAS") == block.mark.removeprefix("needs="):
            script.append(f"echo '== {place}'\n{READ.format(text=block.text)}")
        else:
            print(f"{place}: skipped, {block.mark.replace('=', ' ')}", file=sys.stderr)
    return "".join(script)


class Marks(unittest.TestCase):
    def test_every_block_is_run_or_says_what_it_needs(self):
        for page in pages():
            blocks = blocks_of(page)
            self.assertTrue(any(block.language == "sh" for block in blocks), page.name)
            for block in blocks:
                place = f"{page.name}:{block.line}"
                if block.language == "sh":
                    stand_ins = {f"stand-in={program.name}" for program in STAND_INS.iterdir()}
                    self.assertIn(block.mark, {"test", "serves"} | stand_ins | {f"needs={what}" for what in NEEDS}, place)
                    self.assertTrue(block.mark != "serves" or block.text.count("\n") == 1, place)
                elif block.language != "setup":
                    self.assertRegex(block.mark, "^file=[a-z.-]+$", place)

    def test_blocks_that_are_left_out_name_commands_and_files_that_are_there(self):
        takt = pathlib.Path(os.environ["BIN"]) / "takt"
        for page in pages():
            for block in blocks_of(page):
                if not block.mark.startswith("needs="):
                    continue
                place = f"{page.name}:{block.line}"
                for path in re.findall(r"\bdeploy/[\w./-]*\w", block.text):
                    self.assertTrue((SOURCE / path).exists(), f"{place}: {path}")
                for words in re.findall(r"(?:^|-- )takt((?: [a-z]+)+)(?= |$)", block.text, re.MULTILINE):
                    shown = subprocess.run([takt, *words.split(), "--help"], capture_output=True, text=True)
                    self.assertEqual(shown.returncode, 0, f"{place}: takt{words}: {shown.stderr}")

    def test_the_first_page_lists_every_page_once(self):
        listed = re.findall(r"^\|.*\]\(([a-z-]+\.md)\)", (PAGES / "README.md").read_text(), re.MULTILINE)
        self.assertEqual(sorted(listed), [page.name for page in pages()])

    def test_own_text_takes_six_commands(self):
        commands = [block.text for block in blocks_of(PAGES / "own-text.md") if block.mark == "test"]
        self.assertEqual(len("".join(commands).splitlines()), 6)


class Pages(unittest.TestCase):
    """Has a test for each page, added below."""

    def run_page(self, page):
        # A short path: below it are the sockets of `takt local up`.
        folder = pathlib.Path(tempfile.mkdtemp(prefix="takt-howto-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        work = folder / "work"
        work.mkdir()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAKT_")}
        environment |= {"PATH": f"{os.environ['BIN']}:{os.environ.get('MORE_STAND_INS', STAND_INS)}:{STAND_INS}:{os.environ['PATH']}",
                        "HOME": str(folder),
                        "XDG_STATE_HOME": str(folder / "state"), "TAKT_SOURCE": str(SOURCE)}
        # Ends what a page that failed left running.
        self.addCleanup(subprocess.run, ["takt", "local", "down"], env=environment, cwd=folder,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begin = time.monotonic()
        with open(folder / "output", "w+") as output:
            shell = subprocess.Popen(["bash", "-c", script_of(page)], cwd=work, env=environment, text=True,
                                     stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                     start_new_session=True)
            try:
                code = shell.wait(SECONDS_PER_PAGE)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, signal.SIGKILL)
                shell.wait()
                code = f"none after {SECONDS_PER_PAGE} s"
            output.seek(0)
            text = output.read()
        print(f"{page.name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)
        self.assertEqual(code, 0, f"{page.name}; its output ends:\n{text[-4000:]}")
        if page.name == "own-text.md":
            self.check_own_text(text)

    def check_own_text(self, output):
        """A model that has learned nothing has a perplexity of 1000, the size of its vocabulary."""
        perplexity = re.search(r"^perplexity +([0-9.]+)$", output, re.MULTILINE)
        self.assertIsNotNone(perplexity, output[-4000:])
        self.assertLess(float(perplexity[1]), 300)
        self.assertRegex(output, "[0-9]+ tokens in .* tokens/s")


for path in pages():
    setattr(Pages, f"test_{path.stem.replace('-', '_')}", lambda self, page=path: self.run_page(page))

if __name__ == "__main__":
    unittest.main()
