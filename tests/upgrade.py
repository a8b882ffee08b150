#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Upgrades a cluster in place and shows that its jobs go on: the state directory, the checkpoints and the step logs of an older build
are taken over by a newer one.

    tests/upgrade.py OLD_BUILD NEW_BUILD        build directories such as build/release; half a minute on an idle machine

The old cluster finishes a job, pauses one, leaves one in the queue and trains one when its coordinator is replaced by the new one. Then the
old workers are replaced. The first one is of a job that trains, which goes on with one old and one new worker before the others follow.
Another one trains in bf16 on replicas that share the optimizer's state.
All jobs must end with the losses, digit for digit, that the old build computes without an upgrade, and old workers must be accepted or
refused as the two protocol versions demand.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_SECONDS = 240
OLD_WORKERS, NEW_WORKERS = 4, 8
OLDEST_PROTOCOL = 2  # kOldestProtocolVersion of common/base/version.h
STEPS = 1000  # long enough to be paused, and to be upgraded, in the middle


def job(name, steps, pipeline, every_steps):
    return {
        "name": name,
        "model": {"family": "gpt2", "layers": 8, "hidden": 16, "heads": 2, "context": 16, "vocab": 256},
        "data": {"train": {"path": "data.txt", "format": "bytes"}, "shuffle": True},
        "batch": {"global": 8, "microbatch": 2},
        "optimizer": {"adamw": {"learning_rate": 3e-3},
                      "lr_schedule": {"warmup_steps": 5, "decay": "cosine", "decay_steps": 2 * STEPS}},
        "steps": steps,
        "parallelism": {"pipeline": pipeline, "schedule": "1f1b", "threads": 1},
        "checkpoint": {"directory": name, "every_steps": every_steps},
        "seed": 7,
    }


def sharing_job():
    spec = job("sharing", 8 * STEPS, 1, 50)
    spec["precision"] = "bf16"
    spec["parallelism"].update(data=2, shard="optimizer")
    return spec


# One waits for more workers than the old cluster has.
JOBS = [job("finished", 6, 2, 2), job("paused", STEPS, 2, 0), job("running", 8 * STEPS, 2, 50), job("queued", 20, 6, 0), sharing_job()]


def expect(condition, text):
    if not condition:
        raise AssertionError(text)
    print(f"ok: {text}", flush=True)


def losses(lines):
    """{step: what was computed, in the digits that were printed}."""
    steps = [json.loads(line, parse_float=str, parse_int=str) for line in lines.splitlines()]
    return {int(step["step"]): (step["loss"], step["grad_norm"]) for step in steps}


