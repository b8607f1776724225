"""Turns that search and read, served over HTTP with a provider."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from schemas.conversation import Message
from schemas.events import TurnEvent
from services.runtime.config.frontend import FrontendConfig
from tests.kit.bodies import MODEL
from tests.kit.events import call, finish, reasoning, text
from tests.kit.frontend import FakeGateway, Served, serving
from tests.kit.search_provider import ProviderStub, provider

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
LOOK = {
    "name": "look",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}
IDS = [f"toolu_{letter * 24}" for letter in "ABCDEFGH"]
FOUND = (
    "[1] Tides\nhttps://example.org/tides (1 day ago)\nHigh water is at noon.\n\n"
    "[2] Moon\nhttps://docs.example.com/moon\nThe moon is full."
)


def search(block: int, query: str = "tides", id: str = IDS[0]) -> list[TurnEvent]:
    return call(block, "web_search", json.dumps({"query": query}), call_id=id)


def fetch(block: int, url: str, id: str = IDS[0]) -> list[TurnEvent]:
    return call(block, "web_fetch", json.dumps({"url": url}), call_id=id)


LAST: list[TurnEvent] = [*reasoning(0, "So it is noon."), *text(1, "At noon."), finish(2)]
FIRST: list[TurnEvent] = [*reasoning(0, "I search."), *text(1, "Searching."), *search(2), finish(3)]


@asynccontextmanager
async def hosted(
    gateway: FakeGateway, **settings: Any
) -> AsyncIterator[tuple[Served, ProviderStub]]:
    async with provider() as stub:
        config = FrontendConfig(web_provider=stub.url, web_fetch=True, **settings)
        async with serving(gateway, config) as served:
            yield served, stub


def body(
    *tools: dict[str, Any], messages: Sequence[Any] | None = None, **more: Any
) -> dict[str, Any]:
    asked = [{"role": "user", "content": "When is high water? See https://example.org/tides"}]
    return {
        "model": MODEL,
        "max_tokens": 500,
        "tools": [*tools],
        "messages": [*(messages or asked)],
        **more,
    }


async def message(served: Served, request: dict[str, Any]) -> Any:
    """The document that Messages answers with."""
    reply = await served.post("/v1/messages", request)
    assert reply.status == 200, reply.text
    return reply.json


def counted(served: Served) -> dict[str, float]:
    """How many calls of web search ended how, and under `timed` how many the provider got."""
    samples = [sample for metric in served.registry.collect() for sample in metric.samples]
    found = {
        sample.labels["outcome"]: sample.value
        for sample in samples
        if sample.name == "turnwire_hosted_calls_total" and sample.labels["tool"] == "web_search"
    }
    timed = [
        sample.value for sample in samples if sample.name == "turnwire_hosted_call_seconds_count"
    ]
    return {**found, "timed": sum(timed)}


def last(gateway: FakeGateway) -> list[Message]:
    """The messages that the model got last."""
    return gateway.conversations[-1].messages


def kinds(answer: Any) -> str:
    """The types of the blocks or items of an answer."""
    return " ".join(block["type"] for block in answer.get("content") or answer["output"])
