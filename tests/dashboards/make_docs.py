# SPDX-License-Identifier: Apache-2.0
"""Trains two jobs for a while under a Prometheus, kills a worker, and writes docs/dashboards: each dashboard as a picture, each panel
with its value.

  make_docs.py BIN [SECONDS]      BIN: the folder of takt, takt-coordinator and takt-worker
"""
import json
import math
import sys
import time

import dashboards
import jobs
import picture
import stack

POINTS = 80
FOLDER = dashboards.ROOT / "docs" / "dashboards"


def fetch(running, dashboard, values, start, end):
    """{panel id: [(target, labels, points)]}."""
    data = {}
    for panel in dashboards.panels(dashboard):
        data[panel["id"]] = series = []
        for target in panel["targets"]:
            expression = dashboards.substitute(target["expr"], values)
            step = (end - start) / POINTS
            for result in running.api("query_range", query=expression, start=start, end=end, step=step)["result"]:
                points = [(moment, float(value)) for moment, value in result["values"]]
                series.append((target, result["metric"], points))
    return data


def panel_lines(dashboard, data):
    yield f"\n## {dashboard['title']}\n\n![{dashboard['title']}]({dashboard['uid'].removeprefix('takt-')}.svg)\n"
    yield "| Panel | Value | Says |\n|---|---|---|"
    for panel in dashboards.panels(dashboard):
        unit = panel["fieldConfig"]["defaults"]["unit"]
        values = [picture.last(points) for _, _, points in data[panel["id"]]]
        values = [value for value in values if not math.isnan(value)]
        if panel["type"] in ("table", "heatmap"):
            text = f"{len(values)} {'cells' if panel['type'] == 'table' else 'buckets'}"
        elif len(values) == 1:
            text = picture.text_of(values[0], unit)
        else:
            text = f"{picture.text_of(min(values), unit)} to {picture.text_of(max(values), unit)}" if values else "nothing"
        yield f"| {panel['title']} | {text} | {panel['description']} |"


def kill_a_worker_of(running, job):
    workers = json.loads(running.takt("-o", "json", "workers"))["workers"]
    running.kill(next(worker["name"] for worker in workers if worker["job"] == job))


def main(binaries, seconds):
    lines = []
    with stack.Stack(binaries, num_workers=9) as running:
        for job in (jobs.gpt(running.directory, steps=10_000, checkpoint_every=50), jobs.emulated()):
            running.submit(job)
        time.sleep(0.7 * seconds)
        kill_a_worker_of(running, "gpt")
        time.sleep(0.3 * seconds)
        end = time.time()
        start = end - 0.9 * seconds  # what came before belongs to the start
        for name, dashboard in dashboards.load().items():
            job = {"cluster.json": ".+", "job.json": "gpt", "pipeline.json": "emulated"}[name]
            values = {"job": job, "stage": ".+", "__rate_interval": stack.RATE_INTERVAL, "__range": f"{seconds}s"}
            data = fetch(running, dashboard, values, start, end)
            (FOLDER / name.replace(".json", ".svg")).write_text(picture.draw(dashboard, data, start, end))
            lines += panel_lines(dashboard, data)
    (FOLDER / "panels.md").write_text(HEADER + "\n".join(lines) + "\n")


HEADER = """# Panels, and what they show

`tests/dashboards/make_docs.py` wrote this page from a run of two jobs of four stages each on one machine: `gpt`, a
small GPT with validation and checkpoints (the Job dashboard), and `emulated` (the Pipeline dashboard). Towards the end
a worker of `gpt` is killed, and a ninth worker takes its place. Eight ranks and other work of that machine share two
cores, so steps of `gpt` take longer than predicted, and its split says `runtime`. The script draws the pictures from
what Prometheus answers to the panels' queries. Grafana does not draw them, and its fonts and colours differ.
"""

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 90)
