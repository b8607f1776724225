"""Tests Responses streams and documents against transcripts in tests/fixtures/responses/turns.

`<case>.json` has a request and a turn's events, `.sse` the expected stream, `.response.json` the
expected document. Run this file as a program to write the transcripts again, and review the
difference.
"""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from schemas.errors import EngineFailed, ErrorInfo, ErrorKind
from schemas.events import (
    BlockStart,
    BlockStop,
    Delta,
    Finish,
    FinishReason,
    Prepared,
    TurnEvent,
    Usage,
    failure_of,
)
from services.frontend.apis.responses import routes
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.render.events import KEEPALIVE, payloads, sse_frame
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.shared.openai.chunks import DONE
from services.frontend.apis.shared.openapi import document
from services.frontend.turns.interfaces import AnswerInfo

TURNS = Path(__file__).parents[2] / "fixtures" / "responses" / "turns"
CASES = sorted(path for path in TURNS.glob("*.json") if not path.name.endswith(".response.json"))
PREPARED = Prepared(656, 1024)
PLAIN = {"model": "acme/served-model", "input": "Hi."}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OPENAPI = document("1.0", [routes.API])
_MERGED = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)


class Case(msgspec.Struct):
    events: list[TurnEvent]
    request: dict[str, Any] = msgspec.field(default_factory=lambda: dict(PLAIN))
    dispatch: bool = False

    def ask(self) -> ConvertedRequest:
        return Responses().parse(json.dumps(self.request).encode(), {})

    def reply(self) -> AnswerInfo:
        return AnswerInfo(
            "0a1b2c",
            "req_0a1b2c",
            "acme/served-model",
            1700000000,
            self.dispatch,
            self.dispatch,
            lambda: 1700000009.5,
        )

    def stream(self, batches: list[list[TurnEvent]]) -> str:
        renderer = self.ask().renderer(self.reply())
        return (
            renderer.start([PREPARED]) + b"".join(renderer.events(batch) for batch in batches)
        ).decode()

    def document(self) -> dict[str, Any]:
        collector = self.ask().collector(self.reply())
        collector.start([PREPARED])
        collector.events(self.events)
        found: dict[str, Any] = json.loads(collector.body())
        return found


def load(path: Path) -> Case:
    return msgspec.json.decode(path.read_bytes(), type=Case)


def frames(stream: str) -> list[dict[str, Any]]:
    found = []
    assert stream.endswith("\n\n")
    for text in stream.removesuffix("\n\n").split("\n\n"):
        if text == "data: [DONE]":
            continue
        event, data = text.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == f"event: {found[-1]['type']}"
    return found


def merged(stream: str) -> list[Any]:
    """Events with adjacent deltas of one kind joined, so that batching makes no difference."""
    out: list[Any] = []
    for data in frames(stream):
        data.pop("sequence_number", None)
        last = out[-1] if out else None
        if last and last["type"] == data["type"] in _MERGED:
            last["delta"] += data["delta"]
            last["logprobs"] = last.get("logprobs", []) + data.get("logprobs", [])
        else:
            out.append(data)
    for data in out:
        if data.get("logprobs") == []:
            del data["logprobs"]
    return out


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", CASES, ids=named)
def test_stream_equals_the_transcript(path: Path) -> None:
    case = load(path)
    assert case.stream([[event] for event in case.events]) == path.with_suffix(".sse").read_text()


@pytest.mark.parametrize("path", CASES, ids=named)
def test_batching_changes_only_the_pieces(path: Path) -> None:
    case = load(path)
    single = merged(case.stream([[event] for event in case.events]))
    assert merged(case.stream([case.events])) == single
    for cut in range(len(case.events)):
        assert merged(case.stream([case.events[:cut], case.events[cut:]])) == single


@pytest.mark.parametrize("path", CASES, ids=named)
def test_document_equals_the_transcript_and_the_end_of_the_stream(path: Path) -> None:
    case = load(path)
    last = frames(case.stream([[event] for event in case.events]))[-1]
    if failure_of(case.events[-1]) is not None:
        assert last["type"] == "response.failed"
        assert not path.with_suffix(".response.json").exists()
        return
    document = case.document()
    assert document == json.loads(path.with_suffix(".response.json").read_text())
    assert document == last["response"]


@pytest.mark.parametrize("path", CASES, ids=named)
def test_every_event_and_document_fits_the_sdks_strict_types(path: Path) -> None:
    case = load(path)
    for data in frames(case.stream([[event] for event in case.events])):
        if not data["type"].endswith("_dispatch"):
            EVENTS.validate_python(data, strict=False)
    if failure_of(case.events[-1]) is None:
        Response.model_validate(case.document())


