"""Tests facts about single answers that no story shows, and citations in answers of Responses."""

import json
from typing import Any

import msgspec
from msgspec.structs import replace

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    FinishReason,
    HostedResult,
    HostedResults,
    Prepared,
    TurnEvent,
    Usage,
    WebSource,
)
from services.frontend.apis.messages.render import MessagesStream
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.render.items.message import url_citations
from services.frontend.apis.responses.request import Responses
from tests.kit.answers import dispatches, events, frames
from tests.kit.bodies import CONVERSING, MESSAGES, RESPONSES, Api, Json, block, parsed, responses
from tests.kit.events import call, finish, reasoning, text
from tests.kit.events import text as spoken
from tests.kit.every import for_each, for_rows
from tests.kit.telling import INFO, PREPARED, named


def stream_of(renderer: Any, turn: list[TurnEvent]) -> bytes:
    """The stream of a turn, each event in a batch of its own."""
    return bytes(renderer.start([PREPARED]) + b"".join(renderer.render([event]) for event in turn))


def document_of(api: Api, turn: list[TurnEvent], **fields: Any) -> Json:
    collector = api.ask(**fields).collector(INFO)
    collector.start([PREPARED])
    collector.add(turn)
    document: Json = json.loads(collector.body())
    return document


def test_arguments_keep_their_spelling_in_a_document_of_messages() -> None:
    document = named(MESSAGES, "interleaved").document()
    assert rb'"input":{"pattern": "old\\.flag", "limit": 5000.0}' in document


def test_document_of_messages_has_the_whole_members_of_cut_arguments() -> None:
    for arguments, kept in (
        ("", {}),
        ('{"path": "/a", "old": "x, \\"y', {"path": "/a"}),
        ('{"at": {"x": 1}, "of": [1, {"y": 2}, 3', {"at": {"x": 1}}),
        ('{"lines": 12', {}),
        ('{"path": "/a"}', {"path": "/a"}),
    ):
        cut = call(0, "edit", arguments, call_id="c", complete=False)
        (content,) = document_of(MESSAGES, [*cut, finish(1, FinishReason.LENGTH)])["content"]
        assert content["input"] == kept


def test_dispatch_of_indented_arguments_is_one_line() -> None:
    turn = [*call(0, "look", '{\n\n  "at": 1.0\n}', call_id="c"), finish(1)]
    ((_, sent),) = dispatches(stream_of(MessagesStream(replace(INFO, dispatch=True)), turn))
    assert sent["tool_call_dispatch"]["input"] == {"at": 1.0}


def test_start_has_the_expected_cached_tokens_and_end_the_exact_number() -> None:
    renderer = MessagesStream(INFO)
    (_, start), *_ = frames(
        renderer.start([Prepared(prompt_tokens=656, max_tokens=1024, cached=512)])
    )
    (_, end), *_ = frames(
        renderer.render([finish(0, usage=Usage(prompt=656, cached=600, output=1))])
    )
    for usage, cached in ((start["message"]["usage"], 512), (end["usage"], 600)):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (656 - cached, cached)


@for_each(CONVERSING)
def test_only_finished_thoughts_are_sent_whole(api: Api) -> None:
    cut: list[TurnEvent] = [BlockStart(1, "reasoning"), Delta(1, 0, "cut")]
    for stop in ([], [BlockStop(1, complete=False, length=3)]):
        turn = [*reasoning(0, ("one ", "two")), *cut, *stop, finish(2, FinishReason.LENGTH)]
        renderer = api.ask(stream=True).renderer(replace(INFO, dispatch_reasoning=True))
        (sent,) = dispatches(stream_of(renderer, turn))
        assert "one two" in json.dumps(sent)


def test_finished_thought_of_messages_is_sent_whole_after_its_block() -> None:
    turn = [*reasoning(0, ("one ", "two"), seal="c2ln"), *text(1, "hello"), finish(2)]
    renderer = MessagesStream(replace(INFO, dispatch_reasoning=True), omit_thinking=True)
    seen = frames(stream_of(renderer, turn))
    at = [name for name, _ in seen].index("reasoning_dispatch")
    assert seen[at - 1][0] == "content_block_stop"
    block = {"index": 0, "type": "thinking", "thinking": "", "signature": "c2ln"}
    assert seen[at][1] == {"type": "ping", "reasoning_dispatch": block}


def test_error_outside_the_turn_fails_the_response() -> None:
    renderer = RESPONSES.ask().renderer(INFO)
    stream_of(renderer, [BlockStart(0, "text"), Delta(0, 0, "half")])
    *_, failed = events(renderer.error(ErrorInfo(ErrorKind.TIMED_OUT, "too late")))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "too late"}
    assert failed["response"]["output"][0]["status"] == "incomplete"


def test_indented_request_does_not_break_the_stream_of_responses() -> None:
    tool = {"type": "function", "name": "f", "parameters": {"a": [1.0]}}
    choice = {"type": "function", "name": "f"}
    body = RESPONSES.body(tools=[tool], tool_choice=choice, text={})
    renderer = RESPONSES.parse(json.dumps(body, indent=2).encode()).renderer(INFO)
    created, _ = events(renderer.start([PREPARED]))
    assert created["response"]["tools"][0]["parameters"] == {"a": [1.0]}


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
    assert [one.title for one in found] == [TITLES[one.url] for one in found]
    types = [msgspec.to_builtins(one)["type"] for one in found]
    assert types == ["url_citation"] * len(found)


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
    text = f"At noon ([tides]({TIDES})), says {TIDES}."
    body = json.dumps(responses(tools=[block("web_search")])).encode()
    renderer = parsed(Responses(["web_search"]), body).renderer(INFO)
    out = stream_of(renderer, searched(text))
    events = [json.loads(payload) for payload in payloads(out)]
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
