#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the page of `takt ui` and prints each figure beside its limit (docs/ui.md). Ends with 1 if one is above it.

  tests/ui/figures.py BUILD     BUILD: build/release

It wants an idle machine, and takes two minutes. The first paint and the cost of ten viewers are of the coordinator that
is made up (ui_stage.cc), which has 1,031 workers. The others are of a real job on a cluster of this machine.
"""

import datetime
import json
import multiprocessing
import os
import pathlib
import random
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import browser
import served

PAGES = ["#/", "#/jobs/kjv-gpt", "#/jobs/llama-70b/timeline?first=64", "#/schedules?family=zb-h1&P=4&M=8&V=1"]
LOADS = 5  # of each page
VIEWERS, VIEWER_SECONDS = 10, 20
LIVE_SECONDS = 10
FLOOD_SECONDS = 20
READERS, GARBAGE_A_SECOND = 1000, 100
STEPS = 600
# A step takes 11 times 15 ms.
JOB = f"""name: figures
model: {{family: emulated, layers: 4, forward_ms: 5, input_grad_ms: 5, weight_grad_ms: 5, activation_bytes: 4096}}
batch: {{global: 8, microbatch: 1}}
steps: {STEPS}
parallelism: {{pipeline: 4, data: 1, schedule: 1f1b}}
"""
# Notes at what time each step is on the screen.
WATCH_STEPS = """(() => {
  window.seenAt = {};
  let last = 0;
  new MutationObserver(() => {
    const bar = document.querySelector('progress');
    if (!bar || bar.value <= last) return;
    const step = last = bar.value;
    requestAnimationFrame(() => setTimeout(() => { window.seenAt[step] = Date.now(); }));
  }).observe(document.body, {subtree: true, childList: true, attributes: true});
})()"""


def first_paints(chromium, address):
    """Milliseconds from the request to the first paint, of each load."""
    paint = "performance.getEntriesByName('first-contentful-paint')"
    times = []
    for fragment in PAGES * LOADS:
        page = chromium.page()
        page.show(1280, 900, False)
        page.open(address + fragment)
        page.wait_for(paint + ".length")
        times.append(page.evaluate(paint + "[0].startTime"))
        page.call("Page.close")
    return times


def share_of_core(ui):
    """What `takt ui` uses while ten viewers look at the cluster, a job and its timeline."""
    request = ui.stream_request("cluster", "job:kjv-gpt", "timeline:kjv-gpt")
    viewers = [ui.connect(request) for _ in range(VIEWERS)]

    def read(seconds):
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for viewer in select.select(viewers, [], [], left)[0]:
                assert viewer.recv(1 << 20), "takt ui has closed a stream"

    read(5)
    used, begin = ui.processor_seconds(), time.monotonic()
    read(VIEWER_SECONDS)
    share = (ui.processor_seconds() - used) / (time.monotonic() - begin)
    for viewer in viewers:
        viewer.close()
    return share


def live_steps(chromium, address):
    """By step, when a page that somebody looks at showed it, in seconds since 1970."""
    page = chromium.page()
    page.show(1280, 900, False)
    page.open(address + "#/jobs/figures")
    page.wait_for("Number(document.querySelector('progress').value) > 0")
    page.evaluate(WATCH_STEPS)
    time.sleep(LIVE_SECONDS)
    seen = page.evaluate("window.seenAt")
    page.call("Page.close")
    # The first one may have been there already.
    return {int(step): milliseconds / 1000 for step, milliseconds in list(seen.items())[1:]}


def flood(port, request, is_there, stop):
    """Opens the streams, then reads a byte a second of each, and meanwhile sends garbage."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    readers = []
    for _ in range(READERS):
        readers.append(socket.create_connection(("127.0.0.1", port)))
        try:
            readers[-1].sendall(request)
        except OSError:
            pass  # it was refused at once
    is_there.set()
    generator = random.Random(1)
    while not stop.is_set():
        for reader in readers:
            try:
                reader.recv(1, socket.MSG_DONTWAIT)
            except OSError:
                pass  # nothing is there, or it was refused
        for _ in range(GARBAGE_A_SECOND):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                    connection.sendall(generator.randbytes(generator.randrange(1, 1 << 15)))
            except OSError:
                pass  # it was closed before it had all
        stop.wait(1)


