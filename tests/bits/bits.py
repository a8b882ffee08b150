#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that a change alters no bit of any result: what two builds compute is recorded and compared, digit for digit.

    tests/bits/bits.py record BUILD OUT.json                the jobs of matrix.py: losses, gradient norms, checkpoints
    tests/bits/bits.py record BUILD OUT.json --only pipedream --only bf16
    tests/bits/bits.py simulate BUILD OUT.json              simulated times of all golden and generated schedules
    tests/bits/bits.py compare BEFORE.json AFTER.json       names each job and step that differs; exit status 1 if there is one
    tests/bits/bits.py list                                 the names of all jobs

BUILD is a build directory such as build/release. Record both builds on one machine: bits depend on the instructions of its processor.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

import comparison
import matrix
import simulations
import training

FORMAT = "takt-bits 1"


def processor():
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.machine()


def write(path, what, binaries, results):
    version = subprocess.run([binaries / "takt", "--version"], capture_output=True, text=True, check=True).stdout
    record = {"format": FORMAT, "what": what, "processor": processor(), "version": version.strip(), "results": results}
    path.write_text(json.dumps(record, indent=1) + "\n")
    failed = [name for name, result in results.items() if "error" in result]
    print(f"{path}: {len(results)} {what}, {len(failed)} failed")
    return 1 if failed else 0


def read(path):
    record = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        sys.exit(f"{path}: expected the format '{FORMAT}', got '{record.get('format')}'")
    return record


def compare(options):
    before, after = read(options.before), read(options.after)
    for field in ("what", "processor"):
        if before[field] != after[field]:
            sys.exit(f"these records cannot be compared: {field} '{before[field]}' and '{after[field]}'")
    differences = comparison.differences(before["results"], after["results"], partial=options.partial)
    for difference in differences[: options.lines]:
        print(difference)
    if len(differences) > options.lines:
        print(f"... and {len(differences) - options.lines} more lines")
    for note in comparison.notes(before["results"], after["results"]):
        print(note)
    print(f"{before['what']}: {comparison.summary(before['results'], after['results'])}, {len(differences)} differences")
    return 1 if differences else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "simulate"):
        command = commands.add_parser(name)
        command.add_argument("build", type=pathlib.Path, help="build directory, with bin/takt")
        command.add_argument("out", type=pathlib.Path, help="file to write")
        command.add_argument("--at-once", type=int, default=os.cpu_count(), help="jobs or simulations that run at once")
        if name == "record":
            command.add_argument("--only", action="append", metavar="TEXT", help="only jobs whose name contains TEXT")
            command.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    command = commands.add_parser("compare")
    command.add_argument("before", type=pathlib.Path)
    command.add_argument("after", type=pathlib.Path)
    command.add_argument("--partial", action="store_true", help="compare only what both have recorded")
    command.add_argument("--lines", type=int, default=100, help="differences to print at most")
    commands.add_parser("list")
    return parser.parse_args()


def main():
    options = arguments()
    if options.command == "compare":
        return compare(options)
    if options.command == "list":
        print("\n".join(job.name for job in matrix.jobs()))
        return 0
    binaries = options.build / "bin"
    if options.command == "record":
        jobs = training.jobs_named(options.only)
        if not jobs:
            sys.exit(f"no job has a name with {options.only}; see `list`")
        return write(options.out, "jobs", binaries, training.record(binaries, jobs, options.device, options.at_once))
    return write(options.out, "simulations", binaries, simulations.record(binaries, options.at_once))


if __name__ == "__main__":
    sys.exit(main())
