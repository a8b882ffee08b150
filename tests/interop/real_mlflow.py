#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends the curves of jobs to a real `mlflow server` and reads them back with MLflow's own client.

usage: real_mlflow.py BIN

The server keeps its runs in SQLite and listens on loopback. One job trains while the server is away. Then the coordinator
starts anew, and another job trains while the server is there. Each job must be one run with each step once, with the
values that `takt job watch` prints, and with the fields, the owner and the end of the job.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

os.environ["no_proxy"] = "127.0.0.1"  # for MLflow's client and for the coordinator

import mlflow

SOURCE = pathlib.Path(__file__).resolve().parents[2]
EXPERIMENT = "takt interop"
STEPS, VALIDATE_EVERY = 30, 10
PATIENCE_SECONDS = 180
# The names in MLflow, and those of `takt job watch`.
METRICS = {
    "train/loss": "loss",
    "train/grad_norm": "grad_norm",
    "train/learning_rate": "learning_rate",
    "train/step_time_seconds": "step_seconds",
    "train/bubble_fraction": "bubble_fraction",
    "train/tokens_per_second": "tokens_per_second",
    "validation/loss": "validation_loss",
}
JOB = f"""
model: {{family: gpt2, layers: 2, hidden: 32, heads: 2, context: 32, vocab: 256}}
data:
  train: {{path: tiny.txt, format: bytes}}
  validation: {{path: tiny.txt, format: bytes, every_steps: {VALIDATE_EVERY}, batches: 1}}
batch: {{global: 4, microbatch: 2}}
optimizer: {{adamw: {{learning_rate: 1.0e-3}}}}
steps: {STEPS}
parallelism: {{pipeline: 2, data: 1, schedule: 1f1b}}
logging: {{mlflow: {EXPERIMENT}}}
seed: 1
"""


def await_true(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_SECONDS} s"
        time.sleep(0.5)


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Server:
    """A real MLflow server. A context."""

    def __init__(self, folder, port):
        self.address = f"http://127.0.0.1:{port}"
        with open(folder / "server.log", "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
                 "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder / "artifacts")],
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        await_true("the server", self._is_there)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the processes that it has left
        self._process.wait()

    def _is_there(self):
        assert self._process.poll() is None, f"mlflow server ended with {self._process.returncode}"
        try:
            return urllib.request.urlopen(self.address + "/health", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False


class Cluster:
    """A coordinator that knows the address of the server, and two workers. A context."""

    def __init__(self, binaries, folder, mlflow_address):
        self._takt = str(binaries / "takt")
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TAKT_")}
        self._environment = environment | {"XDG_STATE_HOME": str(folder / "state"), "TAKT_COORDINATOR_MLFLOW": mlflow_address}

    def __enter__(self):
        self._run("local", "up", "--workers", "2")
        return self

    def __exit__(self, *_):
        self._run("local", "down")

    def _run(self, *arguments):
        done = subprocess.run([self._takt, *arguments], env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, f"takt {arguments}: {done.stderr[-2000:]}"
        return done.stdout

    def train(self, name):
        """Returns the job when it has ended, and its steps."""
        file = self._folder / f"{name}.yaml"
        file.write_text(f"name: {name}\n{JOB}")
        self._run("job", "submit", str(file), "--wait")
        job = json.loads(self._run("-o", "json", "job", "show", name))
        steps = list(map(json.loads, self._run("-o", "json", "job", "watch", name).splitlines()))
        assert len(steps) == STEPS, name
        return job, steps


def find_runs(client, name):
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        return []
    return [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == name]


def check_run(client, name, job, steps):
    """The run must hold what the job's step log has."""
    def has_ended():
        found = find_runs(client, name)
        return found and found[0].info.status == "FINISHED"

    await_true(f"the run {name}", has_ended)
    runs = find_runs(client, name)
    assert len(runs) == 1, f"{name} has {len(runs)} runs"
    run = runs[0]
    assert run.info.end_time and run.info.start_time <= run.info.end_time, run.info
    assert run.data.params["model.layers"] == "2", run.data.params
    assert run.data.params["parallelism.schedule"] == "1f1b", run.data.params
    assert run.data.tags["takt_job_id"], run.data.tags
    assert not job["owner"] or run.data.tags["mlflow.user"] == job["owner"], run.data.tags
    for metric, field in METRICS.items():
        sent = [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, metric)]
        logged = [(step["step"], step[field]) for step in steps if step.get(field) is not None]
        assert logged and sorted(sent) == logged, f"{name}, {metric}: {sorted(sent)} instead of {logged}"
    print(f"{name}: one run, {len(METRICS)} metrics, {len(steps)} steps each once, {len(run.data.params)} parameters")


def main(binaries):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="takt-mlflow-", dir="/tmp"))
    try:
        shutil.copy(SOURCE / "deploy/examples/tiny.txt", folder)
        port = free_port()
        address = f"http://127.0.0.1:{port}"
        with Cluster(binaries, folder, address) as cluster:
            early = cluster.train("early")
        with Server(folder, port) as server:
            client = mlflow.MlflowClient(tracking_uri=server.address)
            with Cluster(binaries, folder, address) as cluster:
                check_run(client, "early", *early)
                check_run(client, "live", *cluster.train("live"))
            assert len(find_runs(client, "early")) == 1, "the coordinator sent a job again"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"mlflow {mlflow.__version__}: the curves are as in the step logs")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).resolve())