@pytest.mark.parametrize("path", CASES, ids=named)
def test_every_event_and_document_has_its_schema_of_the_openapi_document(path: Path) -> None:
    case = load(path)
    content = OPENAPI["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"]
    described = content["text/event-stream"]["schema"]["properties"]
    event, done = described["data"]["anyOf"]
    assert done == {"const": "[DONE]"}
    for data in frames(case.stream([case.events])):
        assert re.fullmatch(described["event"]["pattern"], data["type"])
        conforms(data, event["contentSchema"])
    if failure_of(case.events[-1]) is None:
        conforms(case.document(), content["application/json"]["schema"])


def conforms(data: Any, schema: dict[str, Any]) -> None:
    jsonschema.validate(data, {**schema, "components": OPENAPI["components"]})


@pytest.mark.parametrize("path", CASES, ids=named)
def test_payloads_are_indexed_by_sequence_number(path: Path) -> None:
    case = load(path)
    rendered = case.stream([[event] for event in case.events]).encode()
    found = payloads(rendered)
    assert [json.loads(payload)["sequence_number"] for payload in found] == list(range(len(found)))
    again = b"".join(sse_frame(payload) for payload in found) + DONE
    assert again == rendered if not case.dispatch else again in _without_dispatch(rendered)


def _without_dispatch(rendered: bytes) -> bytes:
    kept = [text for text in rendered.split(b"\n\n") if b"_dispatch\ndata: " not in text]
    return b"\n\n".join(kept)


def test_call_ends_before_the_next_block() -> None:
    case = load(TURNS / "interleaved.json")
    renderer = case.ask().renderer(case.reply())
    renderer.start([PREPARED])
    for event in case.events:
        out = renderer.events([event]).decode()
        if isinstance(event, BlockStop) and event.block in (2, 4, 5, 6):
            *_, done = frames(out)
            assert done["type"] == "response.output_item.done"
            assert done["item"]["call_id"] == f"toolu_{event.block}"


def test_namespaced_call_has_its_namespace_and_bare_name() -> None:
    calls = [
        item
        for item in load(TURNS / "interleaved.json").document()["output"]
        if "namespace" in item
    ]
    assert [(call["type"], call["namespace"], call["name"]) for call in calls] == [
        ("function_call", "multi_agent_v1", "spawn_agent"),
        ("custom_tool_call", "multi_agent_v1", "exec"),
    ]


@pytest.mark.parametrize(
    "name", ["call_cut_behind_its_arguments", "call_cut_before_its_arguments", "freeform_cut"]
)
def test_cut_call_never_looks_complete(name: str) -> None:
    case = load(TURNS / f"{name}.json")
    seen = frames(case.stream([[event] for event in case.events]))
    assert "response.output_item.done" not in [data["type"] for data in seen]
    assert [item["status"] for item in seen[-1]["response"]["output"]] == ["incomplete"]


@pytest.mark.parametrize("name", ["shell", "exec_command"])
def test_complete_call_without_arguments_has_an_empty_object(name: str) -> None:
    call: list[TurnEvent] = [
        BlockStart(0, "tool_use", name, "c"),
        BlockStop(0),
        Finish(FinishReason.STOP, 1, Usage(1, 0, 1)),
    ]
    case = Case(call, load(TURNS / "parallel.json").request)
    (delta,) = [data for data in frames(case.stream([call])) if data["type"].endswith(".delta")]
    assert delta["delta"] == case.document()["output"][0]["arguments"] == "{}"


def test_cut_built_in_call_is_not_sent() -> None:
    case = load(TURNS / "built_in_cut.json")
    assert [item["type"] for item in case.document()["output"]] == ["message"]
    assert "rm -r" not in case.stream([case.events])


def test_only_complete_valid_calls_are_dispatched_once() -> None:
    case = load(TURNS / "dispatch.json")
    seen = frames(case.stream([[event] for event in case.events]))
    result = [data for data in seen if data["type"].endswith("_dispatch")]
    assert [(data["type"], data["output_index"]) for data in result] == [
        ("reasoning_dispatch", 0),
        ("tool_call_dispatch", 1),
        ("tool_call_dispatch", 2),
    ]
    done = {
        data["output_index"]: data["item"]
        for data in seen
        if data["type"] == "response.output_item.done"
    }
    assert all(data["item"] == done[data["output_index"]] for data in result)
    assert "_dispatch" not in Case(case.events, case.request).stream([case.events])


def test_summary_equals_the_thought_without_repeated_pieces() -> None:
    case = load(TURNS / "summary.json")
    stream = case.stream([[event] for event in case.events])
    assert "response.reasoning_text.delta" not in stream
    (thought, _) = case.document()["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "I should look."}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I should look."}]
    assert thought["encrypted_content"] == "c2VhbA"


