"""The metrics that a real run exposes: those that dashboard, alerts and docs name, and what they
count."""

import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.monitoring import OF_PROMETHEUS, expressions, metrics
from tests.kit.messages_client import Client, body, say
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S, eventually

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
TURNS = 3
STEPS = ("receive", "prepare", "place", "queue", "prefill", "decode", "parse")


pytestmark = pytest.mark.parametrize("vision_dir", ["qwen"], indirect=True)


class Scraped:
    """The processes of a stack, as Prometheus sees them. Values count from here on."""

    def __init__(self, stack: Stack, ports: list[int]) -> None:
        self._urls = [stack.url, *(f"http://127.0.0.1:{port}" for port in ports)]
        self.read()
        self._before = self.samples

    def read(self) -> None:
        """Scrapes every process."""
        self.families: dict[str, str] = {}
        """Name in the documentation, and type."""
        self.samples: list[tuple[str, dict[str, str], float]] = []
        for url in self._urls:
            with urllib.request.urlopen(f"{url}/metrics", timeout=LIMIT_S) as answer:
                for family in text_string_to_metric_families(answer.read().decode()):
                    if family.name.endswith("_created"):
                        continue
                    total = "_total" if family.type == "counter" else ""
                    self.families[family.name + total] = family.type
                    self.samples += [(one.name, one.labels, one.value) for one in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        self.read()
        now, before = (
            sum(
                value
                for one, have, value in samples
                if one == name and labels.items() <= have.items()
            )
            for samples in (self.samples, self._before)
        )
        return now - before


async def converse(url: str) -> dict[str, int]:
    """Three turns of a session: the second continues the first, the third changes the system
    prompt. Returns their tokens."""
    client = Client(url)
    used = dict.fromkeys(("input_tokens", "cache_read_input_tokens", "output_tokens"), 0)
    first = {
        "role": "user",
        "content": say("Hm.</think>[[burst 4]]" + "One. " * 60, "So.</think>Two.", "So.</think>3"),
    }
    try:
        messages: list[object] = [first]
        for number in range(TURNS):
            ask = body(
                "", system=f"Be brief. Today is 2026-01-0{1 + number // 2}. " + "Rules. " * 100
            )
            ask["messages"] = messages
            answer = await client.stream(ask)
            assert answer.stop_reason == "end_turn"
            used = {name: count + int(answer.usage[name]) for name, count in used.items()}
            messages += [answer.message, {"role": "user", "content": "and?"}]
    finally:
        await client.http.close()
    return used


def check_names_and_labels(scraped: Scraped) -> None:
    """Dashboard, alerts and documentation name metrics that are exposed."""
    labels: dict[str, set[str]] = {}
    for name, have, _ in scraped.samples:
        labels.setdefault(name, set()).update(have, OF_PROMETHEUS)
    for where, expression in expressions().items():
        for name, needed in metrics(expression):
            if name != "up":  # Prometheus makes it
                assert name in labels, f"{where}: there is no {name}"
                assert needed <= labels[name], f"{where}: {name} has other labels"
    documented = re.findall(r"^\| `(turnwire_\w+)`", DOCS.read_text(), re.MULTILINE)
    exposed = [name for name in scraped.families if name.startswith("turnwire_")]
    assert sorted(documented) == sorted(exposed)


async def test_metrics_have_the_names_of_the_docs_and_the_counts_of_the_answers(
    image_stack: Stack, metrics_ports: list[int]
) -> None:
    scraped = Scraped(image_stack, metrics_ports)
    usage = await converse(image_stack.url)
    for step in STEPS:
        name = f"turnwire_request_{step}_time_seconds_count"
        # More, where a busy machine has made the frontend try again.
        await eventually(lambda name=name: scraped.value(name) >= TURNS)  # type: ignore[misc]
    check_names_and_labels(scraped)
    value = scraped.value
    assert value("turnwire_request_prefill_time_seconds_sum") > 0
    assert value("turnwire_generation_tokens_total", model=MODEL) == usage["output_tokens"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached
    assert value("turnwire_prefix_cache_hits_tokens_total") == cached > 0
    assert value("turnwire_prompt_tokens_total") == prompt
    ledger = value("turnwire_ledger_prompt_tokens_total", source="ledger")
    assert ledger > 0
    assert ledger + value("turnwire_ledger_prompt_tokens_total", source="text") >= prompt
    await eventually(lambda: value("turnwire_prompt_varied_total", cause="date") > 0)
    assert 100 < value("turnwire_prompt_varied_tokens_total", cause="date") < prompt
