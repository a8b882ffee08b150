# SPDX-License-Identifier: Apache-2.0
"""Faults caused for real set off their alerts, in a Prometheus that knows the rules of dashboards/prometheus with minutes made seconds.

What this machine does not let us cause (a debugger's stop, a limit on memory, a disk of its own) is skipped aloud.

  alerts_test.py BIN [unittest's arguments]      BIN: the folder of takt, takt-coordinator and takt-worker
"""
import ctypes
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import dashboards
import jobs
import small_disk
import stack

SECONDS = 120  # an alert must fire within this time


def hastened(directory):
    """Copies of the rules in which a minute is a second, and the minute that a job must stand still six of them."""
    files = []
    for source in sorted((dashboards.ROOT / "dashboards" / "prometheus" / "rules").glob("*.yaml")):
        files.append(directory / source.name)
        files[-1].write_text(re.sub(r"> 60$", "> 6", re.sub(r"\b(\d+)m\b", r"\1s", source.read_text()), flags=re.MULTILINE))
    return files


def breaking(directory):
    """A job whose learning rate is so large that its weights stop being numbers."""
    job = jobs.gpt(directory)
    job.update(name="breaking", parallelism={"pipeline": 2, "threads": 1})
    job["optimizer"] = {"adamw": {"learning_rate": 1e30}}
    del job["checkpoint"], job["data"]["validation"]
    return job