def test_nothing_follows_the_end() -> None:
    case = Case([Finish(FinishReason.STOP, 0, Usage(1, 0, 1))])
    renderer = case.ask().renderer(case.reply())
    renderer.start([PREPARED])
    renderer.events(case.events)
    assert renderer.events(case.events) == b""
    assert renderer.error(ErrorInfo(ErrorKind.ENGINE, "late")) == b""
    assert renderer.state.document().status == "completed"


@pytest.mark.parametrize("kind", ["text", "reasoning", "tool_use"])
def test_error_outside_the_turn_fails_the_response(kind: Any) -> None:
    case = Case(
        [BlockStart(0, kind, name="look" if kind == "tool_use" else None), Delta(0, 0, "half")]
    )
    renderer = case.ask().renderer(case.reply())
    renderer.start([PREPARED])
    renderer.events(case.events)
    *_, failed = frames(renderer.error(ErrorInfo(ErrorKind.TIMED_OUT, "too late")).decode())
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "too late"}
    assert failed["response"]["output"][0]["status"] == "incomplete"


def test_cancelled_response_keeps_its_output() -> None:
    events: list[TurnEvent] = [
        BlockStart(0, "reasoning"),
        Delta(0, 0, "Hm."),
        BlockStop(0),
        BlockStart(1, "text"),
    ]
    case = Case([*events, Delta(1, 0, "half")])
    renderer = case.ask().renderer(case.reply())
    renderer.start([PREPARED])
    renderer.events(case.events)
    assert renderer.break_off() == renderer.break_off() == b""
    document = renderer.state.document("cancelled")
    thought, message = (json.loads(bytes(item)) for item in document.output)
    assert (thought["type"], message["status"], message["content"][0]["text"]) == (
        "reasoning",
        "incomplete",
        "half",
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_document_stays_the_same_after_the_end_as_time_goes_on(path: Path) -> None:
    case, clock = msgspec.json.decode(path.read_bytes(), type=Case), itertools.count(1700000009.5)
    renderer = case.ask().renderer(replace(case.reply(), now=lambda: next(clock)))
    renderer.start([PREPARED])
    renderer.events(case.events)
    if renderer.state.ended:
        assert renderer.state.document() == renderer.state.document()


def test_response_document_is_available_at_any_time() -> None:
    case = load(TURNS / "parallel.json")
    renderer = case.ask().renderer(case.reply())
    assert renderer.state.document().status == "in_progress"
    renderer.start([PREPARED])
    renderer.events(case.events[:3])
    assert [json.loads(bytes(item))["call_id"] for item in renderer.state.items] == ["toolu_0"]
    assert renderer.state.document("cancelled").status == "cancelled"
    assert len(renderer.state.document().output) == 1
    queued = case.ask().renderer(case.reply()).state.document("queued")
    assert Response.model_validate(json.loads(msgspec.json.encode(queued))).status == "queued"


def test_indented_request_does_not_break_the_stream() -> None:
    request = {
        "model": "m",
        "input": "Hi.",
        "tools": [{"type": "function", "name": "f", "parameters": {"a": [1.0]}}],
    }
    body = json.dumps(
        {**request, "tool_choice": {"type": "function", "name": "f"}, "text": {}}, indent=2
    ).encode()
    renderer = Responses().parse(body, {}).renderer(Case([]).reply())
    (created, _) = frames(renderer.start([PREPARED]).decode())
    assert created["response"]["tools"][0]["parameters"] == {"a": [1.0]}


def test_keep_alive_is_one_data_event() -> None:
    assert KEEPALIVE == b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    assert payloads(KEEPALIVE) == []


class Plain:
    """A sealer that seals nothing."""

    def seal(self, text: str) -> str:
        return "sealed:" + text

    def open(self, blob: str) -> str | None:
        return blob.removeprefix("sealed:") if blob.startswith("sealed:") else None


def compacting(stream: bool = True) -> ConvertedRequest:
    items = [{"role": "user", "content": "Fix it."}, {"type": "compaction_trigger"}]
    body = {
        "model": "m",
        "input": items,
        "stream": stream,
        "include": ["reasoning.encrypted_content"],
    }
    return Responses().convert(decode(json.dumps(body).encode()), {}, sealer=Plain())


def test_compaction_is_exactly_one_item() -> None:
    ask = compacting()
    events: list[TurnEvent] = [
        *(BlockStart(0, "reasoning"), Delta(0, 0, "Sum up."), BlockStop(0, seal="x")),
        *(BlockStart(1, "text"), Delta(1, 0, "We fixed"), Delta(1, 8, " it."), BlockStop(1)),
        Finish(FinishReason.LENGTH, 2, Usage(9, 0, 5)),
    ]
    renderer = ask.renderer(Case([]).reply())
    seen = frames(
        (
            renderer.start([PREPARED]) + b"".join(renderer.events([event]) for event in events)
        ).decode()
    )
    assert [data["type"].removeprefix("response.") for data in seen] == [
        *("created", "in_progress", "output_item.added", "output_item.done", "completed"),
    ]
    (item,) = seen[-1]["response"]["output"]
    assert item["type"] == "compaction"
    again = {"model": "m", "input": [item, {"role": "user", "content": "Go on."}]}
    conversation = (
        Responses().convert(decode(json.dumps(again).encode()), {}, sealer=Plain()).conversation
    )
    assert conversation.messages[0].parts[0].text.endswith("\n\nWe fixed it.")  # type: ignore[union-attr]


def test_compaction_without_a_summary_fails() -> None:
    collector = compacting().collector(Case([]).reply())
    collector.events([Finish(FinishReason.STOP, 0, Usage(9, 0, 5))])
    with pytest.raises(EngineFailed, match="no summary"):
        collector.body()


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = ("exec_command", "apply_patch", "tool_search", "shell", "multi_agent_v1__exec", "unknown")
_ARGUMENTS = (
    '{"a": 1}',
    '{"input": "\\u00e9\\n',
    '{"input": "x"}',
    "",
    "{",
    '{"commands": ["a"]}',
    "[]",
    "raw text",
)


@st.composite
def turns(draw: st.DrawFn) -> list[TurnEvent]:
    events: list[TurnEvent] = []
    kinds = draw(st.lists(st.sampled_from(["reasoning", "text", "tool_use"]), max_size=6))
    for block, kind in enumerate(kinds):
        name = draw(st.sampled_from(_NAMES)) if kind == "tool_use" else None
        text = draw(st.sampled_from(_ARGUMENTS)) if name else draw(_text)
        events.append(BlockStart(block, kind, name, f"call_{block}" if name else None))  # type: ignore[arg-type]
        cut = draw(st.integers(0, len(text)))
        events += [Delta(block, 0, text[:cut]), Delta(block, cut, text[cut:])]
        complete = draw(st.booleans()) if name else True
        events.append(BlockStop(block, complete, len(text), draw(st.sampled_from([None, "c2ln"]))))
    events.append(
        Finish(draw(st.sampled_from(list(FinishReason)[:4])), len(kinds), Usage(9, 3, 5, 1), "END")
    )
    return events


@given(turns(), st.booleans(), st.data())
def test_every_stream_follows_the_grammar(
    events: list[TurnEvent], summary: bool, data: st.DataObject
) -> None:
    request = {
        **load(TURNS / "interleaved.json").request,
        "reasoning": {"summary": "auto" if summary else None},
    }
    case = Case(events, request)
    cut = data.draw(st.integers(0, len(events)))
    stream = case.stream([events[:cut], events[cut:]])
    seen = frames(stream)
    assert stream.endswith("data: [DONE]\n\n")
    assert [each["sequence_number"] for each in seen] == list(range(len(seen)))
    assert [each["type"] for each in seen[:2]] == ["response.created", "response.in_progress"]
    document = case.document()
    assert seen[-1]["response"] == document
    _check_items(seen[2:-1], document["output"])


def _check_items(seen: list[dict[str, Any]], output: list[dict[str, Any]]) -> None:
    shown: dict[str, str] = {}
    added: list[dict[str, Any]] = []
    done: list[int] = []
    for each in seen:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(added)
            added.append(each["item"])
        elif kind == "output_item.done":
            assert each["output_index"] == len(added) - 1
            assert each["item"] == output[each["output_index"]]
            done.append(each["output_index"])
        else:
            assert each["item_id"] == added[each["output_index"]]["id"]
            if kind.endswith(".delta"):
                assert each["delta"]
                shown[each["item_id"]] = shown.get(each["item_id"], "") + each["delta"]
    assert [item["id"] for item in added] == [item["id"] for item in output]
    assert len(set(done)) == len(done)
    for index, item in enumerate(output):
        text = item.get("arguments", item.get("input"))
        if item["type"] in ("message", "reasoning"):
            text = item["content"][0]["text"]
            assert text
        if isinstance(text, str):
            assert shown.get(item["id"], "") == text
        if index not in done:
            assert item["status"] == "incomplete"


def write_transcripts() -> None:
    for path in CASES:
        case = load(path)
        path.with_suffix(".sse").write_text(case.stream([[event] for event in case.events]))
        if failure_of(case.events[-1]) is None:
            document = json.dumps(case.document(), indent=1, ensure_ascii=False)
            path.with_suffix(".response.json").write_text(document + "\n")


if __name__ == "__main__":
    write_transcripts()