class Cluster:
    """Processes over one directory, whichever build they are of. A context: they end with it."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="takt-upgrade-"))
        self.address = f"unix:{self.directory}/socket"
        self.processes = {}
        (self.directory / "data.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(3000)))
        for spec in JOBS:
            (self.directory / f"{spec['name']}.json").write_text(json.dumps(spec))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        for name in list(self.processes):
            self.processes[name].kill()
            self.processes[name].wait()
        if kind is None:
            shutil.rmtree(self.directory)
        else:
            print(f"logs are in {self.directory}", file=sys.stderr)

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def start(self, build, name, program, *arguments):
        with open(self.directory / f"{name}.log", "w") as log:
            command = [build / "bin" / program, *arguments, "--settings", ""]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def start_coordinator(self, build):
        self.start(build, "coordinator", "takt-coordinator", "--listen", self.address, "--state", self.directory / "state")
        self.wait_for("the coordinator answers", lambda: self.takt(build, "jobs", check=False) is not None)

    def start_worker(self, build, name):
        self.start(build, name, "takt-worker", "--coordinator", self.address, "--name", name, "--data-root", self.directory,
                   "--checkpoint-root", self.directory, "--device", "cpu", "--threads", "1", "--metrics-listen", "")

    def end(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(how)
        return process.wait(PATIENCE_SECONDS)

    def takt(self, build, *arguments, check=True):
        command = [build / "bin" / "takt", "--coordinator", self.address, "-o", "json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.directory, timeout=PATIENCE_SECONDS)
        if done.returncode != 0:
            if check:
                raise AssertionError(f"takt {' '.join(arguments)}: exit status {done.returncode}: {done.stderr}")
            return None
        return done.stdout

    def job(self, build, name):
        return json.loads(self.takt(build, "job", name))

    def state(self, build, name):
        return self.job(build, name)["state"]

    def wait_for(self, what, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what}")
            time.sleep(0.05)

    def wait_for_state(self, build, name, state):
        def reached():
            now = self.job(build, name)
            ended = now["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
            if ended and now["state"] != state:
                raise AssertionError(f"{name} is {now['state']}: {now['reason']}")
            return now["state"] == state

        self.wait_for(f"{name} is {state}", reached)

    def wait_for_step(self, build, name, step):
        self.wait_for(f"{name} is at step {step}", lambda: self.job(build, name).get("last_step", {}).get("step", 0) >= step)


def undisturbed(build):
    """The losses of every job, each trained in a cluster of its own by one build from start to end."""
    curves = {}
    with tempfile.TemporaryDirectory(prefix="takt-upgrade-") as directory:
        with Cluster() as files:
            shutil.copytree(files.directory, directory, dirs_exist_ok=True)
        for spec in JOBS:
            command = [build / "bin" / "takt", "local", "run", f"{directory}/{spec['name']}.json", "--device", "cpu", "-o", "json"]
            done = subprocess.run(command, capture_output=True, text=True)
            expect(done.returncode == 0, f"the old build trains '{spec['name']}' undisturbed{done.stderr * (done.returncode != 0)}")
            curves[spec["name"]] = losses(done.stdout)
    return curves


def protocol(build):
    text = subprocess.run([build / "bin" / "takt", "version", "-o", "json"], capture_output=True, text=True, check=True).stdout
    return json.loads(text)["protocol_version"]


def prepare(cluster, old):
    """The old cluster, with a job in each of the states that outlive a coordinator."""
    cluster.start_coordinator(old)
    for index in range(OLD_WORKERS):
        cluster.start_worker(old, f"old-{index}")
    cluster.takt(old, "submit", "finished.json")
    cluster.wait_for_state(old, "finished", "SUCCEEDED")
    cluster.takt(old, "submit", "paused.json")
    cluster.wait_for_step(old, "paused", 10)
    cluster.takt(old, "pause", "paused")
    cluster.wait_for_state(old, "paused", "PAUSED")
    cluster.takt(old, "submit", "queued.json")
    for name in ("running", "sharing"):
        cluster.takt(old, "submit", f"{name}.json")
        cluster.wait_for_step(old, name, 60)
    expect(cluster.state(old, "queued") == "QUEUED", "the old cluster has a job that waits for workers")
    expect(cluster.state(old, "running") == "RUNNING", "the old cluster trains a job while it is upgraded")


def replace_coordinator(cluster, old, new):
    finished = cluster.takt(old, "watch", "finished")
    expect(cluster.end("coordinator") == 0, "the old coordinator ends with exit status 0")
    cluster.start_coordinator(new)
    states = {name: cluster.state(new, name) for name in ("finished", "paused", "queued")}
    expect(states == {"finished": "SUCCEEDED", "paused": "PAUSED", "queued": "QUEUED"},
           f"the new coordinator finds all jobs as the old one left them: {states}")
    expect(losses(cluster.takt(new, "watch", "finished")) == losses(finished), "the step log of the finished job is the same")


def check_old_workers(cluster, old, new):
    """They dial again and are accepted or refused. A refused worker asks again until it is replaced."""
    before, after = protocol(old), protocol(new)
    if before >= OLDEST_PROTOCOL:
        cluster.wait_for("the old workers are attached again", lambda: sum(
            worker["state"] in ("IDLE", "BUSY") for worker in json.loads(cluster.takt(new, "workers"))["workers"]) == OLD_WORKERS)
        for name in ("running", "sharing"):
            step = cluster.job(new, name)["last_step"]["step"]
            cluster.wait_for_step(new, name, step + 20)
        expect(True, f"workers of protocol {before} train on under a coordinator of protocol {after}")
        return
    refusal = f"speaks protocol version {before}, this coordinator speaks version {after} "
    for name in [f"old-{index}" for index in range(OLD_WORKERS)]:
        cluster.wait_for(f"{name} is refused", lambda: refusal in cluster.log(name))
    print(f"ok: workers of protocol {before} are refused by a coordinator of protocol {after}", flush=True)


def ranks(cluster, new, name):
    """The workers that train a job now."""
    return {rank["worker"] for rank in cluster.job(new, name).get("ranks", [])}


def mix_workers(cluster, old, new):
    """Leaves one old worker of the job that trains, and gives it one new worker to go on with."""
    if protocol(old) < OLDEST_PROTOCOL:
        return
    cluster.wait_for("'running' has its workers", lambda: len(ranks(cluster, new, "running")) == 2)
    stays = min(ranks(cluster, new, "running"))
    for name in [name for name in cluster.processes if name.startswith("old-") and name != stays]:
        cluster.end(name)
    cluster.start_worker(new, "new-0")
    cluster.wait_for("'running' has an old and a new worker", lambda: ranks(cluster, new, "running") == {stays, "new-0"})
    step = cluster.job(new, "running")["last_step"]["step"]
    cluster.wait_for_step(new, "running", step + 50)
    expect(ranks(cluster, new, "running") == {stays, "new-0"},
           f"workers of protocol {protocol(old)} and {protocol(new)} train 'running' together from step {step} to {step + 50}")


def replace_workers(cluster, new):
    for name in [name for name in cluster.processes if name.startswith("old-")]:
        cluster.end(name)
    for name in [f"new-{index}" for index in range(NEW_WORKERS)]:
        if name not in cluster.processes:
            cluster.start_worker(new, name)
    cluster.takt(new, "resume", "paused")


def check_results(cluster, new, expected):
    for name, curve in expected.items():
        cluster.wait_for_state(new, name, "SUCCEEDED")
        computed = losses(cluster.takt(new, "watch", name))
        wrong = [step for step in curve if computed.get(step) != curve[step]]
        expect(computed == curve, f"'{name}': the losses of all {len(curve)} steps are those of the old build undisturbed"
               + (f"; step {wrong[0]} differs: {computed.get(wrong[0])} and {curve[wrong[0]]}" if wrong else ""))
        cluster.takt(new, "checkpoint", "verify", str(cluster.directory / name))
    for name in ("paused", "running", "sharing"):
        expect(cluster.job(new, name).get("resumed_step", 0) > 0, f"'{name}' was resumed from a checkpoint of the old build")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    options = parser.parse_args()
    old, new = options.old.resolve(), options.new.resolve()
    expected = undisturbed(old)
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        prepare(cluster, old)
        replace_coordinator(cluster, old, new)
        check_old_workers(cluster, old, new)
        mix_workers(cluster, old, new)
        replace_workers(cluster, new)
        check_results(cluster, new, expected)
    print("upgrade: all jobs went on")


try:
    main()
except AssertionError as failure:
    sys.exit(f"upgrade: FAILED: {failure}")
