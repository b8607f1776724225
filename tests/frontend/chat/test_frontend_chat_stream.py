"""Tests Chat Completions streams and documents against transcripts in tests/fixtures/chat/turns.

`<case>.json` has the events of a request's turns, `.sse` the expected stream, `.document.json` the
expected document. Run this file as a program to write the transcripts again, and review the
difference.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    Prepared,
    TokenLogprob,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.chat.render import ChatCollector, ChatShape, chat_stream
from services.frontend.apis.shared.tools import freeform_input
from services.frontend.turns.interfaces import AnswerInfo
from tests.kit.events import with_dispatch

TURNS = Path(__file__).parents[2] / "fixtures" / "chat" / "turns"
CASES = sorted(path for path in TURNS.glob("*.json") if not path.name.endswith(".document.json"))
PREPARED = Prepared(656, 1024)
Batches = list[tuple[int, list[TurnEvent]]]


class Case(msgspec.Struct):
    batches: Batches
    shape: ChatShape = ChatShape()
    choices: int = 1
    dispatch: bool = False
    dispatch_reasoning: bool = False

    def reply(self) -> AnswerInfo:
        return AnswerInfo(
            "0a1b2c", "req_0a1b2c", "acme/served-model", 1700000000,
            dispatch=self.dispatch, dispatch_reasoning=self.dispatch_reasoning,
        )  # fmt: skip

    def stream(self, batches: Batches | None = None) -> str:
        renderer = chat_stream(self.reply(), self.shape, self.choices)
        out = [renderer.start([PREPARED] * self.choices)]
        for choice, events in self.batches if batches is None else batches:
            out.append(renderer.events(events, choice))
        return b"".join(out).decode()

    def document(self) -> dict[str, Any]:
        collector = ChatCollector(
            chat_stream(self.reply(), self.shape.for_document(), self.choices)
        )
        collector.start([PREPARED] * self.choices)
        for choice, events in self.batches:
            collector.events(events, choice)
        document: dict[str, Any] = json.loads(collector.body())
        return document

    def single(self) -> Batches:
        return [(choice, [event]) for choice, events in self.batches for event in events]

    def failed(self) -> bool:
        return any(failure_of(event) is not None for _, events in self.batches for event in events)


def load(path: Path) -> Case:
    case = msgspec.json.decode(path.read_bytes(), type=Case)
    for choice in range(case.choices):
        mine = [at for at, (number, _) in enumerate(case.batches) if number == choice]
        for at, events in zip(
            mine, with_dispatch(*(case.batches[at][1] for at in mine)), strict=True
        ):
            case.batches[at] = (choice, events)
    return case


def frames(stream: str) -> list[tuple[str, Any]]:
    found = []
    for frame in stream.removesuffix("\n\n").split("\n\n"):
        *event, data = frame.split("\n")
        said = data.removeprefix("data: ")
        name = event[0].removeprefix("event: ") if event else ""
        found.append((name, said if said == "[DONE]" else json.loads(said)))
    return found


def accumulate(chunks: list[dict[str, Any]], choices: int) -> list[dict[str, Any]]:
    """The choices of a document that a client assembles from the chunks."""
    made: list[dict[str, Any]] = [
        {"index": index, "message": {}, "logprobs": None} for index in range(choices)
    ]
    for chunk in chunks:
        for choice in chunk["choices"]:
            into = made[choice["index"]]
            assert "finish_reason" not in into, "a chunk after the choice's last"
            _merge(into["message"], choice["delta"])
            if choice["logprobs"] is not None:
                into["logprobs"] = into["logprobs"] or {"content": [], "refusal": None}
                into["logprobs"]["content"] += choice["logprobs"]["content"]
            if choice["finish_reason"] is not None:
                into |= {
                    key: choice[key] for key in ("finish_reason", "stop_reason") if key in choice
                }
    for choice in made:
        message = choice["message"]
        for call in message.get("tool_calls", []):
            del call["index"]
        if not message["content"] and ("tool_calls" in message or "function_call" in message):
            message["content"] = None
    return made


def _merge(into: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, value in delta.items():
        if key in ("tool_calls", "reasoning_details"):
            entries = into.setdefault(key, [])
            for entry in value:
                assert entry["index"] in (len(entries), len(entries) - 1)
                if entry["index"] == len(entries):
                    entries.append({})
                _merge(entries[-1], entry)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        elif isinstance(value, str) and isinstance(into.get(key), str):
            assert key not in ("id", "name", "type", "role", "format", "data"), (
                f"{key} was said twice"
            )
            into[key] += value
        else:
            into[key] = value


def chunks_of(stream: str) -> list[dict[str, Any]]:
    *chunks, (_, done) = frames(stream)
    assert done == "[DONE]"
    return [data for _, data in chunks]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_stream_equals_the_transcript(path: Path) -> None:
    case = load(path)
    assert case.stream(case.single()) == path.with_suffix(".sse").read_text()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_document_equals_the_transcript(path: Path) -> None:
    case = load(path)
    if case.failed():
        assert not path.with_suffix(".document.json").exists()
        return
    assert case.document() == json.loads(path.with_suffix(".document.json").read_text())


@pytest.mark.parametrize(
    "path", [path for path in CASES if not load(path).failed()], ids=lambda path: path.stem
)
def test_stream_and_document_agree_for_every_batching(path: Path) -> None:
    case = load(path)
    document = case.document()
    for batches in (case.single(), case.batches):
        chunks = chunks_of(case.stream(batches))
        assert accumulate(chunks, case.choices) == document["choices"]
        usage = chunks[-1].get("usage")
        assert usage == (document["usage"] if case.shape.include_usage else None)


def test_nothing_follows_a_failure() -> None:
    case = load(TURNS / "failed_in_mid_stream.json")
    error = {"message": "the engine failed", "type": "server_error", "param": None, "code": None}
    assert frames(case.stream())[-1] == ("", {"error": error})


def test_error_outside_the_turn_ends_the_stream() -> None:
    said = chat_stream(Case([]).reply(), ChatShape()).error(
        ErrorInfo(ErrorKind.TIMED_OUT, "too late")
    )
    assert json.loads(said.removeprefix(b"data: "))["error"]["message"] == "too late"


def test_document_of_an_unfinished_turn_raises() -> None:
    with pytest.raises(RuntimeError):
        Case([]).document()


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_seals = st.sampled_from([None, "c2ln"])
_json = st.dictionaries(st.sampled_from("abc"), st.integers() | _text, max_size=2)


@st.composite
def turns(draw: st.DrawFn) -> list[TurnEvent]:
    events: list[TurnEvent] = []
    kinds: list[Any] = draw(
        st.lists(st.sampled_from(["reasoning", "text", "look", "patch"]), max_size=6)
    )
    for block, kind in enumerate(kinds):
        if kind in ("look", "patch"):
            events.append(BlockStart(block, "tool_use", name=kind, call_id=f"call_{block}"))
            said = json.dumps({"input": draw(_text)} if kind == "patch" else draw(_json))
            cut = sorted(draw(st.lists(st.integers(0, len(said)), max_size=3)))
            pieces = [said[a:b] for a, b in zip([0, *cut], [*cut, len(said)], strict=True)]
        else:
            events.append(BlockStart(block, kind))
            pieces = draw(st.lists(_text, max_size=3))
        offset = 0
        for piece in pieces:
            token = TokenLogprob(piece, -1.0, offset, piece.encode())
            events.append(Delta(block, offset, piece, [token] if kind == "text" else None))
            offset += len(piece)
        events.append(
            BlockStop(block, length=offset, seal=draw(_seals) if kind == "reasoning" else None)
        )
    last = events[-1] if events else None
    if isinstance(last, BlockStop) and draw(st.booleans()):
        events[-1] = msgspec.structs.replace(last, complete=False)
    usage = Usage(9, draw(st.integers(0, 9)), draw(st.integers(0, 9)), 1)
    events.append(Finish(draw(st.sampled_from(list(FinishReason)[:4])), len(kinds), usage, "END"))
    return with_dispatch(events)[0]


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


@given(st.lists(turns(), min_size=1, max_size=3), _shapes, st.data())
def test_every_stream_agrees_with_its_document(
    several: list[list[TurnEvent]], shape: ChatShape, data: st.DataObject
) -> None:
    if shape.legacy:
        shape = msgspec.structs.replace(shape, freeform=frozenset())
    case = Case(
        list(enumerate(several)), shape, len(several), dispatch=True, dispatch_reasoning=True
    )
    batches: Batches = []
    left = [list(events) for events in several]
    while any(left):
        choice = data.draw(st.sampled_from([at for at, events in enumerate(left) if events]))
        take = data.draw(st.integers(1, len(left[choice])))
        batches.append((choice, left[choice][:take]))
        left[choice] = left[choice][take:]
    stream = case.stream(batches)
    chunks = chunks_of(stream)
    document = case.document()
    assert accumulate(chunks, case.choices) == document["choices"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    roles = [
        choice["index"]
        for chunk in chunks
        for choice in chunk["choices"]
        if "role" in choice["delta"]
    ]
    assert roles == list(range(case.choices))
    assert all(("usage" in chunk) == shape.include_usage for chunk in chunks)
    _check_dispatch(stream, document, several, shape)


def _check_dispatch(
    stream: str, document: dict[str, Any], several: list[list[TurnEvent]], shape: ChatShape
) -> None:
    result = [
        data["tool_call_dispatch"] for name, data in frames(stream) if name == "tool_call_dispatch"
    ]
    for each in result:
        call = each["tool_call"]
        if call["type"] == "function":
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
        message = document["choices"][each["choice_index"]]["message"]
        if shape.legacy:
            assert call["function"] == message["function_call"]
        else:
            inline = message["tool_calls"][call["index"]]
            assert inline == {key: call[key] for key in inline}
    complete = [
        (choice, events[0].call_id)
        for choice, turn in enumerate(several)
        for events in _blocks(turn)
        if events[0].kind == "tool_use" and events[-1].complete
    ]
    if not shape.legacy:
        assert sorted((each["choice_index"], each["tool_call"]["id"]) for each in result) == sorted(
            complete
        )
    thoughts = [
        data["reasoning_dispatch"] for name, data in frames(stream) if name == "reasoning_dispatch"
    ]
    whole = [
        "".join(event.text for event in events[1:-1]) for turn in several for events in _blocks(turn)
        if events[0].kind == "reasoning"
    ]  # fmt: skip
    shown = shape.reasoning != "omitted"
    assert sorted(each["reasoning_content"] for each in thoughts) == sorted(
        text for text in whole if text and shown
    )


def _blocks(events: list[TurnEvent]) -> list[list[Any]]:
    found: list[list[Any]] = []
    for event in events[:-1]:
        if isinstance(event, BlockStart):
            found.append([])
        found[-1].append(event)
    return found


@given(turns())
def test_raw_input_equals_the_input_in_the_arguments(events: list[TurnEvent]) -> None:
    plain = Case([(0, events)]).document()["choices"][0]["message"].get("tool_calls", [])
    shape = ChatShape(freeform=frozenset({"patch"}))
    freeform = Case([(0, events)], shape).document()["choices"][0]["message"].get("tool_calls", [])
    for function, custom in zip(plain, freeform, strict=True):
        if custom["type"] == "custom":
            assert custom["custom"]["input"] in (
                freeform_input(function["function"]["arguments"]),
                "",
            )
        else:
            assert custom == function


def write_transcripts() -> None:
    for path in CASES:
        case = load(path)
        path.with_suffix(".sse").write_text(case.stream(case.single()))
        if not case.failed():
            document = json.dumps(case.document(), indent=1, ensure_ascii=False)
            path.with_suffix(".document.json").write_text(document + "\n")


if __name__ == "__main__":
    write_transcripts()
