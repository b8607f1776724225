"""Tests citations: URLs in the answer of pages that its searches found."""

import json
from typing import Any

import msgspec

from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    HostedResult,
    HostedResults,
    Prepared,
    TurnEvent,
    WebSource,
)
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.render.message import url_citations
from services.frontend.turns.interfaces import AnswerInfo
from tests.kit.bodies import block, responses
from tests.kit.events import finish
from tests.kit.events import text as spoken
from tests.kit.every import for_rows

TIDES, MOON = "https://example.org/tides", "https://example.org/moon?full=1"
TITLES = {TIDES: "Tides", MOON: "Moon"}


@for_rows(
    [
        ("At noon.", []),
        (f"At noon: {TIDES}.", [(TIDES, "Tides")]),
        (f"At noon ([the tides]({TIDES})).", [(f"[the tides]({TIDES})", "Tides")]),
        (f'[1](<{TIDES}> "Tides"), {MOON}', [(f'[1](<{TIDES}> "Tides")', "Tides"), (MOON, "Moon")]),
        # Other pages of the same site.
        (f"{TIDES}/today {TIDES}.html {TIDES}?at=1 {TIDES}2", []),
        (f"é {TIDES} [no link] (x)", [(TIDES, "Tides")]),
    ],
)
def test_urls_in_the_text_are_cited(text: str, cited: list[tuple[str, str]]) -> None:
    found = url_citations(text, TITLES)
    assert [(text[one.start_index : one.end_index], one.title) for one in found] == cited
    assert all(TITLES[one.url] == one.title for one in found)
    assert all(msgspec.to_builtins(one)["type"] == "url_citation" for one in found)


def searched(text: str) -> list[TurnEvent]:
    """A turn that writes a URL, searches, and writes the text."""
    call = '{"query": "tides"}'
    source = WebSource(TIDES, "Tides", "High water is at noon.")
    return [
        *spoken(0, f"Is it on {TIDES}?", pieces=1),
        BlockStart(1, "hosted", name="web_search", call_id="call_1"),
        Delta(1, 0, call),
        BlockStop(1, length=len(call)),
        HostedResults([HostedResult("call_1", "web_search", "web_search", call, [source])], "1b2c"),
        *spoken(2, text, pieces=1),
        finish(3),
    ]


def test_stream_has_citations_before_the_end_of_the_text() -> None:
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    text = f"At noon ([tides]({TIDES})), says {TIDES}."
    ask = Responses(["web_search"]).parse(
        json.dumps(responses(tools=[block("web_search")])).encode(), {}
    )
    renderer = ask.renderer(AnswerInfo("0a1b2c", "req_0a1b2c", "m", 1700000000))
    out = renderer.start([Prepared(9, 1024)])
    for event in searched(text):
        out += renderer.events([event])
    events = [json.loads(payload) for payload in payloads(out)]
    event_type: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        event_type.validate_python(event)
    kinds = [event["type"] for event in events]
    added = [at for at, kind in enumerate(kinds) if kind == "response.output_text.annotation.added"]
    assert kinds[added[-1] + 1] == "response.output_text.done"
    assert [events[at]["annotation_index"] for at in added] == [0, 1]
    found = [events[at]["annotation"] for at in added]
    cited = [text[one["start_index"] : one["end_index"]] for one in found]
    assert cited == [f"[tides]({TIDES})", TIDES]
    messages = [item for item in events[-1]["response"]["output"] if item["type"] == "message"]
    # Text from before the search has no citations.
    assert [item["content"][0]["annotations"] for item in messages] == [[], found]
