#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `takt-bench reports -o json` measured as an SVG: the CPU of the coordinator for each report, and the time until reports are
durable, over the number of workers.

    takt-bench reports -o json ... > reports.json
    tests/bench/plot_reports.py reports.json > docs/benchmarks/reports.svg
"""
import json
import math
import sys

WIDTH, HEIGHT = 420, 260  # of a panel's area
LEFT, TOP, BOTTOM, GAP = 70, 40, 50, 90
COLORS = ["#1f6feb", "#8250df", "#cf222e"]
FONT = 'font-family="sans-serif" font-size="12" fill="#57606a"'


def panel(x, title, workers, lines):
    """lines: (label, values, dashed). Both axes are logarithmic."""
    low = 10 ** math.floor(math.log10(min(min(values) for _, values, _ in lines)))
    high = 10 ** math.ceil(math.log10(max(max(values) for _, values, _ in lines)))

    def across(count):
        first, last = math.log(workers[0]), math.log(workers[-1])
        return x + WIDTH * (math.log(count) - first) / max(last - first, 1e-9)

    def down(value):
        return TOP + HEIGHT * (1 - (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)))

    yield f'<text x="{x}" y="{TOP - 18}" font-family="sans-serif" font-size="14" fill="#24292f">{title}</text>'
    value = low
    while value <= high * 1.001:
        yield f'<line x1="{x}" x2="{x + WIDTH}" y1="{down(value):.1f}" y2="{down(value):.1f}" stroke="#d0d7de"/>'
        yield f'<text x="{x - 8}" y="{down(value) + 4:.1f}" text-anchor="end" {FONT}>{value:g}</text>'
        value *= 10
    for count in workers:
        yield f'<text x="{across(count):.1f}" y="{TOP + HEIGHT + 20}" text-anchor="middle" {FONT}>{count:,}</text>'
    yield f'<text x="{x + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle" {FONT}>workers</text>'
    for color, (label, values, dashed) in zip(COLORS, lines):
        points = [(across(count), down(value)) for count, value in zip(workers, values)]
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        yield f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>'
        if not dashed:
            yield from (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{color}"/>' for a, b in points)
        (a, b), side = (points[0], "start") if dashed else (points[-1], "end")
        yield f'<text x="{a - (4 if side == "end" else -4):.1f}" y="{b - 9:.1f}" text-anchor="{side}" font-family="sans-serif" font-size="12" fill="{color}">{label}</text>'


def main():
    with open(sys.argv[1]) as file:
        rows = sorted(json.load(file)["rows"], key=lambda row: row["workers"])
    if len(rows) < 2:
        sys.exit("plot_reports.py: a plot needs rows of two numbers of workers (--workers 1024,10000)")
    workers = [row["workers"] for row in rows]

    def scaled(key, factor):
        return [factor * row[key] for row in rows]

    durable = [("median", scaled("durable_seconds_p50", 1e3), False), ("99 of 100", scaled("durable_seconds_p99", 1e3), False)]
    durable.append(("limit", scaled("limit", 1e3), True))
    width, height = 2 * (LEFT + WIDTH) + GAP - 40, TOP + HEIGHT + BOTTOM
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">')
    print(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for line in panel(LEFT, "us of the coordinator's CPU for a report", workers, [("", scaled("cpu_seconds_per_report", 1e6), False)]):
        print(line)
    for line in panel(LEFT + WIDTH + GAP, "ms until a report is durable", workers, durable):
        print(line)
    print("</svg>")


main()
