# SPDX-License-Identifier: Apache-2.0
"""Every panel of every dashboard can be drawn, with and without data."""
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
