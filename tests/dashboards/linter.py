# SPDX-License-Identifier: Apache-2.0
"""Rules for dashboards: those of Grafana's dashboard-linter by their names there, then our own.

A rule takes a dashboard and yields what is wrong, each with the panel's title, or "" for the dashboard itself. Whether PromQL
parses is Prometheus' to say: prometheus_test.py.
"""
import re

import dashboards

# The units of Grafana that are used here.
UNITS = {"none", "short", "percentunit", "s", "dtdurations", "bytes", "Bps", "sci"}
GRAFANA_VARIABLES = {"__rate_interval", "__range", "__interval"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

SELECTOR = re.compile(r"\b(takt_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def targets(dashboard):
    for panel in dashboards.panels(dashboard):
        for target in panel.get("targets", []):
            yield panel["title"], target


def selectors(expression):
    """(metric, matchers) of each use of a metric. Matchers are as they are written, with their braces."""
    return [(match[1], match[2] or "") for match in SELECTOR.finditer(expression)]


def template_datasource(dashboard):
    variable = dashboards.variables(dashboard).get("datasource", {})
    expected = {"type": "datasource", "label": "Data source", "query": "prometheus"}
    if not expected.items() <= variable.items():
        yield "", f"no variable `datasource` with {expected}"


def template_job(dashboard):
    if "job" not in dashboards.variables(dashboard):
        yield "", "no variable `job`"
    for variable in dashboards.query_variables(dashboard):
        expected = {"label": variable["name"].capitalize(), "datasource": DATASOURCE, "multi": True, "allValue": ".+"}
        if not expected.items() <= variable.items():
            yield "", f"variable {variable['name']} lacks one of {expected}"


def template_label_promql(dashboard):
    for variable in dashboards.query_variables(dashboard):
        if not re.fullmatch(r"label_values\(takt_.*, \w+\)", variable["query"]):
            yield "", f"variable {variable['name']} has the query {variable['query']}"


def template_on_time_change_reload(dashboard):
    for variable in dashboards.query_variables(dashboard):
        if variable.get("refresh") != 2:
            yield "", f"variable {variable['name']} is not refreshed when the time range changes"


def uneditable(dashboard):
    if dashboard.get("editable", True):
        yield "", "is editable: changes in the browser would be lost at the next start"


def panel_datasource(dashboard):
    for panel in dashboards.panels(dashboard):
        if panel.get("datasource") != DATASOURCE:
            yield panel["title"], f"has the data source {panel.get('datasource')}"
    for title, target in targets(dashboard):
        if target.get("datasource", DATASOURCE) != DATASOURCE:
            yield title, f"target {target['refId']} has the data source {target['datasource']}"


def panel_title_description(dashboard):
    for panel in dashboards.panels(dashboard):
        if not panel.get("title") or not panel.get("description"):
            yield panel.get("title", ""), f"panel {panel['id']} lacks a title or a description"


def panel_units(dashboard):
    for panel in dashboards.panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        overrides = [p for o in panel["fieldConfig"].get("overrides", []) for p in o["properties"]]
        for unit in [defaults.get("unit")] + [p["value"] for p in overrides if p["id"] == "unit"]:
            if unit not in UNITS:
                yield panel["title"], f"has the unit {unit}"


def panel_no_targets(dashboard):
    for panel in dashboards.panels(dashboard):
        if not panel.get("targets"):
            yield panel["title"], "asks for nothing"


def target_rate_interval(dashboard):
    for title, target in targets(dashboard):
        for function, interval in re.findall(r"\b(\w+)\([^()]*\[([^\]]*)\]", target["expr"]):
            allowed = {"$__rate_interval"} if function in ("rate", "irate") else {"$__rate_interval", "$__range"}
            if interval not in allowed:
                yield title, f"{function} over [{interval}] in {target['expr']}"


def target_job(dashboard):
    for title, target in targets(dashboard):
        for metric, matchers in selectors(target["expr"]):
            if 'job=~"$job"' not in matchers:
                yield title, f"{metric}{matchers} does not ask for the chosen jobs"


def target_counter_agg(dashboard):
    for title, target in targets(dashboard):
        for match in SELECTOR.finditer(target["expr"]):
            before, after = target["expr"][: match.start()], target["expr"][match.end() :]
            is_range = re.search(r"\b(rate|irate|increase)\($", before) and after.startswith("[")
            if re.search(r"_(total|bucket|sum|count)$", match[1]) and not is_range:
                yield title, f"counter {match[1]} without rate or increase"


def identity(dashboard):
    if dashboard.get("id", 0) is not None or not re.fullmatch(r"takt-[a-z]+", dashboard.get("uid", "")):
        yield "", "needs the id null, and a uid of its own that never changes"
    if "__inputs" in dashboard or dashboard.get("schemaVersion", 0) < 36:
        yield "", "is an export for sharing, or of an old Grafana: it cannot be provisioned"


def unique(dashboard):
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield "", f"panel ids are not unique: {ids}"
    titles = [panel["title"] for panel in dashboard["panels"]]
    if len(set(titles)) != len(titles):
        yield "", "titles are not unique"
    for panel in dashboards.panels(dashboard):
        refs = [target["refId"] for target in panel.get("targets", [])]
        if len(set(refs)) != len(refs):
            yield panel["title"], f"refIds are not unique: {refs}"


def grid(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = [(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])]
        if place["x"] < 0 or place["x"] + place["w"] > 24:
            yield panel["title"], f"leaves the 24 columns: {place}"
        for other in {taken[cell] for cell in cells if cell in taken}:
            yield panel["title"], f"lies over '{other}'"
        taken.update(dict.fromkeys(cells, panel["title"]))


def thresholds(dashboard):
    """A single number says by its colour whether it is good. Grafana's default of 80 fits nothing here."""
    for panel in dashboards.panels(dashboard):
        if panel["type"] in ("stat", "gauge", "bargauge") and "thresholds" not in panel["fieldConfig"]["defaults"]:
            yield panel["title"], "has no thresholds"


def legends(dashboard):
    for title, target in targets(dashboard):
        by = re.match(r"(?:\d+ - )?\w+ by \(([^)]*)\)", target["expr"])
        is_legend = target.get("format") != "table" and target.get("format") != "heatmap"
        for label in by[1].split(", ") if by and is_legend else []:
            if "{{%s}}" % label not in target.get("legendFormat", ""):
                yield title, f"the legend of {target['refId']} does not tell series of one {label} from another's"


def ages(dashboard):
    """The age of a step or checkpoint of a job that is over or paused only grows. As a ramp it would look like a stall."""
    for title, target in targets(dashboard):
        if "timestamp(" in target["expr"] and "takt_job_state{" not in target["expr"]:
            yield title, f"an age that no state of the job bounds: {target['expr']}"


def known_variables(dashboard):
    known = GRAFANA_VARIABLES | set(dashboards.variables(dashboard))
    texts = [(title, target["expr"]) for title, target in targets(dashboard)]
    texts += [("", variable["query"]) for variable in dashboards.query_variables(dashboard)]
    for title, text in texts:
        for name in set(re.findall(r"\$\{?(\w+)", text)) - known:
            yield title, f"unknown variable {name}"


def declared_metrics(dashboard, catalog):
    """catalog: {metric: (kind, labels)}."""
    texts = [(title, target["expr"]) for title, target in targets(dashboard)]
    texts += [("", variable["query"]) for variable in dashboards.query_variables(dashboard)]
    for title, text in texts:
        labels = {"instance", "job"}
        for metric, matchers in selectors(text):
            is_histogram = catalog.get(SUFFIX.sub("", metric), ("",))[0] == "histogram"
            name = SUFFIX.sub("", metric) if is_histogram else metric
            if name not in catalog or (is_histogram and name == metric):
                yield title, f"{metric} is not in the catalogue (docs/metrics.md)"
                continue
            own = set(catalog[name][1]) | ({"le"} if metric.endswith("_bucket") else set())
            for label in set(MATCHER.findall(re.sub(r'"[^"]*"', "", matchers))) - own:
                yield title, f"{metric} has no label {label}"
            labels |= own
        for group in GROUPING.findall(text):
            for label in {name.strip() for name in group.split(",")} - labels - {""}:
                yield title, f"grouped by {label}, which no metric of it has: {text}"


RULES = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_job,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "uneditable-dashboard-rule": uneditable,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": target_job,
    "target-counter-agg-rule": target_counter_agg,
    "identity": identity,
    "unique": unique,
    "grid": grid,
    "thresholds": thresholds,
    "legends": legends,
    "ages": ages,
    "known-variables": known_variables,
}
