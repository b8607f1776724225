"""Tests the exact answers of Completions."""

import json
from typing import Any

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
from services.frontend.apis.completions.render import (
    CompletionsCollector,
    CompletionsShape,
    completions_stream,
)
from tests.kit.answers import frames
from tests.kit.stories import Batches
from tests.kit.telling import INFO

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
    return [
        *events,
        BlockStop(0, length=offset),
        Finish(reason, 1, usage or Usage(prompt=5, cached=2, output=3), stop),
    ]


def stream(shape: CompletionsShape, batches: Batches) -> list[Any]:
    renderer = completions_stream(INFO, shape)
    out = [renderer.start([Prepared(prompt_tokens=5, max_tokens=16)] * len(shape.echoes))]
    out += [renderer.render(events, choice) for choice, events in batches]
    return [data for _, data in frames(b"".join(out))]


def document(shape: CompletionsShape, batches: Batches) -> dict[str, Any]:
    collector = CompletionsCollector(completions_stream(INFO, shape.for_document()))
    collector.start([Prepared(prompt_tokens=5, max_tokens=16)] * len(shape.echoes))
    for choice, events in batches:
        collector.add(events, choice)
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
        (3, said("d", reason=FinishReason.LENGTH, usage=Usage(prompt=7, cached=7, output=1))),
        (0, said("a", usage=Usage(prompt=5, cached=0, output=3))),
        (1, said("b", usage=Usage(prompt=5, cached=5, output=2))),
        (2, said("c", usage=Usage(prompt=7, cached=6, output=4))),
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
