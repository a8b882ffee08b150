#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of two builds: runs `takt-bench` of both in turns (A B, B A, A B, ...) and prints, for each figure, the median of
the ratios B / A of all turns. Whatever else the machine does meets both builds of a turn alike.

    tests/bench/two_builds.py BEFORE AFTER                       all figures; 45 minutes on an idle machine of two cores
    tests/bench/two_builds.py BEFORE AFTER --only planner --turns 9
    tests/bench/two_builds.py BEFORE AFTER --quick               a minute; shows that everything runs, proves nothing

BEFORE and AFTER are build directories such as build/release, with bin/takt-bench. Every figure is a time or a size: a ratio below 1 means
that AFTER is better. Exit status 1 if a ratio is above the limit.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

LIMIT = 1.03


def runtime_figures(report):
    for row in report["rows"]:
        yield f"{row['ranks']} ranks {row['schedule']} {row['transport']}: step", row["measured_seconds"]
    yield "an instruction with nothing to do", report["instruction_nanoseconds"]
    yield "an instruction that waits for another lane", report["handoff_nanoseconds"]


def train_figures(report):
    yield "step", report["step_seconds"]
    yield "allocated bytes", report["allocated_bytes"]


def planner_figures(report):
    for row in report["rows"]:
        yield f"M={row['microbatches']}: total", row["total_seconds"]
        yield f"M={row['microbatches']}: peak memory", row["peak_rss_bytes"]


def tracing_figures(report):
    yield "step without measurement", report["step_seconds"]
    yield "step with measurement", report["step_seconds"] * (1 + report["wall_cost"])


TRAIN = ["train", "--model", "gpt2-124m", "--context", "128", "--batch", "4", "--microbatch", "1"]
# name: (arguments, figures of the report, arguments that make it short)
RUNS = {
    "runtime": (["runtime", "--steps", "10"], runtime_figures, ["--ranks", "2", "--transport", "shm", "--steps", "3"]),
    "train f32": ([*TRAIN, "--steps", "3"], train_figures, None),
    "train bf16": ([*TRAIN, "--steps", "3", "--precision", "bf16"], train_figures, None),
    "train zb-h1": ([*TRAIN, "--steps", "3", "--virtual-ranks", "4", "--schedule", "zb-h1"], train_figures, None),
    "train tiny": (["train", "--model", "tiny", "--context", "64", "--batch", "32", "--microbatch", "1", "--steps", "50"],
                   train_figures, ["--batch", "4", "--steps", "2"]),
    "planner": (["planner", "--runs", "3"], planner_figures, ["--ranks", "4", "--chunks", "2", "--runs", "1"]),
    "tracing": (["tracing"], tracing_figures, ["--turns", "2", "--steps", "1"]),
}


def without_overridden(arguments, short):
    """Options may be given once only, so those of `short` replace their namesakes."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument not in short[::2]:
            kept.append(argument)
        skip = not skip and argument in short[::2]
    return kept + short


def measure(build, name, quick):
    arguments, figures, short = RUNS[name]
    if quick:
        arguments = without_overridden(arguments, short)
    command = [str(build / "bin" / "takt-bench"), *arguments, "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"two_builds.py: exit status {done.returncode}: {' '.join(command)}")
    return dict(figures(json.loads(done.stdout.splitlines()[-1])))


def compare(options, name):
    """Rows: name of the figure, its medians in both builds, the ratios of all turns."""
    turns = []
    for turn in range(options.turns):
        order = [options.before, options.after] if turn % 2 == 0 else [options.after, options.before]
        measured = {build: measure(build, name, options.quick) for build in order}
        turns.append((measured[options.before], measured[options.after]))
        print(f"{name}: turn {turn + 1} of {options.turns} is done", file=sys.stderr, flush=True)
    for figure in turns[0][0]:
        before, after = [turn[0][figure] for turn in turns], [turn[1][figure] for turn in turns]
        ratios = [b / a if a else float("nan") for a, b in zip(before, after)]
        yield {"run": name, "figure": figure, "before": statistics.median(before), "after": statistics.median(after),
               "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=RUNS, help="one of the runs; may be repeated")
    parser.add_argument("--turns", type=int, help="default: 5, or 1 with --quick")
    parser.add_argument("--quick", action="store_true", help="the shortest runs there are, without the large models")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"largest ratio; default: {LIMIT}")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    options.before, options.after = options.before.resolve(), options.after.resolve()
    if options.before == options.after:
        parser.error("BEFORE and AFTER are the same directory")
    options.turns = options.turns or (1 if options.quick else 5)
    return options


def main():
    options = arguments()
    rows = []
    if options.output == "text":
        print(f"{'run':12} {'figure':44} {'before':>12} {'after':>12} {'ratio':>7}  lowest highest")
    for name in options.only or [name for name, run in RUNS.items() if run[2] or not options.quick]:
        if options.quick and not RUNS[name][2]:
            sys.exit(f"two_builds.py: '{name}' has no short form, so it cannot be run with --quick")
        for row in compare(options, name):
            rows.append(row)
            if options.output == "text":
                mark = "  OVER THE LIMIT" if row["ratio"] > options.limit else ""
                print(f"{name:12} {row['figure']:44} {row['before']:12.6g} {row['after']:12.6g} {row['ratio']:7.3f}  "
                      f"{row['lowest']:6.3f} {row['highest']:7.3f}{mark}", flush=True)
    over = sum(row["ratio"] > options.limit for row in rows)
    if options.output == "json":
        print(json.dumps({"limit": options.limit, "turns": options.turns, "rows": rows}))
    else:
        print(f"{len(rows)} figures, {over} over the limit of {options.limit}, {options.turns} turns each")
    return 1 if over else 0


sys.exit(main())