def spiking(file):
    """A job whose data is one byte again and again, which it learns at once."""
    file.write_bytes(b"a" * 65536)
    return {
        "name": "spiking",
        "model": {"family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "context": 32, "vocab": 256},
        "data": {"train": {"path": str(file), "format": "bytes"}},
        "batch": {"global": 16, "microbatch": 8},
        "optimizer": {"adamw": {"learning_rate": 1e-3}},
        "steps": 1_000_000,
        "parallelism": {"pipeline": 2, "threads": 1},
    }


class Seized:
    """A context that stops one thread of a process, as a debugger does. The others go on, so that the process neither is nor seems dead."""

    SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17

    def __init__(self, pid, name):
        tasks = pathlib.Path(f"/proc/{pid}/task")
        self._tid = next(int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name)

    def __enter__(self):
        self._ptrace(self.SEIZE)
        self._ptrace(self.INTERRUPT)

    def __exit__(self, *error):
        self._ptrace(self.DETACH)

    def _ptrace(self, request):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        if libc.ptrace(request, self._tid, 0, 0) != 0:
            raise unittest.SkipTest(f"ptrace is not permitted here: {os.strerror(ctypes.get_errno())}")


class MemoryLimit:
    """A context that puts a process into a control group of its own, with a limit."""

    def __init__(self, pid, limit_bytes):
        self._pid, self._limit = pid, limit_bytes

    def __enter__(self):
        self._parent, limit_file = self._find()
        self._group = self._parent / f"takt-test-{self._pid}"
        try:
            self._group.mkdir()
            (self._group / limit_file).write_text(str(self._limit))
            (self._group / "cgroup.procs").write_text(str(self._pid))
        except OSError as error:
            self._remove()
            raise unittest.SkipTest(f"no memory limit can be set here: {error}") from None

    def __exit__(self, *error):
        self._remove()

    def _remove(self):
        if self._group.exists():
            (self._parent / "cgroup.procs").write_text(str(self._pid))
            self._group.rmdir()

    def _find(self):
        """The group that the process is in, of either hierarchy, and the name of the file with its limit."""
        for line in pathlib.Path(f"/proc/{self._pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "memory":
                return pathlib.Path("/sys/fs/cgroup/memory") / group.lstrip("/"), "memory.limit_in_bytes"
            if controllers == "":
                unified = pathlib.Path("/sys/fs/cgroup") / group.lstrip("/"), "memory.max"
        return unified


class Hindered:
    """A context that lets a process stand still most of the time, so that each of its instructions of 5 ms takes several times as long."""

    def __init__(self, pid):
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._hinder)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()

    def _hinder(self):
        while not self._end.wait(0.002):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(0.040)
            os.kill(self._pid, signal.SIGCONT)


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.issue("init", cls.directory)
        cls.issue("issue", cls.directory, "worker", "w9")
        tls = [f"--tls-{file}={cls.directory / name}" for file, name in (("certificate", "w9.pem"), ("key", "w9.key"), ("authority", "ca.pem"))]
        cls.stack = cls.enterClassContext(
            stack.Stack(
                BINARIES,
                num_workers=10,
                rule_files=hastened(cls.directory),
                worker_arguments={"w9": tls},
                disks={"checkpoints": "16m", "state/traces": "128k"},
            )
        )
        for job in (jobs.gpt(cls.stack.directory, checkpoint_every=5), jobs.emulated(), breaking(cls.stack.directory)):
            cls.stack.submit(job)

    @staticmethod
    def issue(*arguments):
        subprocess.run([pathlib.Path(BINARIES) / "takt", "certs", *arguments], check=True, capture_output=True)

    def fires(self, name, meanwhile=lambda: None, **labels):
        """meanwhile: called before each look."""

        def firing():
            meanwhile()
            return [
                alert
                for alert in self.stack.api("alerts")["alerts"]
                if alert["labels"]["alertname"] == name and alert["state"] == "firing" and labels.items() <= alert["labels"].items()
            ]

        begin = time.monotonic()
        alert = stack.await_true(f"{name} fires", firing, SECONDS)[0]
        print(f"{name:22} {time.monotonic() - begin:4.1f} s  {alert['annotations']['summary']}")

    def worker_of(self, job, pp_rank):
        labels, _ = stack.await_true("a worker tells its rank", lambda: self.stack.query(f'takt_rank_info{{job="{job}",pp_rank="{pp_rank}"}}'))[0]
        return f"w{self.stack.targets.index(labels['instance']) - 1}"

    def await_query(self, expression):
        stack.await_true(expression, lambda: self.stack.query(expression), SECONDS)

    # They run in the order of their names. The last ones end what the others need.
    def test_1_a_loss_that_breaks(self):
        self.fires("TaktLossNotFinite", job="breaking")
        self.stack.takt("cancel", "breaking")

    def test_2_a_loss_that_jumps(self):
        file = self.directory / "data"
        self.stack.submit(spiking(file))
        # It is so long that the median is still the same when the alert has waited.
        learnt = 'takt_loss{job="spiking"}[30s]'
        self.await_query(f"quantile_over_time(0.5, {learnt}) < 0.5 and count_over_time({learnt}) > 15")
        with file.open("r+b") as data:  # the file that is being read
            data.write(random.Random(1).randbytes(file.stat().st_size))
        self.fires("TaktLossSpiking", job="spiking")

    def test_3_a_stage_that_is_slow(self):
        self.await_query('takt_rank_compute_seconds{job="emulated"}')
        with Hindered(self.stack.pid(self.worker_of("emulated", 2))):
            self.fires("TaktStragglingStage", job="emulated", pp_rank="2")
            self.fires("TaktBubbleAbovePrediction", job="emulated")

    def test_4_a_thread_that_stands_still(self):
        with Seized(self.stack.pid(self.worker_of("emulated", 1)), "takt/compute"):
            self.fires("TaktJobStalled", job="emulated")

    def test_5_memory_that_ends(self):
        labels, used = self.stack.query("sum without (kind) (takt_memory_bytes)")[0]
        pid = self.stack.pid(f"w{self.stack.targets.index(labels['instance']) - 1}")
        with MemoryLimit(pid, int(used / 0.95)):
            self.fires("TaktMemoryNearLimit", instance=labels["instance"])

    def test_6_a_certificate_that_expires(self):
        self.issue("issue", self.directory, "worker", "w9", "--renew", "--days", "1")
        self.fires("TaktCertificateExpiring", instance=self.stack.targets[-1])

    def test_7_a_disk_that_takes_no_more(self):
        if self.stack.disk_error is not None:
            self.skipTest(f"no small disk can be mounted here: {self.stack.disk_error}")
        self.await_query('takt_checkpoint_step{job="gpt"} > 0')
        filler = self.stack.directory / "checkpoints" / "filler"
        # The removal of a step that was complete before makes room again.
        self.fires("TaktCheckpointFailing", meanwhile=lambda: small_disk.fill(filler), job="gpt")
        self.fires("TaktCheckpointTooOld", job="gpt")
        step = self.stack.query('takt_job_step{job="gpt"}')[0][1]
        filler.unlink()
        self.await_query(f'takt_checkpoint_step{{job="gpt"}} > {step}')

        # The disk of the coordinator's traces fills by itself. The coordinator says so once and goes on; the newest steps are still explained.
        complaint = "traces cannot be kept"
        stack.await_true("the disk for traces is full", lambda: complaint in self.stack.log("coordinator"), SECONDS)
        self.assertIn("runtime", self.stack.takt("explain", "gpt"))
        self.await_query('changes(takt_step_component_seconds{job="gpt",component="compute"}[5s]) > 0')
        self.assertEqual(self.stack.log("coordinator").count(complaint), 1)

    def test_8_a_worker_that_dies(self):
        name = self.worker_of("emulated", 1)
        os.kill(self.stack.pid(name), signal.SIGKILL)
        self.fires("TaktWorkerLost", worker=name)
        self.fires("TaktWorkerNotScraped")

    def test_9_a_coordinator_that_is_gone(self):
        os.kill(self.stack.pid("coordinator"), signal.SIGKILL)
        self.fires("TaktCoordinatorDown")


class Scrapes(unittest.TestCase):
    def test_a_page_is_whole_from_the_first_to_the_last_one(self):
        """It scrapes while everything starts, while a job begins and ends, and while everything is told to stop."""
        pages = []

        def scrape(targets, end):
            while not end.is_set():
                for target in targets:
                    try:
                        with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as page:
                            pages.append(page.read().decode())
                    except OSError:
                        pass  # it has ended already

        job = jobs.emulated()
        job.update(name="short", steps=20)
        with stack.Stack(BINARIES, num_workers=4) as cluster:
            end = threading.Event()
            scraper = threading.Thread(target=scrape, args=(cluster.targets, end))
            scraper.start()
            cluster.submit(job)
            cluster.takt("wait", "short")
            pids = [cluster.pid(name) for name in ("coordinator", "w0", "w1", "w2", "w3")]
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            for name in ("coordinator", "w0", "w1", "w2", "w3"):
                self.assertEqual(cluster.wait(name), 0, name)
            end.set()
            scraper.join()
        self.assertGreater(len(pages), 0)
        for page in pages:
            self.assertTrue(page.endswith("\n"), page[-200:])
            self.assertIn("takt_build_info", page)


if __name__ == "__main__":
    if not stack.is_installed():
        print("prometheus is not installed (deploy/install-deps.sh)")
        sys.exit(0)
    BINARIES = sys.argv.pop(1)
    unittest.main()
