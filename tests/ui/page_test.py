#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the page of `takt ui` in a headless Chromium, before a coordinator that is made up (ui_stage.cc).

  tests/ui/page_test.py BUILD [--pictures FOLDER] [--axe FILE]
    BUILD     build/release
    FOLDER    where pictures of all pages go
    FILE      axe.min.js of axe-core, which then looks at all pages, too (tests/long.sh page)
"""

import argparse
import contextlib
import json
import pathlib
import select
import sys
import unittest

import browser
import served

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
    "ranks-1024": ("#/jobs/llama-70b/ranks", "document.querySelector('main').innerText.includes('data 8, tensor 8')"),
    "schedules": ("#/schedules?family=zb-h1&P=4&M=8&V=1", "document.querySelector('iframe')"),
}
ARGUMENTS = None


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        started = contextlib.ExitStack()
        cls.addClassCleanup(started.close)
        stage = started.enter_context(served.Stage(ARGUMENTS.build))
        cls.ui = started.enter_context(served.Ui(ARGUMENTS.build, stage.coordinator))
        cls.browser = started.enter_context(browser.Browser())
        cls.pictures = pathlib.Path(ARGUMENTS.pictures) if ARGUMENTS.pictures else None
        if cls.pictures:
            cls.pictures.mkdir(parents=True, exist_ok=True)

    def open(self, name, size="wide", dark=False):
        fragment, ready = PAGES[name]
        page = self.browser.page()
        page.show(*SIZES[size], dark)
        page.open(self.ui.address + fragment)
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

    def test_axe_finds_nothing_serious(self):
        if ARGUMENTS.axe is None:
            self.skipTest("no --axe")
        axe = pathlib.Path(ARGUMENTS.axe).read_text()
        for name in PAGES:
            for size in SIZES:
                for dark in [False, True]:
                    with self.subTest(page=name, size=size, dark=dark):
                        page = self.open(name, size, dark)
                        if name == "schedules":  # what is in the frame
                            page.open(self.ui.address.split("?")[0] + "schedules#family=zb-h1&P=4&M=8&V=1")
                            page.wait_for("document.querySelector('#families tr')")
                        page.evaluate(axe + "; true")
                        found = page.evaluate("axe.run().then(result => result.violations.map(rule => "
                                              "[rule.impact, rule.id, rule.nodes[0].html.slice(0, 120)].join(' ')))")
                        self.assertEqual(found, [])
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
        target = json.dumps(f"http://127.0.0.1:{self.ui.port}/api/timeline?job=kjv-gpt")
        self.assertEqual(other.evaluate(f"fetch({target}, {{credentials: 'include'}}).then(() => 'read', () => 'refused')"), "refused")
        target = json.dumps(f"http://127.0.0.1:{self.ui.port}/page.js")
        self.assertEqual(other.evaluate(
            f"new Promise(done => {{ const script = document.createElement('script'); script.src = {target};"
            " script.onload = () => done('ran'); script.onerror = () => done('refused'); document.head.append(script); })"), "refused")
        page.call("Page.close")
        other.call("Page.close")

    def test_ten_viewers_at_a_time_get_all(self):
        request = self.ui.stream_request("cluster", "job:kjv-gpt", "timeline:kjv-gpt")
        read = {self.ui.connect(request): b"" for _ in range(10)}
        waiting = set(read)
        while waiting:
            ready = select.select(list(waiting), [], [], 30)[0]
            self.assertTrue(ready, f"{len(waiting)} viewers lack something")
            for viewer in ready:
                part = viewer.recv(1 << 20)
                self.assertTrue(part, read[viewer][-1000:])
                read[viewer] += part
                if all(b'"kind":"%s"' % kind in read[viewer] for kind in [b"workers", b"steps", b"overview"]):
                    waiting.discard(viewer)
        for viewer in read:
            viewer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--pictures")
    parser.add_argument("--axe")
    ARGUMENTS, rest = parser.parse_known_args()
    if not browser.is_installed():
        print("chromium is not installed: deploy/install-deps.sh --browser")
        sys.exit(1 if ARGUMENTS.axe else 0)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
