# SPDX-License-Identifier: Apache-2.0
"""A coordinator, workers and a Prometheus that scrapes them. They are real processes in a directory of their own, on ports that the
kernel chooses."""
import contextlib
import ctypes
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request

import yaml

import small_disk

SCRAPE_INTERVAL = "1s"  # also the time limit of a scrape; a shorter one makes gaps on a busy machine
RATE_INTERVAL = "5s"  # as Grafana derives it: four scrapes and the step of the graph
PATIENCE_SECONDS = 120


def is_installed():
    return shutil.which("prometheus") is not None


def await_true(what, condition, seconds=PATIENCE_SECONDS):
    """The first value of `condition()` that is true."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.1)


class Stack:
    """A context. What it started ends with it, or with this process."""

    def __init__(self, binaries, num_workers, rule_files=(), worker_arguments=None, disks=None):
        """worker_arguments: {worker: more arguments}. disks: {place in `directory`: size} of small disks; see `disk_error`."""
        self._disks = disks or {}
        self.disk_error = None  # why this machine has no small disks
        self._mounts = contextlib.ExitStack()
        self._binaries = pathlib.Path(binaries)
        self._worker_arguments = worker_arguments or {}
        self._num_workers = num_workers
        self._rule_files = [str(file) for file in rule_files]
        self._processes = {}

    def __enter__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="takt-dashboards-"))
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error):
        for name in self._processes:
            self.kill(name)
        self._mounts.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def kill(self, name):
        """name: "coordinator", "prometheus", or that of a worker: w0, w1, ..."""
        self._processes[name].kill()
        self._processes[name].wait()

    def pid(self, name):
        return self._processes[name].pid

    def wait(self, name):
        """Its exit code."""
        return self._processes[name].wait(PATIENCE_SECONDS)

    def submit(self, job):
        """job: the content of a job file."""
        file = self.directory / f"{job['name']}.yaml"
        file.write_text(yaml.safe_dump(job))
        self.takt("submit", file)

    def log(self, name):
        return (self.directory / f"{name}.log").read_text()

    def takt(self, *arguments):
        command = [self._binaries / "takt", "--coordinator", self._address, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"takt {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def api(self, path, **parameters):
        """The data of the answer. ValueError says why Prometheus refuses the request."""
        url = f"http://{self._prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{json.load(error)['error']}: {parameters}") from None

    def query(self, expression):
        """[(labels, value)] at this moment."""
        return [(sample["metric"], float(sample["value"][1])) for sample in self.api("query", query=expression)["result"]]

    def _mount(self):
        for place, size in self._disks.items():
            (self.directory / place).mkdir(parents=True)
            try:
                self._mounts.enter_context(small_disk.mounted(self.directory / place, size))
            except OSError as error:
                self.disk_error = error

    def _start(self):
        self._mount()
        coordinator_file = self.directory / "state" / "coordinator.json"
        self._address = f"unix:{self.directory}/socket"
        metrics = ["--metrics-listen", "127.0.0.1:0", "--settings", ""]
        self._spawn("coordinator", "takt-coordinator", "--state", coordinator_file.parent, "--listen", self._address, *metrics)
        self._await_file(coordinator_file)
        files = [self.directory / f"w{i}.json" for i in range(self._num_workers)]
        for file in files:
            arguments = ["--coordinator", self._address, "--name", file.stem, "--data-root", "/", "--checkpoint-root", "/", "--device", "cpu"]
            arguments += self._worker_arguments.get(file.stem, [])
            self._spawn(file.stem, "takt-worker", *arguments, "--threads", "1", "--state-file", file, *metrics)
        coordinator = self._await_file(coordinator_file)["metrics"]
        workers = [self._await_file(file)["metrics_address"] for file in files]
        self.targets = [coordinator, *workers]
        self._start_prometheus([coordinator], workers)

    def _start_prometheus(self, coordinator, workers):
        config = {
            "global": {"scrape_interval": SCRAPE_INTERVAL, "evaluation_interval": "1s"},
            "rule_files": self._rule_files,
            "scrape_configs": [
                {"job_name": name, "honor_labels": True, "static_configs": [{"targets": targets}]}
                for name, targets in (("takt-coordinator", coordinator), ("takt-worker", workers))
            ],
        }
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._spawn(
            "prometheus",
            shutil.which("prometheus"),
            f"--config.file={self.directory}/prometheus.yaml",
            f"--storage.tsdb.path={self.directory}/tsdb",
            "--web.listen-address=127.0.0.1:0",
        )
        log = self.directory / "prometheus.log"
        listening = re.compile(r'msg="Listening on" address=(\S+)')
        self._prometheus = await_true("Prometheus listens", lambda: listening.search(log.read_text()))[1]

    def _spawn(self, name, program, *arguments):
        with open(self.directory / f"{name}.log", "w") as log:
            command = [self._binaries / program, *arguments]
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)

    def _await_file(self, file):
        return json.loads(await_true(f"{file.name} is written", lambda: file.exists() and file.read_text()))


def _die_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
