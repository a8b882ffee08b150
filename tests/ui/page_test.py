#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the page of `takt ui` in a headless Chromium, before a coordinator that is made up (ui_stage.cc).

  tests/ui/page_test.py BUILD [--pictures FOLDER]     BUILD: build/release; pictures of all pages go to FOLDER
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse

import browser

HERE = pathlib.Path(__file__).parent
CHECKS = (HERE / "checks.js").read_text()
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
# What each page shows at the least, and what it is called among the pictures.
PAGES = {
    "cluster": ("#/", "document.querySelectorAll('main table').length >= 3"),
    "jobs": ("#/jobs", "document.querySelectorAll('main tbody tr').length === 4"),
    "job": ("#/jobs/kjv-gpt", "document.querySelectorAll('polyline').length === 6 && document.querySelector('svg.bar')"),
    "timeline": ("#/jobs/kjv-gpt/timeline", "document.getElementById('range').textContent.includes(' ms of ')"),
    "ranks": ("#/jobs/kjv-gpt/ranks", "document.querySelectorAll('main tbody tr').length === 8"),
    "faults": ("#/jobs/gpt2-124m/faults", "document.querySelectorAll('details').length === 4"),
    "logs": ("#/jobs/kjv-gpt/logs", "document.querySelectorAll('#log li').length >= 60"),
    "spec": ("#/jobs/kjv-gpt/spec", "document.querySelector('pre').textContent.includes('checkpoints')"),
    "timeline-1024": ("#/jobs/llama-70b/timeline?first=64", "document.getElementById('range').textContent.includes(' ms of ')"),
    "schedules": ("#/schedules?family=zb-h1&P=4&M=8&V=1", "document.querySelector('iframe')"),
}
ARGUMENTS = None


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        build = pathlib.Path(ARGUMENTS.build)
        cls.stage = subprocess.Popen([build / "tests" / "ui_stage"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        coordinator = cls.stage.stdout.readline().strip()
        cls.ui = subprocess.Popen([build / "bin" / "takt", "--coordinator", coordinator, "-o", "json", "ui"],
                                  stdout=subprocess.PIPE, text=True)
        answer = json.loads(cls.ui.stdout.readline())
        cls.address, cls.port = answer["url"], answer["port"]
        cls.pictures = pathlib.Path(ARGUMENTS.pictures) if ARGUMENTS.pictures else None
        if cls.pictures:
            cls.pictures.mkdir(parents=True, exist_ok=True)
        cls.browser = browser.Browser().__enter__()
        cls.addClassCleanup(cls.end)

    @classmethod
    def end(cls):
        cls.browser.__exit__(None, None, None)
        cls.ui.terminate()
        cls.ui_status = cls.ui.wait(30)
        cls.stage.stdin.close()
        cls.stage.wait(30)
        cls.ui.stdout.close()
        cls.stage.stdout.close()
        assert cls.ui_status == 0, f"takt ui ended with {cls.ui_status}"

    def open(self, name, size="wide", dark=False):
        fragment, ready = PAGES[name]
        page = self.browser.page()
        page.show(*SIZES[size], dark)
        page.open(self.address + fragment)
        page.wait_for(ready)
        return page

    def test_every_page_in_both_themes_and_on_a_phone(self):
        for name in PAGES:
            for size in SIZES:
                for dark in [False, True]:
                    with self.subTest(page=name, size=size, dark=dark):
                        page = self.open(name, size, dark)
                        if name == "schedules":
                            page.wait_for("document.querySelector('iframe').contentDocument.querySelector('#families tr')")
                        self.assertEqual(page.evaluate(CHECKS), [])
                        self.assertEqual(page.complaints, [])
                        self.take_picture(page, name, size, dark)
                        page.call("Page.close")

    def take_picture(self, page, name, size, dark):
        if not self.pictures:
            return
        width, least = SIZES[size]
        height = min(max(least, page.evaluate("document.documentElement.scrollHeight")), 2600)
        page.show(width, height, dark)
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.picture(self.pictures / f"{name}-{size}-{'dark' if dark else 'light'}.png")

    def test_token_leaves_the_address_and_nothing_comes_from_elsewhere(self):
        page = self.open("job")
        self.assertNotIn("token", page.evaluate("location.href"))
        self.assertEqual(page.evaluate("document.cookie"), "")
        others = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)"
                               ".filter(name => !name.startsWith(location.origin) && !name.startsWith('data:'))")
        self.assertEqual(others, [])
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0]")
        print(f"first paint after {paint:.0f} ms (limit 1000 ms)")
        self.assertLess(paint, 2000)  # twice the limit is no noise
        page.call("Page.close")

    def test_steps_arrive_by_themselves(self):
        page = self.open("job")
        before = page.evaluate("Number(document.querySelector('progress').value)")
        page.wait_for(f"Number(document.querySelector('progress').value) > {before} + 1")
        page.call("Page.close")

    def test_names_and_log_lines_are_text(self):
        page = self.open("logs")
        self.assertEqual(page.evaluate("document.querySelectorAll('#log b').length"), 0)
        self.assertIn("<b>", page.evaluate("document.getElementById('log').textContent"))
        page.call("Page.close")

    def test_timeline_zooms_by_keys_and_keeps_the_zoom(self):
        page = self.open("timeline")
        page.evaluate("document.getElementById('hold').click()")
        page.evaluate("document.getElementById('canvas').focus()")
        length = "(picture.drawn.view.to - picture.drawn.view.from)"
        whole = page.evaluate(length)
        page.press("+")
        self.assertAlmostEqual(page.evaluate(length), whole / 2, delta=whole / 1000)
        self.assertIn("idle, peer", page.evaluate("document.getElementById('legend').textContent"))
        page.press("0")
        self.assertAlmostEqual(page.evaluate(length), whole, delta=whole / 1000)
        page.call("Page.close")

    def test_thousand_ranks_have_an_overview_and_parts(self):
        page = self.open("timeline-1024")
        self.assertEqual(page.evaluate("valueOf('timeline:llama-70b', 'overview').ranks.length"), 1024)
        self.assertIn("ranks 64 to 127 of 1024", page.evaluate("document.querySelector('main').innerText"))
        self.assertEqual(page.evaluate("picture.drawn.data.first_rank"), 64)
        page.evaluate("[...document.querySelectorAll('a')].find(link => link.textContent === 'ranks after').click()")
        page.wait_for("picture.drawn.data.first_rank === 128")
        page.call("Page.close")

    def test_keys_filter_and_go_up(self):
        page = self.open("jobs")
        page.press("/")
        self.assertEqual(page.evaluate("document.activeElement.id"), "filter")
        page.call("Input.insertText", text="qwen")
        page.wait_for("document.querySelectorAll('main tbody tr').length === 1")
        page.press("Escape")
        page.press("Escape")
        page.wait_for("location.hash === '#/'")
        page.evaluate("location.hash = '#/jobs/kjv-gpt'")
        page.wait_for("document.querySelectorAll('polyline').length === 6")
        page.press("]")
        page.wait_for("location.hash === '#/jobs/kjv-gpt/timeline'")
        page.call("Page.close")

    def test_focus_stays_while_data_comes(self):
        page = self.open("job")
        page.evaluate("document.querySelector('.tabs a:nth-child(3)').focus()")
        page.evaluate("window.kept = document.activeElement")
        before = page.evaluate("Number(document.querySelector('progress').value)")
        page.wait_for(f"Number(document.querySelector('progress').value) > {before}")
        self.assertTrue(page.evaluate("document.activeElement === window.kept"))
        page.call("Page.close")

    def test_another_origin_gets_nothing(self):
        page = self.open("cluster")  # the browser has the cookie now
        other = self.browser.page()
        other.open("data:text/html,<title>evil</title>")
        other.wait_for("document.title === 'evil'")
        target = json.dumps(f"http://127.0.0.1:{self.port}/api/timeline?job=kjv-gpt")
        self.assertEqual(other.evaluate(f"fetch({target}, {{credentials: 'include'}}).then(() => 'read', () => 'refused')"), "refused")
        target = json.dumps(f"http://127.0.0.1:{self.port}/page.js")
        self.assertEqual(other.evaluate(
            f"new Promise(done => {{ const script = document.createElement('script'); script.src = {target};"
            " script.onload = () => done('ran'); script.onerror = () => done('refused'); document.head.append(script); })"), "refused")
        page.call("Page.close")
        other.call("Page.close")

    def test_ten_viewers_cost_little(self):
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(self.address).query)["token"][0]
        request = (f"GET /api/stream?view=cluster&view=job:kjv-gpt&view=timeline:kjv-gpt HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
                   f"Cookie: takt_ui_{self.port}={token}\r\n\r\n").encode()
        viewers = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(10)]
        for viewer in viewers:
            viewer.sendall(request)
            viewer.setblocking(False)

        def drain(seconds):
            until, size = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                for viewer in viewers:
                    try:
                        size += len(viewer.recv(1 << 20))
                    except BlockingIOError:
                        pass
                time.sleep(0.02)
            return size

        drain(5)
        begin = self.processor_seconds()
        size = drain(10)
        share = (self.processor_seconds() - begin) / 10
        for viewer in viewers:
            viewer.close()
        print(f"ten viewers: {100 * share:.2f} % of a core (limit 2 %), {size / 1e4:.0f} kB a second and viewer")
        self.assertGreater(size, 1000)
        self.assertLess(share, 0.05)  # more than twice the limit is no noise

    def processor_seconds(self):
        fields = pathlib.Path(f"/proc/{self.ui.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--pictures")
    ARGUMENTS, rest = parser.parse_known_args()
    if not browser.is_installed():
        print("chromium is not installed: deploy/install-deps.sh --browser")
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
