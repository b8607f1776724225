"""What deploy/grafana and deploy/prometheus ask Prometheus for."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import promql_parser

ROOT = Path(__file__).parents[2] / "deploy"
DASHBOARD = ROOT / "grafana" / "turnwire.json"
RULES = ROOT / "prometheus" / "alerts.yml"
OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to what it scrapes."""
_VARIABLES = {"$__rate_interval": "5m", "$model": ".*"}


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels, rows included."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    """The alerts."""
    found: list[dict[str, Any]] = msgspec.yaml.decode(RULES.read_bytes())["groups"][0]["rules"]
    return found


def expressions() -> dict[str, str]:
    """Every PromQL expression, by a name of its own, without Grafana's variables."""
    found = {rule["alert"]: str(rule["expr"]) for rule in rules()}
    for panel in panels():
        for target in panel.get("targets", []):
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    for variable, value in _VARIABLES.items():
        found = {name: text.replace(variable, value) for name, text in found.items()}
    return found


def metrics(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yields the name of each sample that an expression selects, and the labels that it needs:
    those that select or group it."""
    yield from _metrics(promql_parser.parse(expression), set())


def _metrics(node: Any, labels: set[str]) -> Iterator[tuple[str, set[str]]]:
    modifier = getattr(node, "modifier", None)
    grouping = (
        {*modifier.labels} if isinstance(node, promql_parser.AggregateExpr) and modifier else set()
    )
    if isinstance(node, promql_parser.VectorSelector):
        yield str(node.name), labels | {matcher.name for matcher in node.matchers.matchers}
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from _metrics(inner, labels | grouping)
    for inner in getattr(node, "args", None) or ():
        yield from _metrics(inner, labels | grouping)
