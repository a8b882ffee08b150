#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one GPT in f32, in bf16 and with both recipes of FP8, with the same data and seed, and prints one table: the loss in training and
on held-out text, their differences from f32, the speed, and what the formats could not hold. The values that became zero and the values
that were too large are the worker's metrics at the end of its job.

    tests/bench/precisions.py build/release/bin DIR [--steps 977] [--threads N] [--rows f32 bf16 tensor block] [-o json]

DIR gets the text of deploy/examples/make-kjv-text.sh. The model has 10 million parameters, and 977 steps are 4 million tokens.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRECISIONS = {
    "f32": {"precision": "f32"},
    "bf16": {"precision": "bf16"},
    "tensor": {"precision": "fp8", "fp8": {"recipe": "tensor"}},
    "block": {"precision": "fp8", "fp8": {"recipe": "block"}},
}
TOKENS_PER_STEP = 32 * 128
LAST_STEPS = 50  # whose mean is the loss in training
START_SECONDS = 60


def job(row, options):
    text = options.directory.resolve()
    return {
        "name": f"precision-{row}",
        "model": {"family": "gpt2", "layers": 8, "hidden": 320, "heads": 5, "context": 128, "vocab": 256},
        "data": {
            "train": {"path": str(text / "kjv.txt"), "format": "bytes"},
            "validation": {"path": str(text / "val.txt"), "format": "bytes", "every_steps": options.steps, "batches": 32},
            "shuffle": True,
        },
        "batch": {"global": 32, "microbatch": 8},
        "optimizer": {
            "adamw": {"learning_rate": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0},
            "lr_schedule": {"warmup_steps": 50, "decay": "cosine", "min_learning_rate": 1e-4},
        },
        "steps": options.steps,
        "parallelism": {"pipeline": 1, "data": 1, "schedule": "1f1b", "threads": options.threads},
        "seed": 1234,
        **PRECISIONS[row],
    }


def die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Cluster:
    """Runs a coordinator and one worker. It is a context, and they end with it."""

    def __init__(self, binaries, directory, threads):
        self._binaries, self._directory = binaries, directory
        self._address = f"unix:{directory}/socket"
        self._threads = threads
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        own = ["--metrics-listen", "127.0.0.1:0", "--settings", ""]
        state = self._directory / "state" / "coordinator.json"
        self._spawn("takt-coordinator", "--state", state.parent, "--listen", self._address, *own)
        self._await_file(state)
        file = self._directory / "worker.json"
        self._spawn("takt-worker", "--coordinator", self._address, "--name", "worker", "--data-root", "/", "--checkpoint-root", "/",
                    "--device", "cpu", "--threads", str(self._threads), "--state-file", file, *own)
        self._metrics = self._await_file(file)["metrics_address"]
        return self

    def __exit__(self, *_):
        self._stack.close()

    def train(self, spec):
        """The steps as `takt -o json` prints them."""
        file = self._directory / f"{spec['name']}.yaml"
        file.write_text(json.dumps(spec))
        self._takt(spec, "submit", file)
        lines = self._takt(spec, "watch", spec["name"]).splitlines()
        return [line for line in map(json.loads, lines) if "grad_norm" in line]

    def counted(self, metric, name):
        """Returns {operand: value} of a job's counter."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=20) as page:
            text = page.read().decode()
        found = re.findall(rf"^{metric}\{{([^}}]*)\}} (\S+)$", text, flags=re.MULTILINE)
        return {re.search(r'operand="(\w+)"', labels)[1]: float(value) for labels, value in found if f'job="{name}"' in labels}

    def _takt(self, spec, *arguments):
        command = [self._binaries / "takt", "-o", "json", "--coordinator", self._address, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"precisions.py: {spec['name']}: exit status {done.returncode}; logs are in {self._directory}")
        return done.stdout

    def _spawn(self, program, *arguments):
        log = self._stack.enter_context(open(self._directory / f"{program}.log", "w"))
        process = subprocess.Popen([self._binaries / program, *arguments], stdout=log, stderr=log, preexec_fn=die_with_parent)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)

    def _await_file(self, file):
        for _ in range(10 * START_SECONDS):
            if file.exists() and file.read_text():
                return json.loads(file.read_text())
            time.sleep(0.1)
        sys.exit(f"precisions.py: {file.name} was not written within {START_SECONDS} s; logs are in {self._directory}")


def measured(cluster, row, options):
    spec = job(row, options)
    start = time.monotonic()
    steps = cluster.train(spec)
    seconds = time.monotonic() - start
    last = [step["loss"] for step in steps[-LAST_STEPS:]]
    return {
        "row": row,
        "loss": sum(last) / len(last),
        "validation_loss": next((step["validation_loss"] for step in reversed(steps) if "validation_loss" in step), None),
        "tokens": len(steps) * TOKENS_PER_STEP,
        "tokens_per_second": len(steps) * TOKENS_PER_STEP / seconds,
        "overflows": cluster.counted("takt_fp8_overflows_total", spec["name"]),
        "underflows": cluster.counted("takt_fp8_underflows_total", spec["name"]),
    }


def print_text(rows):
    base = rows[0]
    print(f"{'':8}{'tokens':>10}{'loss':>9}{'off by %':>10}{'held out':>10}{'off by %':>10}{'tokens/s':>10}  too large, to zero (a token)")
    for r in rows:
        def off(key):
            return f"{100 * (r[key] / base[key] - 1):10.2f}" if r[key] and base[key] else f"{'':10}"

        counts = ", ".join(f"{operand} {r['overflows'][operand]:.0f}, {value:.3g} ({value / r['tokens']:.1f})"
                           for operand, value in r["underflows"].items())
        held_out = f"{r['validation_loss']:10.4f}" if r["validation_loss"] else f"{'':10}"
        print(f"{r['row']:8}{r['tokens']:10}{r['loss']:9.4f}{off('loss')}{held_out}{off('validation_loss')}{r['tokens_per_second']:10.0f}  {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="the folder of takt, takt-coordinator and takt-worker")
    parser.add_argument("directory", type=pathlib.Path, help="of the text")
    parser.add_argument("--steps", type=int, default=977)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rows", nargs="+", choices=[*PRECISIONS], default=[*PRECISIONS], help="differences are from the first")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([ROOT / "deploy" / "examples" / "make-kjv-text.sh", options.directory], check=True, stdout=sys.stderr)
    work = pathlib.Path(tempfile.mkdtemp(prefix="takt-precisions-"))
    with Cluster(options.binaries.resolve(), work, options.threads) as cluster:
        rows = [measured(cluster, row, options) for row in options.rows]
    if options.output == "json":
        print(json.dumps({"rows": rows}))
    else:
        print_text(rows)


main()
