"""Tests what holds for the answer to any turn, and the exact answers of Completions."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Failed,
    Finish,
    FinishReason,
    Prepared,
    TokenLogprob,
    TopLogprob,
    TurnEvent,
    Usage,
)
from services.frontend.apis.chat.render import ChatCollector, ChatShape, chat_stream
from services.frontend.apis.completions.render import (
    CompletionsCollector,
    CompletionsShape,
    completions_stream,
)
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.turns.interfaces import AnswerInfo, Collector, Renderer
from tests.kit.answers import check_document, chunks, dispatches, frames
from tests.kit.bodies import MESSAGES, RESPONSES
from tests.kit.events import with_dispatch
from tests.kit.frontend import MODEL
from tests.kit.stories import TOOLS, Batches
from tests.kit.telling import PREPARED

Turn: TypeAlias = list[TurnEvent]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def turns(draw: st.DrawFn, calls: st.SearchStrategy[tuple[str, str]]) -> Turn:
    """A turn with these calls, each whole or cut; any last block may be cut."""
    turn: Turn = []
    kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "tool_use"]), max_size=6))
    for block, kind in enumerate(kinds):
        pieces = draw(st.lists(TEXT, max_size=3))
        seal = draw(st.sampled_from([None, "c2ln"])) if kind == "reasoning" else None
        start, complete = BlockStart(block, kind), True  # type: ignore[arg-type]
        if kind == "tool_use":
            name, arguments = draw(calls)
            start = BlockStart(block, "tool_use", name, f"call_{block}")
            cuts = draw(st.lists(st.integers(0, len(arguments)), max_size=3))
            places = [0, *sorted(cuts), len(arguments)]
            pieces = [arguments[begin:end] for begin, end in pairwise(places)]
            complete = draw(st.booleans())
        turn.append(start)
        offset = 0
        for piece in pieces:
            token = TokenLogprob(piece, -1.0, offset, piece.encode())
            turn.append(Delta(block, offset, piece, [token] if kind == "text" else None))
            offset += len(piece)
        turn.append(BlockStop(block, complete, offset, seal))
    last = turn[-1] if turn else None
    if isinstance(last, BlockStop) and draw(st.booleans()):
        turn[-1] = replace(last, complete=False)
    usage = Usage(9, draw(st.integers(0, 9)), draw(st.integers(0, 9)), 1)
    reason = draw(st.sampled_from(list(FinishReason)[:4]))
    turn.append(Finish(reason, len(kinds), usage, "END"))
    return with_dispatch(turn)[0]


def draw_batches(data: st.DataObject, several: Sequence[Turn]) -> Batches:
    """The turns of an answer's choices, as they may arrive."""
    batches: Batches = []
    left = [list(turn) for turn in several]
    while any(left):
        choice = data.draw(st.sampled_from([at for at, turn in enumerate(left) if turn]))
        take = data.draw(st.integers(1, len(left[choice])))
        batches.append((choice, left[choice][:take]))
        left[choice] = left[choice][take:]
    return batches


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
_arguments = ('{"a": 1}', '{"input": "\\u00e9\\n', '{"input": "x"}', "", "{", "[]", "raw text")
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


def chat_document(shape: ChatShape, several: Sequence[Turn]) -> dict[str, Any]:
    info = replace(INFO, dispatch=False, dispatch_reasoning=False)
    return document_of(
        ChatCollector(chat_stream(info, shape.for_document(), len(several))), several
    )


REPLY = AnswerInfo("0a1b2c", "req_0a1b2c", "acme/served-model", 1700000000)
HEAD = {
    "id": "cmpl-0a1b2c",
    "object": "text_completion",
    "created": 1700000000,
    "model": "acme/served-model",
    "system_fingerprint": None,
}


