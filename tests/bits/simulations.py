# SPDX-License-Identifier: Apache-2.0
"""Simulates schedules with the command line of one build and writes down what it says: all golden schedules, and every family that the
build generates, over sizes and costs."""
import concurrent.futures
import hashlib
import json
import subprocess
import sys

import matrix

# tests/golden/schedules/README.md explains the first two. The third has messages as long as a forward.
COSTS = {
    "unit": "F=1,I=1,W=1,B=2",
    "skew": "F=1,I=1.1,W=0.7,B=1.8,comm=0.1",
    "slow links": "F=1,I=1.3,W=0.9,B=2.2,comm=1",
}
SIZES = [(1, 4), (2, 2), (2, 7), (3, 6), (4, 8), (4, 16), (8, 8), (8, 24)]  # ranks, microbatches
SAID = ("makespan", "bubble_fraction", "span_bubble_fraction", "step_time")  # beside the digest of all that is printed
ATTEMPT_SECONDS = 300


def cases(takt):
    """{name: the arguments that say which schedule}."""
    schedules = matrix.GOLDEN / "schedules"
    found = {f"golden {file.relative_to(schedules)}": [str(file)] for file in sorted(schedules.glob("*/*.csv"))}
    listed = subprocess.run([takt, "schedule", "list", "-o", "json"], capture_output=True, text=True, check=True)
    families = json.loads(listed.stdout)
    families = families if isinstance(families, list) else families["families"]
    for family in [each["name"] for each in families]:
        for ranks, microbatches in SIZES:
            for chunks in (None, 4):
                name = f"{family} P={ranks} M={microbatches}" + (f" V={chunks}" if chunks else "")
                more = ["--chunks", str(chunks)] if chunks else []
                found[name] = [family, "--ranks", str(ranks), "--microbatches", str(microbatches), *more]
    return found


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def simulate(takt, source, costs):
    """What is printed; sizes that a family refuses are recorded as such, without the text."""
    command = [takt, "-o", "json", "schedule", "simulate", *source, "--cost", costs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ATTEMPT_SECONDS)
    if done.returncode == 2:
        return {"refused": True}
    if done.returncode != 0:
        return {"error": f"exit status {done.returncode}: {done.stderr.strip()[-500:]}"}
    report = json.loads(done.stdout, parse_float=str, parse_int=str)
    del report["schedule"]  # of a file it is a path
    return {**{key: report[key] for key in SAID}, "sha256": digest(report)}


def record(binaries, at_once):
    """{schedule and costs: what was simulated}."""
    takt = (binaries / "takt").resolve()
    work = [(f"{name}, {costs}", source, COSTS[costs]) for name, source in cases(takt).items() for costs in COSTS]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = list(pool.map(lambda each: simulate(takt, each[1], each[2]), work))
    recorded = {name: result for (name, _, _), result in zip(work, results)}
    refused = sum("refused" in result for result in results)
    print(f"{len(results)} simulations, of which {refused} were refused for their size", file=sys.stderr)
    return recorded
