# SPDX-License-Identifier: Apache-2.0
"""Draws a dashboard as SVG from the answers of Prometheus to its panels. The picture is close to what Grafana shows."""
import itertools
import math
import re
from xml.sax.saxutils import escape

COLUMN, UNIT_HEIGHT, GAP = 50, 30, 6  # pixels of Grafana's grid of 24 columns
PALETTE = ["#5a9e4b", "#d9a520", "#3fb1c9", "#e0752d", "#c4162a", "#1f60c4", "#a352cc", "#705da0", "#508642", "#967302", "#447ebc", "#890f02"]
NAMED_COLORS = {
    "green": "#3f8f3f", "orange": "#d9822b", "red": "#c4162a", "blue": "#1f60c4", "yellow": "#e8cf3a", "purple": "#8e44ad", "text": "#222"
}
LEGEND_ROW = 12  # pixels
SHADES = 6


def scaled(value, base, prefixes):
    index = 0
    while abs(value) >= base and index < len(prefixes) - 1:
        value, index = value / base, index + 1
    return f"{value:.3g}".replace("e+02", "00").replace("e+03", "000") + prefixes[index]


def seconds_text(value):
    if value == 0:
        return "0 s"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def text_of(value, unit, decimals=None):
    """The text of a value of that unit, much as Grafana prints it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞"
    if unit == "percentunit":
        return f"{100 * value:.{1 if decimals is None else decimals}f} %"
    if unit in ("s", "dtdurations"):
        return seconds_text(value)
    if unit in ("bytes", "Bps"):
        return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) + ("/s" if unit == "Bps" else "")
    if decimals is not None:
        return f"{value:.{decimals}f}"
    if unit == "sci":
        return f"{value:.3g}"
    return scaled(value, 1000, ["", " K", " Mil", " Bil"])


def color_of(value, thresholds):
    color = "text"
    for step in (thresholds or {"steps": []})["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return NAMED_COLORS[color]


def legend_of(target, labels):
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), target.get("legendFormat", ""))
    return text.strip() or ", ".join(f"{k}={v}" for k, v in sorted(labels.items()) if k != "__name__")


def last(points):
    return next((value for _, value in reversed(points) if not math.isnan(value)), math.nan)


def nice_ceiling(value):
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= value * 0.9999)


class Svg:
    def __init__(self, width, height):
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="system-ui, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
        ]

    def rect(self, x, y, w, h, fill, opacity=1, stroke=None):
        extra = (f' fill-opacity="{opacity:.2g}"' if opacity != 1 else "") + (f' stroke="{stroke}"' if stroke else "")
        self._parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{w:.1f}" height="{max(h, 0):.1f}" fill="{fill}"{extra}/>')

    def text(self, x, y, content, size=11, color="#222", anchor="start", bold=False):
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"{weight}>{escape(content)}</text>')

    def line(self, points, color, dashed=False, width=1.5):
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        dash = ' stroke-dasharray="6 5"' if dashed else ""
        self._parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dash}/>')

    def area(self, points, color):
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        self._parts.append(f'<polygon points="{path}" fill="{color}" fill-opacity="0.6"/>')

    def finish(self):
        return "\n".join(self._parts) + "\n</svg>\n"


class Box:
    """The rectangle of a panel's content."""

    def __init__(self, x, y, w, h):
        self.x, self.y, self.w, self.h = x, y, w, h


def overrides_of(panel, target, legend):
    """{property: value} of one series."""
    found = {}
    for override in panel["fieldConfig"].get("overrides", []):
        kind, option = override["matcher"]["id"], override["matcher"]["options"]
        name = f"Value #{target['refId']}" if target.get("format") == "table" else legend
        matches = {"byFrameRefID": option == target["refId"], "byName": option == name, "byRegexp": bool(re.fullmatch(option, legend))}
        if matches[kind]:
            found.update({p["id"]: p["value"] for p in override["properties"]})
    return found


def draw_numbers(svg, box, panel, series):
    """stat, gauge and bargauge: the last value of each series."""
    defaults = panel["fieldConfig"]["defaults"]
    values = [(legend_of(target, labels), last(points)) for target, labels, points in series]
    height = box.h / max(len(values), 1)
    for i, (legend, value) in enumerate(values):
        y = box.y + i * height
        color = color_of(value, defaults.get("thresholds"))
        text = text_of(value, defaults["unit"], defaults.get("decimals"))
        if panel["type"] == "stat":
            size = min(30, height * 0.6)
            name = f"{legend}: " if len(values) > 1 else ""
            svg.text(box.x + box.w / 2, y + height / 2 + size / 3, name + text, round(size), color, "middle", bold=True)
            continue
        bar, left = min(height - 4, 26), min(130, box.w / 4)
        width = box.w - left - 60
        svg.text(box.x, y + height / 2 + 4, legend[:24])
        share = min(max(value / defaults.get("max", 1), 0), 1) if not math.isnan(value) else 0
        svg.rect(box.x + left, y + (height - bar) / 2, width, bar, "#e6e6e6")
        svg.rect(box.x + left, y + (height - bar) / 2, width * share, bar, color)
        svg.text(box.x + box.w, y + height / 2 + 4, text, 12, color, "end", bold=True)


