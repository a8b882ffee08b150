# SPDX-License-Identifier: Apache-2.0
"""Faults caused for real set off their alerts, in a Prometheus that knows the rules of dashboards/prometheus with minutes made seconds.

  alerts_test.py BIN [unittest's arguments]      BIN: the folder of takt, takt-coordinator and takt-worker
"""
import os
import pathlib
import re
import resource
import signal
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import dashboards
import jobs
import stack

SECONDS = 120  # until an alert fires, at most


def hastened(directory):
    """Copies of the rules in which a minute is a second."""
    files = []
    for source in sorted((dashboards.ROOT / "dashboards" / "prometheus" / "rules").glob("*.yaml")):
        files.append(directory / source.name)
        files[-1].write_text(re.sub(r"\b(\d+)m\b", r"\1s", source.read_text()))
    return files


def breaking(directory):
    """Its learning rate lets no weight live."""
    job = jobs.gpt(directory)
    job.update(name="breaking", parallelism={"pipeline": 2, "threads": 1})
    job["optimizer"] = {"adamw": {"learning_rate": 1e30}}
    del job["checkpoint"], job["data"]["validation"]
    return job


class Hindered:
    """A context: a process that stands still most of the time: each of its instructions, of 5 ms, takes several times that."""

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
        rules = hastened(pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.stack = cls.enterClassContext(stack.Stack(BINARIES, num_workers=10, rule_files=rules))
        for job in (jobs.gpt(cls.stack.directory, checkpoint_every=5), jobs.emulated(), breaking(cls.stack.directory)):
            cls.stack.submit(job)

    def fires(self, name, **labels):
        def firing():
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

    # In the order of their names: the last ones end what the others need.
    def test_1_a_loss_that_breaks(self):
        self.fires("TaktLossNotFinite", job="breaking")

    def test_2_a_stage_that_is_slow(self):
        self.await_query('takt_rank_compute_seconds{job="emulated"}')
        with Hindered(self.stack.pid(self.worker_of("emulated", 2))):
            self.fires("TaktStragglingStage", job="emulated", pp_rank="2")

    def test_3_a_disk_that_takes_no_more(self):
        self.await_query('takt_checkpoint_step{job="gpt"} > 0')
        resource.prlimit(self.stack.pid(self.worker_of("gpt", 1)), resource.RLIMIT_FSIZE, (4096, 4096))
        self.fires("TaktCheckpointFailing", job="gpt")
        self.fires("TaktCheckpointTooOld", job="gpt")

    def test_4_a_worker_that_dies(self):
        name = self.worker_of("emulated", 1)
        os.kill(self.stack.pid(name), signal.SIGKILL)
        self.fires("TaktWorkerLost", worker=name)
        self.fires("TaktWorkerNotScraped")

    def test_5_a_coordinator_that_is_gone(self):
        os.kill(self.stack.pid("coordinator"), signal.SIGKILL)
        self.fires("TaktCoordinatorDown")


class Scrapes(unittest.TestCase):
    def test_a_page_is_whole_from_the_first_to_the_last_one(self):
        """While everything starts, a job begins and ends, and everything is told to stop."""
        pages = []

        def scrape(targets, end):
            while not end.is_set():
                for target in targets:
                    try:
                        with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as page:
                            pages.append(page.read().decode())
                    except OSError:
                        pass  # not there any more

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
