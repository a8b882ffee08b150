# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that scrapes three jobs is asked for every panel, rule and alert. Prints each with its value.

  prometheus_test.py BIN [unittest's arguments]      BIN: the folder of takt, takt-coordinator and takt-worker
"""
import math
import re
import subprocess
import sys
import unittest
import urllib.request

import dashboards
import jobs
import stack
import yaml

# What a healthy job need not have, by the names of jobs.py. All else has a value.
ABSENT = {
    ("emulated", "takt_validation_loss"),
    ("emulated", "takt_memory_copies_total"),
    ("emulated", "takt_fp8_"),
    ("experts", "takt_fp8_"),  # it is in f32
    ("experts", "takt_validation_loss"),
}
# Only jobs whose steps overlap have these, which is up to their plans.
ABSENT |= {(job, metric) for job in ("gpt", "emulated", "experts") for metric in ("takt_undone_", "takt_held_steps")}
# Only models with experts have these.
ABSENT |= {(job, metric) for job in ("gpt", "emulated") for metric in ("takt_expert_load", "takt_expert_entropy", "takt_expert_dropped")}
# A coordinator whose state is in a file does not have this. failover_fault_test asks one that has.
ONLY_WITH_ETCD = "takt_coordinator_lease_seconds"
SECONDS_UNTIL_ALL_IS_THERE = 120


def rule_files():
    """{file: its rules} of dashboards/prometheus. A file of rules is one that has groups."""
    files = {}
    for path in sorted((dashboards.ROOT / "dashboards" / "prometheus").glob("**/*.y*ml")):
        groups = (yaml.safe_load(path.read_text()) or {}).get("groups", [])
        if groups and "tests" not in path.parts:
            files[path] = [rule for group in groups for rule in group["rules"]]
    return files


def panel_queries(job):
    """(dashboard, panel, target, expression) for one job chosen."""
    values = {"job": job, "stage": ".+", "__rate_interval": stack.RATE_INTERVAL, "__range": "1h"}
    for dashboard in dashboards.load().values():
        for panel in dashboards.panels(dashboard):
            for target in panel["targets"]:
                yield dashboard["title"], panel["title"], target, dashboards.substitute(target["expr"], values)


def is_absent(job, expression):
    return ONLY_WITH_ETCD in expression or any(name == job and metric in expression for name, metric in ABSENT)


def summary(samples):
    """The value, or None if there is nothing to show."""
    values = [value for _, value in samples if not math.isnan(value)]
    if len(values) > 1:
        return f"{min(values):.4g} to {max(values):.4g} ({len(values)} series)"
    return f"{values[0]:.4g}" if values else None


class Prometheus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = cls.enterClassContext(stack.Stack(BINARIES, num_workers=10, rule_files=rule_files()))
        gpt = jobs.gpt(cls.stack.directory) | {"precision": "fp8", "fp8": {"recipe": "tensor"}}
        cls.jobs = [gpt, jobs.experts(cls.stack.directory), jobs.emulated()]
        for job in cls.jobs:
            cls.stack.submit(job)
        num_targets = len(cls.stack.targets)
        stack.await_true("every target is scraped", lambda: len(cls.stack.query("takt_build_info")) == num_targets)

    def ask_for_all(self, queries):
        """Prints the value of each {name: expression} once all have one; fails with those that have none in time."""
        values = dict.fromkeys(queries)

        def all_answered():
            for name in [name for name, value in values.items() if value is None]:
                values[name] = summary(self.stack.query(queries[name]))
            return None not in values.values()

        try:
            stack.await_true("every expression has a value", all_answered, SECONDS_UNTIL_ALL_IS_THERE)
        except TimeoutError:
            self.fail("no value for\n" + "\n".join(f"{name}: {queries[name]}" for name, value in values.items() if value is None))
        for name, value in values.items():
            print(f"{name:120} {value}")

    def test_every_panel_shows_something_for_each_job(self):
        for job in self.jobs:
            with self.subTest(job["name"]):
                self.ask_for_all(
                    {
                        f"{dashboard}, {title} ({target['refId']})": expression
                        for dashboard, title, target, expression in panel_queries(job["name"])
                        if not is_absent(job["name"], expression)
                    }
                )

    def test_what_may_be_absent_is_absent(self):
        absent = set()
        for job in self.jobs:
            for _, _, _, expression in panel_queries(job["name"]):
                if is_absent(job["name"], expression):
                    absent.add(expression)
                    self.assertIsNone(summary(self.stack.query(expression)), expression)
        for metric in [ONLY_WITH_ETCD, *(metric for _, metric in ABSENT)]:
            self.assertTrue(any(metric in expression for expression in absent), f"no panel asks for {metric}")

    def test_promtool_finds_nothing_in_what_the_programs_expose(self):
        for target in self.stack.targets:
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=20) as page:
                check = subprocess.run(["promtool", "check", "metrics"], input=page.read(), capture_output=True)
            self.assertEqual((check.returncode, check.stdout + check.stderr), (0, b""))

    def test_variables_offer_the_jobs_and_the_stages(self):
        expected = {"job": {"gpt", "experts", "emulated"}, "stage": {"0", "1", "2", "3"}}
        for dashboard in dashboards.load().values():
            for variable in dashboards.query_variables(dashboard):
                selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
                selector = dashboards.substitute(selector, {"job": "gpt"})

                def offered():
                    return set(self.stack.api(f"label/{label}/values", **{"match[]": selector})) >= expected[label]

                stack.await_true(f"{selector} offers {expected[label]}", offered, SECONDS_UNTIL_ALL_IS_THERE)

    def test_every_recording_rule_has_a_value(self):
        rules = [rule for rules in rule_files().values() for rule in rules if "record" in rule]
        self.ask_for_all({rule["record"]: rule["expr"] for rule in rules})

    def test_every_alert_parses_and_is_silent(self):
        for rule in (rule for rules in rule_files().values() for rule in rules if "alert" in rule):
            with self.subTest(rule["alert"]):
                self.stack.query(rule["expr"])
        firing = [alert["labels"] for alert in self.stack.api("alerts")["alerts"] if alert["state"] == "firing"]
        self.assertEqual(firing, [])


if __name__ == "__main__":
    if not stack.is_installed():
        print("prometheus is not installed (deploy/install-deps.sh)")
        sys.exit(0)
    BINARIES = sys.argv.pop(1)
    unittest.main()