def stacked(series, panel):
    """[(target, labels, lower, upper points, overrides)] with the bottoms of those that are stacked."""
    mode = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode", "none")
    tops, result = {}, []
    for target, labels, points in series:
        overrides = overrides_of(panel, target, legend_of(target, labels))
        if overrides.get("custom.stacking", {"mode": mode})["mode"] == "none":
            result.append((target, labels, None, points, overrides))
            continue
        lower = [(t, tops.get(t, 0.0)) for t, _ in points]
        upper = [(t, bottom + (0 if math.isnan(v) else v)) for (t, v), (_, bottom) in zip(points, lower)]
        tops.update(upper)
        result.append((target, labels, lower, upper, overrides))
    return result


def draw_axes(svg, box, bottom, top, unit, start, end):
    """Returns (x of a time, y of a value)."""
    def y_of(value):
        return box.y + box.h * (1 - (value - bottom) / (top - bottom))

    def x_of(moment):
        return box.x + box.w * (moment - start) / (end - start)

    decimals = max(0, math.ceil(-math.log10(25 * (top - bottom)))) if unit == "percentunit" else None
    for i in range(5):
        value = bottom + (top - bottom) * i / 4
        svg.line([(box.x, y_of(value)), (box.x + box.w, y_of(value))], "#e0e0e0", width=1)
        svg.text(box.x - 4, y_of(value) + 4, text_of(value, unit, decimals), 10, "#666", "end")
    for i in range(4):
        moment = start + (end - start) * i / 3
        svg.text(x_of(moment), box.y + box.h + 13, f"{moment - start:.0f} s", 10, "#666", ["start", "middle", "middle", "end"][i])
    return x_of, y_of


def plot_of(box):
    """The rectangle of a panel's curves. Below it there is room for the times and one row of the legend."""
    return Box(box.x + 56, box.y, box.w - 60, box.h - 34)


def legend_places(legends, plot):
    """[(x, row)] of each entry. One that no longer fits into a row begins the next row."""
    x, row, places = plot.x, 0, []
    for legend in legends:
        width = 13 + 5.6 * len(legend)
        if x > plot.x and x + width > plot.x + plot.w:
            x, row = plot.x, row + 1
        places.append((x, row))
        x += width + 11
    return places


def draw_series(svg, box, panel, series, start, end):
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom", {})
    lines = stacked(series, panel)
    values = [value for *_, points, _ in lines for _, value in points if math.isfinite(value)]
    low, high = min(values, default=0), max(values, default=1)
    bottom = defaults["min"] if "min" in defaults else (0 if low >= 0 and low < high / 2 else low - (high - low or 1) / 10)
    top = bottom + nice_ceiling((high if high > bottom else bottom + 1) - bottom)
    if "max" in defaults:
        top = defaults["max"]
    plot = plot_of(box)
    legends = [legend_of(target, labels) for target, labels, *_ in lines]
    places = legend_places(legends, plot)
    last_row = places[-1][1]
    plot.h -= LEGEND_ROW * last_row
    x_of, y_of = draw_axes(svg, plot, bottom, top, defaults["unit"], start, end)
    for step in defaults.get("thresholds", {"steps": []})["steps"]:
        if custom.get("thresholdsStyle") and step["value"] is not None and step["value"] <= top:
            svg.line([(plot.x, y_of(step["value"])), (plot.x + plot.w, y_of(step["value"]))], NAMED_COLORS[step["color"]], dashed=True)
    for i, (_, _, lower, points, overrides) in enumerate(lines):
        color = NAMED_COLORS.get(overrides.get("color", {}).get("fixedColor"), PALETTE[i % len(PALETTE)])
        shown = [(x_of(t), y_of(v)) for t, v in points if math.isfinite(v)]
        below = [(x_of(t), y_of(v)) for t, v in lower or []]
        if custom.get("drawStyle") == "bars":
            for (x, y), (_, floor) in zip(shown, below or [(x, y_of(bottom)) for x, _ in shown]):
                svg.rect(x - 2, y, 4, floor - y, color)
        elif lower:
            svg.area(shown + below[::-1], color)
        else:
            svg.line(shown, color, dashed="custom.lineStyle" in overrides)
        x, row = places[i]
        y = box.y + box.h - 6 - LEGEND_ROW * (last_row - row)
        svg.rect(x, y - 6, 10, 4, color)
        svg.text(x + 13, y, legends[i], 10, "#444")


