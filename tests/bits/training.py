# SPDX-License-Identifier: Apache-2.0
"""Runs the jobs of matrix.py with the programs of one build and writes down what they computed."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import matrix

PATIENCE_SECONDS = 600
# Of a step, in the digits that were printed; a step without a validation has no `validation_loss`.
FIELDS = ("loss", "grad_norm", "learning_rate", "tokens", "validation_loss")


def read_exactly(text):
    """JSON whose numbers stay the text that was printed: that is what must be equal."""
    return json.loads(text, parse_float=str, parse_int=str)


def write_data(directory):
    """Two texts that depend on nothing outside of this file."""
    squares = "".join(f"{7 * i} is {i} times seven and {i} squared is {i * i}\n" for i in range(700))
    cubes = "".join(f"the cube of {i} is {i ** 3}, and not {i ** 3 + 1}\n" for i in range(300))
    (directory / "text.txt").write_text(squares)
    (directory / "held_out.txt").write_text(cubes)


def run(takt, directory, spec, device):
    """The steps of one run; a text instead says why there are none."""
    file = directory / "job.json"
    file.write_text(json.dumps(spec))
    command = [takt, "local", "run", file, "--device", device, "-o", "json"]
    environment = {**os.environ, "TMPDIR": str(directory)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    if done.returncode != 0:
        return f"exit status {done.returncode}: {done.stderr.strip()[-2000:]}"
    steps = [read_exactly(line) for line in done.stdout.splitlines()]
    return {str(step["step"]): {field: step[field] for field in FIELDS if field in step} for step in steps}


def read_checkpoint(directory):
    """The newest step, the hashes that its manifest states, and a hash of each file as it lies on the disk."""
    latest = directory / "latest"
    manifest = json.loads((latest / "manifest.json").read_text())
    return {
        "step": manifest["step"],
        "windows": manifest["data"]["windows"],
        "plan_hash": manifest["plan_hash"],
        "manifest": {file["name"]: file["xxh3_128"] for file in manifest["files"]},
        "sha256": {file["name"]: hashlib.sha256((latest / file["name"]).read_bytes()).hexdigest()
                   for file in manifest["files"]},
    }


def record_job(takt, job, device):
    with tempfile.TemporaryDirectory(prefix="takt-bits-") as name:
        directory = pathlib.Path(name)
        write_data(directory)
        runs = []
        for spec in [job.spec, *job.resumed]:
            runs.append(run(takt, directory, spec, device))
            if isinstance(runs[-1], str):
                return {"error": runs[-1]}
        return {"runs": runs, "checkpoint": read_checkpoint(directory / "checkpoint")}


def record(binaries, jobs, device, at_once):
    """{name of a job: what it computed, or its error}."""
    takt = (binaries / "takt").resolve()
    recorded = {}
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        pending = {pool.submit(record_job, takt, job, device): job.name for job in jobs}
        for future in concurrent.futures.as_completed(pending):
            name = pending[future]
            try:
                recorded[name] = future.result()
            except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                recorded[name] = {"error": f"{type(error).__name__}: {error}"}
            outcome = recorded[name].get("error", "recorded")
            print(f"[{len(recorded)}/{len(jobs)}] {name}: {outcome}", file=sys.stderr, flush=True)
    return {job.name: recorded[job.name] for job in jobs}


def jobs_named(patterns):
    """Those whose name contains one of the patterns; all of them without a pattern."""
    return [job for job in matrix.jobs() if not patterns or any(pattern in job.name for pattern in patterns)]
