"""The dashboard, the alerts and their own tests. That the metrics exist is checked in
tests/pipeline, on a real run."""

import shutil
import subprocess
from operator import itemgetter
from typing import Any

import promql_parser
import pytest

from tests.deploy.monitoring import RULES, expressions, metrics, rules
from tests.kit.every import for_each
from tests.kit.waiting import LIMIT_S

PROMTOOL = shutil.which("promtool")


@for_each(expressions().values())
def test_every_expression_parses_and_selects_something(expression: str) -> None:
    assert promql_parser.parse(expression)
    assert list(metrics(expression))


@for_each(rules(), name=itemgetter("alert"))
def test_every_alert_describes_what_to_do(rule: dict[str, Any]) -> None:
    assert [other["alert"] for other in rules()].count(rule["alert"]) == 1
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["alert"] in (RULES.parent / "alerts_test.yml").read_text()


@pytest.mark.skipif(
    PROMTOOL is None, reason="promtool (Debian package prometheus) is not installed"
)
@pytest.mark.parametrize(
    "command",
    ["check rules alerts.yml", "test rules alerts_test.yml", "check config prometheus.yml"],
)
def test_promtool_accepts_the_rules(command: str) -> None:
    argv = [str(PROMTOOL), *command.split()]
    ran = subprocess.run(argv, cwd=RULES.parent, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
