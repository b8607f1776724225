"""What docs/troubleshooting.md tells readers to look for exists: events of the log, and metrics."""

import re

from tests.docs.reader import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()


def test_page_names_only_events_that_exist() -> None:
    events = set(re.findall(r"`([a-z]+\.[a-z_]+)`", PAGE)) - {"nats.conf"}
    assert len(events) > 10
    sources = "".join(file.read_text() for file in (ROOT / "services").rglob("*.py"))
    assert [event for event in sorted(events) if f'"{event}"' not in sources] == []


def test_page_names_only_metrics_that_exist() -> None:
    """The names in metrics.md are compared with those of running processes."""
    metrics = set(re.findall(r"`(turnwire_[a-z_]+)`", PAGE))
    documented = set(re.findall(r"^\| `(turnwire_\w+)`", (DOCS / "metrics.md").read_text(), re.M))
    assert len(metrics) > 10
    assert sorted(metrics - documented) == []