def said(
    *pieces: str,
    reason: FinishReason = FinishReason.STOP,
    usage: Usage | None = None,
    stop: str | None = None,
) -> list[TurnEvent]:
    events: list[TurnEvent] = [BlockStart(0, "text")]
    offset = 0
    for piece in pieces:
        token = TokenLogprob(piece, -0.5, offset, piece.encode(), [TopLogprob("!", -1.5, b"!")])
        events.append(Delta(0, offset, piece, [token]))
        offset += len(piece)
    return [*events, BlockStop(0, length=offset), Finish(reason, 1, usage or Usage(5, 2, 3), stop)]


def stream(shape: CompletionsShape, batches: Batches) -> list[Any]:
    renderer = completions_stream(REPLY, shape)
    out = [renderer.start([Prepared(5, 16)] * len(shape.echoes))]
    out += [renderer.events(events, choice) for choice, events in batches]
    return [data for _, data in frames(b"".join(out))]


def document(shape: CompletionsShape, batches: Batches) -> dict[str, Any]:
    collector = CompletionsCollector(completions_stream(REPLY, shape.for_document()))
    collector.start([Prepared(5, 16)] * len(shape.echoes))
    for choice, events in batches:
        collector.events(events, choice)
    made: dict[str, Any] = json.loads(collector.body())
    return made


def chunk(text: str, finish: str | None = None, logprobs: Any = None, **fields: Any) -> Any:
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish, **fields}
    return {**HEAD, "choices": [choice]}


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_stream_with_every_option_is_rendered() -> None:
    shape = CompletionsShape(["Once"], logprobs=True, include_usage=True, continuous_usage=True)
    logprobs = {
        "text_offset": [4, 7],
        "token_logprobs": [-0.5, -0.5],
        "tokens": [" up", "on"],
        "top_logprobs": [{" up": -0.5, "!": -1.5}, {"on": -0.5, "!": -1.5}],
    }
    events = said(" up", "on", reason=FinishReason.STOP_STRING, stop="END")
    assert stream(shape, [(0, events)]) == [
        chunk("Once") | {"usage": usage(5, 0, 0)},
        chunk(" upon", logprobs=logprobs) | {"usage": None},
        chunk("", "stop", stop_reason="END") | {"usage": usage(5, 3, 2)},
        {**HEAD, "choices": [], "usage": usage(5, 3, 2)},
        "[DONE]",
    ]


def test_document_is_rendered() -> None:
    shape = CompletionsShape(["Once", "Once", "Twice", "Twice"], prompts=2)
    batches: Batches = [
        (3, said("d", reason=FinishReason.LENGTH, usage=Usage(7, 7, 1))),
        (0, said("a", usage=Usage(5, 0, 3))),
        (1, said("b", usage=Usage(5, 5, 2))),
        (2, said("c", usage=Usage(7, 6, 4))),
    ]
    made = document(shape, batches)
    found = [(each["text"], each["finish_reason"]) for each in made["choices"]]
    texts = [("Oncea", "stop"), ("Onceb", "stop"), ("Twicec", "stop"), ("Twiced", "length")]
    assert found == texts
    assert [choice["logprobs"] for choice in made["choices"]] == [None] * 4
    # A prompt with two choices is counted once.
    assert made["usage"] == usage(5 + 7, 3 + 2 + 4 + 1, 0 + 6)
    with_usage = CompletionsShape(shape.echoes, prompts=2, include_usage=True)
    *streamed, end, _ = stream(with_usage, batches)
    assert end == {**HEAD, "choices": [], "usage": made["usage"]}
    said_by = ["", "", "", ""]
    for (choice,) in (each["choices"] for each in streamed):
        said_by[choice["index"]] += choice["text"]
    assert said_by == [text for text, _ in texts]


def test_nothing_follows_a_failure() -> None:
    failed: list[TurnEvent] = [
        BlockStart(0, "text"),
        Delta(0, 0, "half"),
        Failed(ErrorInfo(ErrorKind.ENGINE, "gone")),
    ]
    error = {"message": "gone", "type": "server_error", "param": None, "code": None}
    assert stream(CompletionsShape([""]), [(0, failed)]) == [chunk("half"), {"error": error}]
