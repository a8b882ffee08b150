#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `takt-bench delayed -o json` measured as an SVG: the loss in training over tokens, without delay, with gradients that are a
step late, and with error feedback, for AdamW and for Muon, in a row of panels for each model. A line is the mean over the seeds. Below the
panels it prints the losses of the held-out text.

    takt-bench delayed --data DIR -o json > delayed.json
    tests/bench/plot_delayed.py delayed.json [MORE.json...] > docs/benchmarks/delayed.svg
"""
import collections
import json
import statistics
import sys

WIDTH, HEIGHT = 420, 260  # of a panel's area
LEFT, TOP, BOTTOM, GAP = 60, 40, 120, 60
LINES = [("", "without delay", "#1f6feb"), ("-delayed", "a step late", "#cf222e"), ("-feedback", "late, with error feedback", "#8250df")]
SHORT = ("-short", "without delay, in the same time")
MODELS = {"example": "1.3 million parameters", "gpt-10m": "10 million parameters"}
FONT = 'font-family="sans-serif" font-size="12"'


def mean_curve(rows):
    return [statistics.fmean(values) for values in zip(*(row["curve"] for row in rows))]


def held_out(rows):
    losses = [row["validation_loss"] for row in rows]
    spread = f" ({min(losses):.3f} to {max(losses):.3f})" if len(losses) > 1 else ""
    return f"{statistics.fmean(losses):.3f}{spread}"


def panel(x, y, title, curves, tokens, low, high):
    """x, y: of the upper left corner of the area. curves: (label, color, losses, text)."""

    def down(loss):
        return y + HEIGHT * (high - min(loss, high)) / (high - low)

    yield f'<text x="{x}" y="{y - 18}" font-family="sans-serif" font-size="14" fill="#24292f">{title}: loss in training</text>'
    for tick in range(5):
        loss = low + (high - low) * tick / 4
        yield f'<line x1="{x}" x2="{x + WIDTH}" y1="{down(loss):.1f}" y2="{down(loss):.1f}" stroke="#d0d7de"/>'
        yield f'<text x="{x - 8}" y="{down(loss) + 4:.1f}" text-anchor="end" {FONT} fill="#57606a">{loss:.2f}</text>'
    for tick in range(5):
        yield f'<text x="{x + WIDTH * tick / 4}" y="{y + HEIGHT + 18}" text-anchor="middle" {FONT} fill="#57606a">{tokens * tick / 4:.1f}</text>'
    yield f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT + 36}" text-anchor="middle" {FONT} fill="#57606a">million tokens</text>'
    for place, (label, color, losses, text) in enumerate(curves):
        points = " ".join(f"{x + WIDTH * (i + 0.5) / len(losses):.1f},{down(loss):.1f}" for i, loss in enumerate(losses))
        if losses:
            yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
        yield f'<text x="{x}" y="{y + HEIGHT + 58 + 16 * place}" {FONT} fill="{color}">{label}: held out {text}</text>'


def panels(y, model, rows):
    """Both optimizers' panels of one model, side by side. rows: by way."""
    full = [row for way, of_way in rows.items() if not way.endswith(SHORT[0]) for row in of_way]
    if not full:
        sys.exit(f"plot_delayed.py: no rows of a full run of {model}; see --help of takt-bench delayed")
    low = 0.98 * min(row["curve"][-1] for row in full)
    high = max(row["curve"][len(row["curve"]) // 6] for row in full)  # what lies above is the beginning, which says little
    tokens = max(row["tokens"] for row in full) / 1e6
    for place, (optimizer, title) in enumerate((("adamw", "AdamW"), ("muon", "Muon"))):
        curves = [(label, color, mean_curve(rows[optimizer + way]), held_out(rows[optimizer + way])) for way, label, color in LINES if rows[optimizer + way]]
        if rows[optimizer + SHORT[0]]:
            curves.append((SHORT[1], "#57606a", [], held_out(rows[optimizer + SHORT[0]])))
        if not curves:
            continue
        yield from panel(LEFT + place * (LEFT + WIDTH + GAP - 20), y, f"{MODELS[model]}, {title}", curves, tokens, low, high)


def main():
    models = collections.defaultdict(lambda: collections.defaultdict(list))
    for name in sys.argv[1:]:
        with open(name) as file:
            report = json.load(file)
        for row in report["rows"]:
            models[report["model"]][row["way"]].append(row)
    if not models:
        sys.exit("plot_delayed.py: no files; see --help of takt-bench delayed")
    row_height = TOP + HEIGHT + BOTTOM + 16
    width, height = 2 * (LEFT + WIDTH) + GAP, len(models) * row_height
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">')
    print(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for place, model in enumerate(sorted(models)):
        for line in panels(TOP + place * row_height, model, models[model]):
            print(line)
    print("</svg>")


main()
