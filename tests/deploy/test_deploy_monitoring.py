"""The dashboard, the alerts and their own tests. That the metrics exist is checked in
tests/pipeline, on a real run."""

import shutil
import subprocess

import promql_parser
import pytest

from tests.deploy.monitoring import RULES, expressions, metrics, rules

PROMTOOL = shutil.which("promtool")


def test_every_expression_parses_and_selects_something() -> None:
    for expression in expressions().values():
        assert promql_parser.parse(expression)
        assert list(metrics(expression))


def test_every_alert_describes_what_to_do() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
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
    ran = subprocess.run(argv, cwd=RULES.parent, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
