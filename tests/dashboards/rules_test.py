# SPDX-License-Identifier: Apache-2.0
"""Holds dashboards/prometheus to promtool and to the catalogue of metrics. Every alert must have a unit test and a chapter in
docs/alerts.md."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

import dashboards
from linter_test import catalogue

FOLDER = dashboards.ROOT / "dashboards" / "prometheus"
DOCUMENT = dashboards.ROOT / "docs" / "alerts.md"


def rules():
    files = sorted((FOLDER / "rules").glob("*.yaml"))
    return [rule for file in files for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def alerts():
    return [rule for rule in rules() if "alert" in rule]


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True)


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (deploy/install-deps.sh)")
class Promtool(unittest.TestCase):
    def succeeds(self, *arguments):
        done = promtool(*arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_rules_pass_their_unit_tests(self):
        self.succeeds("test", "rules", "tests/alerts.yaml")

    def test_configurations_are_valid(self):
        self.succeeds("check", "config", "prometheus-static.yaml")
        # Debian's promtool is built without Kubernetes, so all but the discovery itself is checked.
        config = yaml.safe_load((FOLDER / "prometheus-kubernetes.yaml").read_text())
        for scrape in config["scrape_configs"]:
            self.assertEqual(scrape.pop("kubernetes_sd_configs"), [{"role": "pod"}])
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "config.yaml"
            file.write_text(yaml.safe_dump(config))
            self.succeeds("check", "config", str(file))

    def test_every_scrape_keeps_the_label_job(self):
        for file in FOLDER.glob("prometheus-*.yaml"):
            for scrape in yaml.safe_load(file.read_text())["scrape_configs"]:
                self.assertIs(scrape["honor_labels"], True, file.name)


class Alerts(unittest.TestCase):
    def test_each_says_what_and_where_to_read_on(self):
        for alert in alerts():
            with self.subTest(alert["alert"]):
                self.assertIn(alert["labels"]["severity"], ("critical", "warning"))
                self.assertEqual(alert["annotations"].keys(), {"summary", "description", "runbook_url"})
                self.assertEqual(alert["annotations"]["runbook_url"], f"docs/alerts.md#{alert['alert'].lower()}")

    def test_each_has_a_chapter_and_no_chapter_is_of_another(self):
        chapters = re.findall(r"^## (\w+)\n(?=\S)", DOCUMENT.read_text(), re.MULTILINE)
        self.assertEqual(sorted(chapters), sorted(alert["alert"] for alert in alerts()))

    def test_each_fires_in_a_unit_test(self):
        tests = yaml.safe_load((FOLDER / "tests" / "alerts.yaml").read_text())["tests"]
        fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
        self.assertEqual(fired, {alert["alert"] for alert in alerts()})

    def test_every_metric_is_in_the_catalogue(self):
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        for rule in rules():
            for name in re.findall(r"[a-z_:]*takt_[a-z0-9_:]+", rule["expr"]):
                base = re.sub(r"(_sum|_count|_bucket)$", "", name)
                self.assertTrue(name in recorded or name in catalogue() or base in catalogue(), f"{name} in {rule}")


if __name__ == "__main__":
    unittest.main()
