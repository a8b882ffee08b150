# SPDX-License-Identifier: Apache-2.0
"""The dashboards keep the rules of linter.py, and each rule sees a dashboard that breaks it."""
import copy
import json
import re
import unittest

import dashboards
import linter
import yaml


def catalogue():
    """{metric: (kind, labels)}, read from docs/metrics.md, which a test of common/metrics holds to the catalogue."""
    row = re.compile(r"\| `(takt_\w+)` \| (\w+) \| [^|]*\| ([^|]*) \|")
    text = (dashboards.ROOT / "docs" / "metrics.md").read_text()
    return {name: (kind, [label for label in labels.split(", ") if label]) for name, kind, labels in row.findall(text)}


def is_excluded(rule, dashboard, title):
    exclusions = yaml.safe_load((dashboards.FOLDER / ".lint").read_text())["exclusions"]
    if rule not in exclusions:
        return False
    entries = exclusions[rule].get("entries", [{}])
    return any(e.get("dashboard", dashboard["title"]) == dashboard["title"] and e.get("panel", title) == title for e in entries)


def faults(dashboard):
    for name, rule in linter.RULES.items():
        for title, fault in rule(dashboard):
            if not is_excluded(name, dashboard, title):
                yield f"{name}: {title}: {fault}"
    for title, fault in linter.declared_metrics(dashboard, catalogue()):
        yield f"catalogue: {title}: {fault}"


# For each rule, a change to a faultless dashboard that the rule must see.
def first(dashboard, kind="timeseries"):
    return next(panel for panel in dashboards.panels(dashboard) if panel["type"] == kind)


def set_expression(expression, **others):
    def change(dashboard):
        first(dashboard)["targets"] = [{"refId": "A", "expr": expression, **others}]

    return change


def repeat_panel(dashboard):
    dashboard["panels"].append(copy.deepcopy(first(dashboard)))


PLANTED = {
    "template-datasource-rule": lambda d: d["templating"]["list"].pop(0),
    "template-job-rule": lambda d: dashboards.variables(d)["job"].pop("allValue"),
    "template-label-promql-rule": lambda d: dashboards.variables(d)["job"].update(query="takt_job_step"),
    "template-on-time-change-reload-rule": lambda d: dashboards.variables(d)["job"].update(refresh=1),
    "uneditable-dashboard-rule": lambda d: d.update(editable=True),
    "panel-datasource-rule": lambda d: first(d).update(datasource={"type": "prometheus", "uid": "P1809F7CD0C75ACF3"}),
    "panel-title-description-rule": lambda d: first(d).update(description=""),
    "panel-units-rule": lambda d: first(d)["fieldConfig"]["defaults"].update(unit="seconds"),
    "panel-no-targets-rule": lambda d: first(d).update(targets=[]),
    "target-rate-interval-rule": set_expression('rate(takt_tokens_total{job=~"$job"}[5m])'),
    "target-job-rule": set_expression("takt_loss"),
    "target-counter-agg-rule": set_expression('takt_tokens_total{job=~"$job"}'),
    "identity": lambda d: d.update(id=7),
    "unique": repeat_panel,
    "grid": lambda d: first(d)["gridPos"].update(x=20),
    "thresholds": lambda d: first(d, "stat")["fieldConfig"]["defaults"].pop("thresholds"),
    "legends": set_expression('sum by (job) (takt_loss{job=~"$job"})', legendFormat="loss"),
    "ages": set_expression('timestamp(takt_loss{job=~"$job"}) - takt_last_step_timestamp_seconds{job=~"$job"}'),
    "known-variables": set_expression('takt_loss{job=~"$job", instance="$worker"}'),
}


class Dashboards(unittest.TestCase):
    def test_keep_every_rule(self):
        loaded = dashboards.load()
        self.assertEqual(set(loaded), {"cluster.json", "job.json", "pipeline.json"})
        for name, dashboard in loaded.items():
            with self.subTest(name):
                self.assertEqual(list(faults(dashboard)), [])

    def test_are_written_in_the_canonical_form(self):
        for name in dashboards.load():
            text = (dashboards.FOLDER / name).read_text()
            again = dashboards.canonical(json.loads(text)) + "\n"
            self.assertEqual(text, again, f"run tests/dashboards/dashboards.py dashboards/grafana/{name}")

    def test_have_uids_of_their_own_that_links_know(self):
        loaded = dashboards.load().values()
        uids = [dashboard["uid"] for dashboard in loaded]
        self.assertEqual(len(set(uids)), len(uids))
        for dashboard in loaded:
            for uid in re.findall(r'"/d/([\w-]+)', json.dumps(dashboard)):
                self.assertIn(uid, uids)

    def test_exclusions_say_why_and_name_what_there_is(self):
        exclusions = yaml.safe_load((dashboards.FOLDER / ".lint").read_text())["exclusions"]
        loaded = dashboards.load().values()
        titles = {panel["title"] for dashboard in loaded for panel in dashboards.panels(dashboard)}
        for rule, exclusion in exclusions.items():
            self.assertTrue(exclusion["reason"])
            for entry in exclusion.get("entries", []):
                self.assertIn(entry.get("panel", next(iter(titles))), titles)
                self.assertIn(entry.get("dashboard", "Takt / Job"), {d["title"] for d in loaded})


class Provisioning(unittest.TestCase):
    def test_finds_the_data_source_and_the_dashboards(self):
        folder = dashboards.FOLDER / "provisioning"
        (source,) = yaml.safe_load((folder / "datasources" / "takt.yaml").read_text())["datasources"]
        self.assertEqual((source["type"], source["access"]), ("prometheus", "proxy"))
        (provider,) = yaml.safe_load((folder / "dashboards" / "takt.yaml").read_text())["providers"]
        self.assertEqual((provider["type"], provider["allowUiUpdates"]), ("file", False))


class Linter(unittest.TestCase):
    def test_each_rule_sees_its_fault(self):
        self.assertEqual(set(PLANTED), set(linter.RULES))
        for name, plant in PLANTED.items():
            with self.subTest(name):
                dashboard = dashboards.load()["job.json"]
                plant(dashboard)
                self.assertNotEqual(list(linter.RULES[name](dashboard)), [])

    def test_the_catalogue_is_asked(self):
        for expression, fault in (
            ("takt_lost", "takt_lost is not in the catalogue"),
            ("takt_step_duration_seconds", "is not in the catalogue"),
            ('takt_loss{rank="0"}', "takt_loss has no label rank"),
            ("sum by (stage) (takt_loss)", "grouped by stage"),
        ):
            dashboard = dashboards.load()["job.json"]
            set_expression(expression)(dashboard)
            found = [text for _, text in linter.declared_metrics(dashboard, catalogue())]
            self.assertEqual(len(found), 1, found)
            self.assertIn(fault, found[0])


if __name__ == "__main__":
    unittest.main()