def flooded_span(ui):
    """Floods the page's port, and returns from when to when, in seconds since 1970."""
    is_there, stop = multiprocessing.Event(), multiprocessing.Event()
    process = multiprocessing.Process(target=flood, args=(ui.port, ui.stream_request("job:figures"), is_there, stop))
    process.start()
    try:
        assert is_there.wait(60), "the readers did not come"
        begin = time.time()
        time.sleep(FLOOD_SECONDS)
        return begin, time.time()
    finally:
        stop.set()
        process.join(30)
        assert process.exitcode == 0, f"the flood ended with {process.exitcode}"


def steps_of(lines):
    """The steps that `takt watch` printed: [(step, when it was committed, how long it took)]."""
    for step in map(json.loads, lines.splitlines()):
        # Python reads six digits of a second.
        whole, fraction = step["time"].removesuffix("Z").partition(".")[::2]
        committed = datetime.datetime.fromisoformat(whole + "+00:00").timestamp() + float("0." + (fraction or "0"))
        yield step["step"], committed, step["step_seconds"]


def of_a_real_job(build, chromium):
    """The delays of steps on the page, and the step time under a flood over that without."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="takt-figures-", dir="/tmp"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAKT_")}
    environment["XDG_STATE_HOME"] = str(folder / "state")
    takt = str(pathlib.Path(build).resolve() / "bin" / "takt")

    def run(*arguments):
        subprocess.run([takt, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)

    (folder / "figures.yaml").write_text(JOB)
    run("local", "up", "--workers", "4")
    try:
        run("job", "submit", str(folder / "figures.yaml"))
        with open(folder / "steps", "w") as steps:
            watch = subprocess.Popen([takt, "-o", "json", "job", "watch", "figures"], env=environment, stdout=steps)
        with served.Ui(build, environment=environment) as ui:
            seen = live_steps(chromium, ui.address)
            calm_begin = time.time()
            time.sleep(FLOOD_SECONDS)
            calm = calm_begin, time.time()
            flooded = flooded_span(ui)
        assert watch.wait(STEPS) == 0, "the job has not succeeded"
        steps = list(steps_of((folder / "steps").read_text()))
    finally:
        run("local", "down")
        shutil.rmtree(folder, ignore_errors=True)
    assert [number for number, _, _ in steps] == list(range(1, STEPS + 1)), "not every step came once"
    committed = {number: when for number, when, _ in steps}

    def median(span):
        return statistics.median(seconds for _, when, seconds in steps if span[0] < when < span[1])

    return [at - committed[step] for step, at in seen.items()], median(flooded) / median(calm)


def main(build):
    if not browser.is_installed():
        print("chromium is not installed: deploy/install-deps.sh --browser")
        return 2
    with browser.Browser() as chromium:
        with served.Stage(build) as stage, served.Ui(build, stage.coordinator) as ui:
            share = share_of_core(ui)  # first: what somebody has looked at is followed for a while
            paints = first_paints(chromium, ui.address)
        delays, slowdown = of_a_real_job(build, chromium)
    rows = [
        (f"first paint, slowest of {len(paints)} loads", max(paints), 1000, "{:.0f} ms"),
        (f"a step on the page after its commit, slowest of {len(delays)}", 1000 * max(delays), 500, "{:.0f} ms"),
        (f"takt ui with {VIEWERS} viewers", 100 * share, 2, "{:.2f} % of a core"),
        (f"step time under {READERS} slow readers and garbage, over that without", slowdown, 1.1, "{:.3f}"),
    ]
    above = False
    for name, value, limit, form in rows:
        above = above or value > limit
        print(f"{name:72} {form.format(value):>20}   limit {form.format(limit)}{'   ABOVE' if value > limit else ''}")
    return 1 if above else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
