# SPDX-License-Identifier: Apache-2.0
"""The committed dashboards, and the one form in which they are written.

  dashboards.py FILE...     rewrites FILE, e.g. an export of Grafana, in that form
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards" / "grafana"
WIDTH = 140


def load():
    """{name of the file: dashboard}."""
    return {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(dashboard):
    """The panels that show something: not rows, but also the panels in a collapsed row."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def variables(dashboard):
    return {variable["name"]: variable for variable in dashboard["templating"]["list"]}


def query_variables(dashboard):
    """The variables whose values come from Prometheus."""
    return [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]


def substitute(expression, values):
    """The expression with its variables replaced: {"job": "a"} for $job, ${job}."""
    for name, value in values.items():
        expression = re.sub(r"\$(%s\b|\{%s\})" % (name, name), value, expression)
    if "$" in expression:
        raise ValueError(f"unknown variable in {expression}")
    return expression


def canonical(value, indent=0, prefix=0):
    """JSON in which whatever fits stands on one line: small files, and differences that can be read."""
    line = json.dumps(value, ensure_ascii=False)
    if not value or not isinstance(value, (dict, list)) or indent + prefix + len(line) < WIDTH:
        return line
    inner = indent + 2
    if isinstance(value, dict):
        keys = [(json.dumps(key) + ": ", item) for key, item in value.items()]
        items = [key + canonical(item, inner, len(key)) for key, item in keys]
    else:
        items = [canonical(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    separator = ",\n" + " " * inner
    return f"{opening}\n{' ' * inner}{separator.join(items)}\n{' ' * indent}{closing}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = pathlib.Path(name)
        file.write_text(canonical(json.loads(file.read_text())) + "\n")