def draw_heatmap(svg, box, panel, series, start, end):
    cumulative = sorted(((float(labels["le"]), dict(points)) for _, labels, points in series), key=lambda row: row[0])
    rows, before = [], {}
    for bound, points in cumulative:
        rows.append((bound, {t: v - before.get(t, 0) for t, v in points.items()}))
        before = points
    used = [i for i, (_, cells) in enumerate(rows) if max(cells.values(), default=0) > 0.5]
    rows = rows[max(min(used, default=0) - 1, 0) : max(used, default=1) + 2]
    largest = max((v for _, cells in rows for v in cells.values()), default=1) or 1
    scheme = panel["options"]["color"]["scheme"]
    color = {"Oranges": "#d9480f", "Blues": "#1f60c4"}[scheme]
    plot = plot_of(box)
    height = plot.h / max(len(rows), 1)
    times = sorted({t for _, cells in rows for t in cells})
    width = plot.w / max(len(times), 1)
    for i, (bound, cells) in enumerate(rows):
        y = plot.y + plot.h - (i + 1) * height
        svg.text(plot.x - 4, y + 4, text_of(bound, "s"), 10, "#666", "end")
        shades = [math.ceil(SHADES * math.sqrt(max(cells.get(t, 0), 0) / largest) - 0.1) for t in times]
        first = 0
        for shade, run in itertools.groupby(shades):  # neighbours of one shade are one rectangle
            length = len(list(run))
            if shade > 0:
                svg.rect(plot.x + first * width, y, length * width, height, color, shade / SHADES)
            first += length
    svg.text(plot.x, box.y + box.h - 6, "rows: at most this long; the darker, the more", 10, "#444")
    for i in range(2):
        svg.text(plot.x + plot.w * i, plot.y + plot.h + 13, f"{(end - start) * i:.0f} s", 10, "#666", ["start", "end"][i])


def draw_table(svg, box, panel, series):
    """One line a job with the value of each target; or of one target a line for each series, with its labels."""
    if len(panel["targets"]) == 1:
        names = sorted({name for _, labels, _ in series for name in labels})
        rows = [names, *sorted([labels.get(name, "") for name in names] for _, labels, _ in series)]
        for row, cells in enumerate(rows):
            for column, cell in enumerate(cells):
                svg.text(box.x + column * box.w / len(names), box.y + 12 + 18 * row, cell, bold=row == 0)
        return
    jobs = sorted({labels.get("job", "") for _, labels, _ in series})
    columns = [target for target in panel["targets"]]
    width = box.w / (len(columns) + 1)
    svg.text(box.x, box.y + 12, "Job", bold=True)
    for row, job in enumerate(jobs):
        svg.text(box.x, box.y + 36 + 22 * row, job, color="#1f60c4")
    for column, target in enumerate(columns, 1):
        style = overrides_of(panel, target, "")
        svg.text(box.x + column * width, box.y + 12, style["displayName"], bold=True)
        for _, labels, points in (item for item in series if item[0] is target):
            value = last(points)
            color = color_of(value, style.get("thresholds"))
            y = box.y + 36 + 22 * jobs.index(labels.get("job", ""))
            svg.text(box.x + column * width, y, text_of(value, style.get("unit", "none"), style.get("decimals")), color=color)


def draw_panel(svg, panel, series, start, end):
    place = panel["gridPos"]
    x, y = place["x"] * COLUMN + GAP / 2, place["y"] * UNIT_HEIGHT + GAP / 2
    w, h = place["w"] * COLUMN - GAP, place["h"] * UNIT_HEIGHT - GAP
    if panel["type"] == "row":
        svg.text(x + 6, y + 18, panel["title"], 13, bold=True)
        return
    svg.rect(x, y, w, h, "#ffffff", stroke="#dcdcdc")
    svg.text(x + 8, y + 17, panel["title"], 12, bold=True)
    box = Box(x + 8, y + 28, w - 16, h - 32)
    if not series:
        svg.text(x + w / 2, y + h / 2, panel["fieldConfig"]["defaults"].get("noValue", "No data"), 14, "#999", "middle")
    elif panel["type"] in ("stat", "gauge", "bargauge"):
        draw_numbers(svg, box, panel, series)
    elif panel["type"] == "timeseries":
        draw_series(svg, box, panel, series, start, end)
    elif panel["type"] == "heatmap":
        draw_heatmap(svg, box, panel, series, start, end)
    elif panel["type"] == "table":
        draw_table(svg, box, panel, series)
    else:
        raise ValueError(f"panel {panel['title']}: no way to draw a {panel['type']}")


def draw(dashboard, data, start, end):
    """data: {panel id: [(target, labels, [(time, value)])]} between two times."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in dashboard["panels"]) * UNIT_HEIGHT
    svg = Svg(24 * COLUMN, height)
    for panel in dashboard["panels"]:
        draw_panel(svg, panel, data.get(panel["id"], []), start, end)
    return svg.finish()
