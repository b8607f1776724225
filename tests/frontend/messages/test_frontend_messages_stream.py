"""Tests Messages streams and documents against transcripts in tests/fixtures/messages/turns.

`<case>.json` has a turn's events, `.sse` the expected stream, `.message.json` the expected
document. Run this file as a program to write the transcripts again, and review the difference.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Dispatch,
    Finish,
    FinishReason,
    Prepared,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.messages.document import MessageCollector
from services.frontend.apis.messages.render import MessagesStream
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.turns.interfaces import AnswerInfo
from tests.kit.events import with_dispatch

TURNS = Path(__file__).parents[2] / "fixtures" / "messages" / "turns"
CASES = sorted(TURNS.glob("*.json"), key=lambda path: path.name)
CASES = [path for path in CASES if not path.name.endswith(".message.json")]
PREPARED = Prepared(656, 1024)


class Case(msgspec.Struct):
    events: list[TurnEvent]
    options: dict[str, bool] = {}

    def reply(self) -> AnswerInfo:
        return AnswerInfo(
            "0a1b2c",
            "req_0a1b2c",
            "acme/served-model",
            1700000000,
            self.options.get("dispatch", False),
        )

    def renderer(self) -> MessagesStream:
        return MessagesStream(self.reply(), **self._display())

    def collector(self) -> MessageCollector:
        return MessageCollector(MessagesStream(self.reply(), **self._display()))

    def stream(self, batches: list[list[TurnEvent]]) -> str:
        renderer = self.renderer()
        return (
            renderer.start([PREPARED]) + b"".join(renderer.events(batch) for batch in batches)
        ).decode()

    def document(self) -> str:
        collector = self.collector()
        collector.start([PREPARED])
        collector.events(self.events)
        return collector.body().decode()

    def _display(self) -> dict[str, Any]:
        managed = self.options.get("context_management", False)
        return {
            "omit_thinking": self.options.get("omit_thinking", False),
            "applied_edits": [] if managed else None,
        }


def load(path: Path) -> Case:
    case = msgspec.json.decode(path.read_bytes(), type=Case)
    (case.events,) = with_dispatch(case.events)
    return case


def frames(stream: str) -> list[tuple[str, Any]]:
    found = []
    for frame in stream.removesuffix("\n\n").split("\n\n"):
        event, data = frame.split("\n")
        found.append((event.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def merged(stream: str) -> list[Any]:
    """Frames with adjacent deltas of one kind joined, so that batching makes no difference."""
    out: list[Any] = []
    for _, data in frames(stream):
        delta = data.get("delta") if data["type"] == "content_block_delta" else None
        last = out[-1] if out else None
        if (
            delta
            and last
            and last["type"] == "content_block_delta"
            and last["delta"]["type"] == delta["type"]
        ):
            key = next(name for name in delta if name != "type")
            last["delta"][key] += delta[key]
        else:
            out.append(data)
    return out


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_stream_equals_the_transcript(path: Path) -> None:
    case = load(path)
    assert case.stream([[event] for event in case.events]) == path.with_suffix(".sse").read_text()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_batching_changes_only_the_pieces(path: Path) -> None:
    case = load(path)
    single = merged(case.stream([[event] for event in case.events]))
    assert merged(case.stream([case.events])) == single
    assert merged(case.stream([case.events[:3], case.events[3:]])) == single


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_document_equals_the_transcript(path: Path) -> None:
    case = load(path)
    if failure_of(case.events[-1]) is not None:
        assert not path.with_suffix(".message.json").exists()
        return
    assert json.loads(case.document()) == json.loads(path.with_suffix(".message.json").read_text())


def test_arguments_keep_their_spelling_in_the_document() -> None:
    case = load(TURNS / "interleaved.json")
    assert '"input":{"pattern": "old\\\\.flag", "limit": 5000.0}' in case.document()


def test_call_without_an_object_has_an_empty_input_in_the_document() -> None:
    events: list[TurnEvent] = [
        BlockStart(0, "tool_use", name="look", call_id="c"),
        Delta(0, 0, '{"at": }'),
        BlockStop(0, complete=False),
        Finish(FinishReason.STOP, 1, Usage(1, 0, 1)),
    ]
    document = json.loads(Case(events).document())
    assert [(block["name"], block["input"]) for block in document["content"]] == [("look", {})]
    assert document["stop_reason"] == "end_turn"


def test_dispatch_of_indented_arguments_is_one_line() -> None:
    arguments = '{\n\n  "at": 1.0\n}'
    events: list[TurnEvent] = [
        BlockStart(0, "tool_use", name="look", call_id="c"),
        Delta(0, 0, arguments),
        Dispatch(0, "c", "look", arguments),
        BlockStop(0),
        Finish(FinishReason.STOP, 1, Usage(1, 0, 1)),
    ]
    result = [
        data
        for name, data in frames(Case(events, {"dispatch": True}).stream([events]))
        if name.endswith("dispatch")
    ]
    assert [data["tool_call_dispatch"]["input"] for data in result] == [{"at": 1.0}]


def test_start_has_the_expected_cached_tokens_and_end_the_exact_number() -> None:
    renderer = MessagesStream(Case([]).reply())
    (_, start), *_ = frames(renderer.start([Prepared(656, 1024, cached=512)]).decode())
    end = frames(renderer.events([Finish(FinishReason.STOP, 0, Usage(656, 600, 1))]).decode())[0][1]
    for usage, cached in ((start["message"]["usage"], 512), (end["usage"], 600)):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (656 - cached, cached)


def test_call_without_an_id_gets_a_unique_one() -> None:
    events: list[TurnEvent] = [
        BlockStart(0, "tool_use", name="look"),
        BlockStop(0),
        BlockStart(1, "tool_use", name="look"),
        BlockStop(1),
        Finish(FinishReason.STOP, 2, Usage(1, 0, 1)),
    ]
    ids = [block["id"] for block in json.loads(Case(events).document())["content"]]
    assert ids == ["toolu_0a1b2c0", "toolu_0a1b2c1"]


def test_document_of_an_unfinished_turn_raises() -> None:
    with pytest.raises(RuntimeError):
        Case([]).document()


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def turns(draw: st.DrawFn) -> list[TurnEvent]:
    events: list[TurnEvent] = []
    kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "tool_use"]), max_size=6))
    for block, kind in enumerate(kinds):
        call = {"name": "look", "call_id": f"call_{block}"} if kind == "tool_use" else {}
        events.append(BlockStart(block, kind, **call))  # type: ignore[arg-type]
        offset = 0
        pieces = ['{"a"', ": 1}"] if kind == "tool_use" else draw(st.lists(_text, max_size=3))
        for piece in pieces:
            events.append(Delta(block, offset, piece))
            offset += len(piece)
        events.append(BlockStop(block, length=offset, seal=draw(st.sampled_from([None, "c2ln"]))))
    events.append(
        Finish(draw(st.sampled_from(list(FinishReason)[:4])), len(kinds), Usage(9, 3, 5, 1), "END")
    )
    return events


@given(turns(), st.data())
def test_every_stream_follows_the_grammar(events: list[TurnEvent], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(events)))
    case = Case(events)
    seen = frames(case.stream([events[:cut], events[cut:]]))
    assert seen[0][0] == "message_start"
    assert [name for name, _ in seen][-2:] == ["message_delta", "message_stop"]
    assert all(name == data["type"] for name, data in seen)
    content: list[dict[str, Any]] = []
    is_open = False
    for name, frame in seen[1:-2]:
        if name == "content_block_start":
            assert not is_open
            assert frame["index"] == len(content)
            content.append(dict(frame["content_block"]))
            is_open = True
        elif name == "content_block_delta":
            assert is_open
            assert frame["index"] == len(content) - 1
            (field,) = frame["delta"].keys() - {"type"}
            content[-1][field] = content[-1].get(field, "") + frame["delta"][field]
        elif name == "content_block_stop":
            assert is_open
            is_open = False
        else:
            assert name == "ping"
    assert not is_open
    for block in content:
        assert block.get("text") != ""
        assert block.get("signature") != ""
    document = json.loads(case.document())
    assert [_said(block) for block in content] == [_said(block) for block in document["content"]]
    assert seen[-2][1]["delta"] == {
        key: document[key] for key in ("stop_reason", "stop_sequence", "stop_details")
    }


def test_finished_thought_is_sent_whole_on_request() -> None:
    events: list[TurnEvent] = [
        BlockStart(0, "reasoning"),
        Delta(0, 0, "one "),
        Delta(0, 4, "two"),
        BlockStop(0, length=7, seal="c2ln"),
        BlockStart(1, "text"),
        Delta(1, 0, "hello"),
        BlockStop(1, length=5),
        BlockStart(2, "reasoning"),
        Delta(2, 0, "cut"),
        BlockStop(2, complete=False, length=3),
        Finish(FinishReason.LENGTH, 3, Usage()),
    ]
    reply = AnswerInfo(
        "0a1b2c", "req_0a1b2c", "acme/served-model", 1700000000, dispatch_reasoning=True
    )
    for omitted, thinking in ((False, "one two"), (True, "")):
        renderer = MessagesStream(reply, omit_thinking=omitted)
        renderer.start([PREPARED])
        seen = frames(b"".join(renderer.events([event]) for event in events).decode())
        names = [name for name, _ in seen]
        assert names.count("reasoning_dispatch") == 1
        at = names.index("reasoning_dispatch")
        assert names[at - 1] == "content_block_stop"
        block = {"index": 0, "type": "thinking", "thinking": thinking, "signature": "c2ln"}
        assert seen[at][1] == {"type": "ping", "reasoning_dispatch": block}
        assert "tool_call_dispatch" not in names


def _said(block: dict[str, Any]) -> tuple[Any, ...]:
    if block["type"] == "tool_use":
        return (
            block["id"],
            block["name"],
            json.loads(block["partial_json"]) if block.get("partial_json") else block["input"],
        )
    if block["type"] == "thinking":
        assert block["signature"] in ("c2ln", UNSEALED)
        return "thinking", block["thinking"], block["signature"]
    return "text", block["text"]


def write_transcripts() -> None:
    for path in CASES:
        case = load(path)
        path.with_suffix(".sse").write_text(case.stream([[event] for event in case.events]))
        if failure_of(case.events[-1]) is None:
            document = json.dumps(json.loads(case.document()), indent=1, ensure_ascii=False)
            path.with_suffix(".message.json").write_text(document + "\n")


if __name__ == "__main__":
    write_transcripts()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=4), st.integers(1, 5))
def test_counted_thoughts_add_up_to_their_tokens(thoughts: list[int], batch: int) -> None:
    """One delta or more is omitted for each report; a stream without the beta has none."""
    events: list[TurnEvent] = []
    for number, tokens in enumerate(thoughts):
        events.append(BlockStart(number, "reasoning"))
        events += [Delta(number, at, "x") for at in range(tokens)]
        events.append(BlockStop(number, length=tokens, seal="s", tokens=tokens + 2))
    events.append(Finish(FinishReason.STOP, len(thoughts), Usage(656, 600, 1)))
    batches = [events[at : at + batch] for at in range(0, len(events), batch)]

    def deltas(**options: Any) -> list[list[dict[str, Any]]]:
        renderer = MessagesStream(AnswerInfo("0a", "req_0a", "m", 1700000000), **options)
        stream = (
            renderer.start([PREPARED]) + b"".join(renderer.events(part) for part in batches)
        ).decode()
        found: list[list[dict[str, Any]]] = [[] for _ in thoughts]
        for name, data in frames(stream):
            if name == "content_block_delta" and data["delta"]["type"] == "thinking_delta":
                found[data["index"]].append(data["delta"])
        return found

    counted = deltas(omit_thinking=True, count_thinking=True)
    assert [sum(delta["estimated_tokens"] for delta in block) for block in counted] == [
        n + 2 for n in thoughts
    ]
    assert all(
        delta["estimated_tokens"] > 0 and delta["thinking"] == ""
        for block in counted
        for delta in block
    )
    shown = deltas(count_thinking=True)
    assert all(delta["estimated_tokens"] is None for block in shown for delta in block)
    assert ["".join(delta["thinking"] for delta in block) for block in shown] == [
        "x" * n for n in thoughts
    ]
    assert deltas(omit_thinking=True) == [[] for _ in thoughts]
    assert all("estimated_tokens" not in delta for block in deltas() for delta in block)
