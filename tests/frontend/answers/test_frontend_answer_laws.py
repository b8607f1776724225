"""Tests what holds for the answer to any turn: generated ones, those of the vectors, cut ones."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.events import (
    BlockStart,
    BlockStop,
)
from services.frontend.apis.chat.render import ChatCollector, ChatShape, chat_stream
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.turns.interfaces import AnswerInfo, Collector, Renderer
from tests.frontend.answers.generated import TEXT, Turn, draw_batches, turns
from tests.kit.answers import check_document, chunks, dispatches
from tests.kit.bodies import MESSAGES, RESPONSES
from tests.kit.frontend import MODEL
from tests.kit.stories import TOOLS, Batches
from tests.kit.telling import PREPARED

INFO = AnswerInfo(
    "0a1b2c",
    "req_0a1b2c",
    MODEL,
    1700000000,
    dispatch=True,
    dispatch_reasoning=True,
    now=lambda: 1700000009.5,
)


def stream_of(renderer: Renderer, batches: Batches, choices: int = 1) -> bytes:
    stream = renderer.start([PREPARED] * choices)
    for choice, batch in batches:
        stream += renderer.events(batch, choice)
    return stream


def document_of(collector: Collector, several: Sequence[Turn]) -> dict[str, Any]:
    collector.start([PREPARED] * len(several))
    for choice, turn in enumerate(several):
        collector.events(turn, choice)
    document: dict[str, Any] = json.loads(collector.body())
    return document


_objects = st.dictionaries(st.sampled_from("abc"), st.integers() | TEXT, max_size=2)
_look = st.tuples(st.just("look"), _objects.map(json.dumps))
_patch = st.tuples(st.just("patch"), TEXT.map(lambda text: json.dumps({"input": text})))
_names = ("exec_command", "apply_patch", "tool_search", "shell", "multi_agent_v1__exec", "unknown")
_arguments = (
    '{"a": 1}',
    '{"input": "\\u00e9\\n',
    '{"input": "x"}',
    "",
    "{",
    '{"commands": ["a"]}',
    "[]",
    "raw text",
)
_any_call = st.tuples(st.sampled_from(_names), st.sampled_from(_arguments))


@given(turns(_look), st.data())
def test_stream_of_messages_agrees_with_its_document(turn: Turn, data: st.DataObject) -> None:
    asked = MESSAGES.ask()
    stream = stream_of(asked.renderer(INFO), draw_batches(data, [turn]))
    document = document_of(asked.collector(INFO), [turn])
    check_document("messages", stream, document)
    seals = [block["signature"] for block in document["content"] if block["type"] == "thinking"]
    assert set(seals) <= {"c2ln", UNSEALED}


@given(turns(_any_call), st.booleans(), st.data())
def test_stream_of_responses_agrees_with_its_document(
    turn: Turn, summary: bool, data: st.DataObject
) -> None:
    effort = {"summary": "auto" if summary else None}
    sealed = ["reasoning.encrypted_content"]
    asked = RESPONSES.ask(**TOOLS, include=sealed, store=False, reasoning=effort)
    stream = stream_of(asked.renderer(INFO), draw_batches(data, [turn]))
    document = document_of(asked.collector(INFO), [turn])
    check_document("responses", stream, document)
    for name, sent in dispatches(stream):
        assert sent["item"] == document["output"][sent["output_index"]]
        assert name != "tool_call_dispatch" or sent["item"]["status"] == "completed"


_shapes = st.builds(
    ChatShape,
    reasoning=st.sampled_from(["reasoning_content", "reasoning", "both", "inline", "omitted"]),
    details=st.booleans(),
    legacy=st.booleans(),
    freeform=st.sampled_from([frozenset(), frozenset({"patch"})]),
    logprobs=st.booleans(),
    include_usage=st.booleans(),
    continuous_usage=st.just(False),
)


@given(st.lists(turns(_look | _patch), min_size=1, max_size=3), _shapes, st.data())
def test_stream_of_chat_agrees_with_its_document(
    several: list[Turn], shape: ChatShape, data: st.DataObject
) -> None:
    if shape.legacy:
        shape = replace(shape, freeform=frozenset())
    choices = len(several)
    renderer = chat_stream(INFO, shape, choices)
    stream = stream_of(renderer, draw_batches(data, several), choices)
    document = chat_document(shape, several)
    check_document("chat", stream, document)
    assert all(("usage" in chunk) == shape.include_usage for chunk in chunks(stream))
    sent = [
        data["tool_call_dispatch"] for _, data in dispatches(stream) if "tool_call_dispatch" in data
    ]
    for each in sent:
        call, message = each["tool_call"], document["choices"][each["choice_index"]]["message"]
        if not shape.legacy:
            inline = message["tool_calls"][call["index"]]
            assert inline == {key: call[key] for key in inline}
    calls = [
        (choice, event.block)
        for choice, turn in enumerate(several)
        for event in turn
        if isinstance(event, BlockStart) and event.kind == "tool_use"
    ]
    whole = [
        (choice, event.block)
        for choice, turn in enumerate(several)
        for event in turn
        if isinstance(event, BlockStop) and event.complete
    ]
    assert shape.legacy or len(sent) == len({*calls} & {*whole})


def chat_document(shape: ChatShape, several: Sequence[Turn]) -> dict[str, Any]:
    info = replace(INFO, dispatch=False, dispatch_reasoning=False)
    return document_of(
        ChatCollector(chat_stream(info, shape.for_document(), len(several))), several
    )
