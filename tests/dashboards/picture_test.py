# SPDX-License-Identifier: Apache-2.0
"""Every panel of every dashboard can be drawn, with and without data."""
import re
import unittest
import xml.etree.ElementTree

import dashboards
import picture

LABELS = {"job": "a<b", "stage": "0", "pp_rank": "1", "le": "0.1", "state": "busy", "kind": "F"}
POINTS = [(float(t), t % 3) for t in range(10)]


def data_of(dashboard):
    return {panel["id"]: [(target, LABELS, POINTS) for target in panel["targets"]] for panel in dashboards.panels(dashboard)}


class Picture(unittest.TestCase):
    def test_shows_every_panel(self):
        for dashboard in dashboards.load().values():
            for data, num_without in ((data_of(dashboard), 0), ({}, len(list(dashboards.panels(dashboard))))):
                svg = picture.draw(dashboard, data, 0.0, 9.0)
                texts = [element.text for element in xml.etree.ElementTree.fromstring(svg).iter() if element.text]
                for panel in dashboard["panels"]:
                    self.assertIn(panel["title"], texts)
                self.assertEqual(texts.count("No data"), num_without)

    def test_names_every_series_inside_its_panel(self):
        dashboard = dashboards.load()["pipeline.json"]
        panel = next(p for p in dashboards.panels(dashboard) if p["title"].startswith("Waits for messages"))
        (target,), grid = panel["targets"], panel["gridPos"]
        labels = [{**LABELS, "pp_rank": str(rank), "direction": name} for name in ("activation", "gradient") for rank in range(8)]
        svg = picture.draw(dashboard, {panel["id"]: [(target, each, POINTS) for each in labels]}, 0.0, 9.0)
        texts = [e for e in xml.etree.ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]
        places = set()
        for each in labels:
            (text,) = [e for e in texts if e.text == picture.legend_of(target, each)]
            x, y = float(text.get("x")), float(text.get("y"))
            self.assertLess(x + 5.6 * len(text.text), (grid["x"] + grid["w"]) * picture.COLUMN)
            self.assertLess(y, (grid["y"] + grid["h"]) * picture.UNIT_HEIGHT)
            places.add((x, y))
        self.assertEqual(len(places), len(labels))

    def test_shows_each_state_of_jobs_in_a_color_of_its_own(self):
        text = (dashboards.ROOT / "docs" / "metrics.md").read_text()
        (jobs,) = re.findall(r"of a job: ([\w, ]+);", text)
        states = sorted(set(jobs.split(", ")) - {"SUCCEEDED", "FAILED", "CANCELLED"})  # these are not in the panel
        panel = next(p for p in dashboards.panels(dashboards.load()["cluster.json"]) if p["title"].startswith("Jobs: a queue"))
        styles = [picture.overrides_of(panel, panel["targets"][0], state) for state in states]
        names = {style.get("color", {}).get("fixedColor") for style in styles}
        self.assertLessEqual(names, set(picture.NAMED_COLORS))
        self.assertEqual(len(names), len(states))

    def test_prints_values_with_their_unit(self):
        for value, unit, text in (
            (0.0123, "s", "12.3 ms"),
            (7200, "dtdurations", "2 h"),
            (0.256, "percentunit", "25.6 %"),
            (3 << 20, "bytes", "3 MiB"),
            (75_000, "short", "75 K"),
            (float("nan"), "s", "NaN"),
        ):
            self.assertEqual(picture.text_of(value, unit), text)


if __name__ == "__main__":
    unittest.main()
