"""The judge: what is as it should be is whole, and each way to be wrong has its verdict."""

import json
from random import Random
from typing import Any

import pytest

from tests.chaos.apis import expected_blocks
from tests.chaos.judge import Attempt, Verdict, Wanted, judge
from tests.chaos.samples import Sample, growth
from tests.chaos.scripts import Block, Script, write_script
from turnwire_tools.clients.answer import APIS, Api

SCRIPT = write_script(Random(1), "w", 10.0, 30)
TOKENS = 77


def sse(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data}, ensure_ascii=False)}\n\n".encode()


def pieces(text: str) -> list[str]:
    return [text[at : at + 9] for at in range(0, len(text), 9)]


def messages(blocks: tuple[Block, ...], error: str = "") -> list[bytes]:
    """A stream of Messages."""
    found = [sse("message_start", message={})]
    kinds = {"reasoning": "thinking", "text": "text", "call": "tool_use"}
    deltas = {
        "reasoning": ("thinking_delta", "thinking"),
        "text": ("text_delta", "text"),
        "call": ("input_json_delta", "partial_json"),
    }
    for index, block in enumerate(blocks):
        start: dict[str, Any] = {"type": kinds[block.kind], "name": block.name, "id": f"id{index}"}
        start |= {"thinking": "", "text": "", "input": {}}
        found.append(sse("content_block_start", index=index, content_block=start))
        kind, field = deltas[block.kind]
        for piece in pieces(block.text):
            found.append(
                sse("content_block_delta", index=index, delta={"type": kind, field: piece})
            )
        if block.kind == "reasoning":
            found.append(
                sse(
                    "content_block_delta",
                    index=index,
                    delta={"type": "signature_delta", "signature": "x"},
                )
            )
        found.append(sse("content_block_stop", index=index))
    if error:
        return [*found, sse("error", error={"message": error})]
    usage = {
        "input_tokens": 9,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": TOKENS,
    }
    reason = "tool_use" if SCRIPT.calls else "end_turn"
    found.append(sse("message_delta", delta={"stop_reason": reason}, usage=usage))
    return [*found, sse("message_stop")]


def chat(blocks: tuple[Block, ...]) -> list[bytes]:
    """A stream of Chat Completions."""

    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return (
            f"data: {json.dumps({'id': 'c', 'choices': [choice]}, ensure_ascii=False)}\n\n".encode()
        )

    found, calls = [chunk({"role": "assistant", "content": ""})], 0
    for block in blocks:
        if block.kind == "call":
            call = {
                "index": calls,
                "id": f"id{calls}",
                "function": {"name": block.name, "arguments": ""},
            }
            found.append(chunk({"tool_calls": [call]}))
        for piece in pieces(block.text):
            if block.kind == "call":
                found.append(
                    chunk({"tool_calls": [{"index": calls, "function": {"arguments": piece}}]})
                )
            else:
                found.append(
                    chunk({"content" if block.kind == "text" else "reasoning_content": piece})
                )
        calls += block.kind == "call"
    found.append(chunk({}, "tool_calls" if SCRIPT.calls else "stop"))
    found.append(
        f"data: {json.dumps({'id': 'c', 'choices': [], 'usage': {'prompt_tokens': 9, 'completion_tokens': TOKENS}})}\n\n".encode()
    )
    return [*found, b": ping\n\n", b"data: [DONE]\n\n"]


def responses(blocks: tuple[Block, ...]) -> list[bytes]:
    """A stream of Responses."""
    events: list[dict[str, Any]] = [{"type": "response.created"}]
    items: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        kinds = {"reasoning": "reasoning", "text": "message", "call": "function_call"}
        item: dict[str, Any] = {
            "type": kinds[block.kind],
            "name": block.name,
            "call_id": f"id{index}",
        }
        item |= {"content": [], "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        for piece in pieces(block.text):
            events.append(
                {"type": "response.output_text.delta", "output_index": index, "delta": piece}
            )
        if block.kind == "call":
            item = {**item, "arguments": block.text}
        else:
            item = {**item, "content": [{"text": block.text}]}
        items.append(item)
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    response = {
        "status": "completed",
        "output": items,
        "usage": {"input_tokens": 9, "output_tokens": TOKENS},
    }
    events.append({"type": "response.completed", "response": response})
    numbered = [
        sse(event["type"], sequence_number=number, **event) for number, event in enumerate(events)
    ]
    return [*numbered, b"data: [DONE]\n\n"]


STREAMS = {"messages": messages, "chat": chat, "responses": responses}


def wanted(api: Api, script: Script = SCRIPT) -> Wanted:
    return Wanted(api, True, script, TOKENS)


def verdict(api: Api, frames: list[bytes], **attempt: Any) -> Verdict:
    sent = Attempt(
        0.0, 200, chunks=[(float(at), data) for at, data in enumerate(frames)], **attempt
    )
    return judge(wanted(api), [sent], ["serving"]).verdict


@pytest.mark.parametrize("api", APIS)
def test_the_expected_stream_is_whole(api: Api) -> None:
    assert verdict(api, STREAMS[api](SCRIPT.blocks)) == "whole"


@pytest.mark.parametrize("api", APIS)
def test_a_changed_missing_doubled_or_foreign_piece_is_found(api: Api) -> None:
    for number, block in enumerate(SCRIPT.blocks):
        text = block.text
        changes: dict[str, tuple[str, Verdict]] = {
            "changed": (text[:20] + "#" + text[21:], "wrong"),
            "missing": (text[:20] + text[40:], "wrong"),
            "cut": (text[:-1], "wrong"),
            "doubled": (text[:60] + text[20:60] + text[60:], "doubled"),
        }
        for how, (changed, expected) in changes.items():
            blocks = [*SCRIPT.blocks]
            blocks[number] = Block(block.kind, changed, block.name)
            assert verdict(api, STREAMS[api](tuple(blocks))) == expected, how
    foreign = write_script(Random(1), "v", 10.0, 30)
    assert verdict(api, STREAMS[api](foreign.blocks)) == "wrong"
    assert verdict(api, STREAMS[api](SCRIPT.blocks + SCRIPT.blocks[-1:])) in (
        "wrong",
        "doubled",
        "ill-formed",
    )


@pytest.mark.parametrize("api", APIS)
def test_the_end_is_judged(api: Api) -> None:
    frames = STREAMS[api](SCRIPT.blocks)
    terminal = -1 if api == "messages" else -2
    assert verdict(api, frames[:terminal]) in ("ends", "ill-formed"), "no terminal event"
    assert verdict(api, [*frames, frames[-1]]) in ("ends", "ill-formed"), "two of them"
    assert verdict(api, [*frames[:5], frames[5][:-1]]) in ("ill-formed", "wrong")
    other = Wanted(api, True, SCRIPT, TOKENS + 1)
    sent = Attempt(0.0, 200, chunks=[(0.0, b"".join(frames))])
    assert judge(other, [sent], ["serving"]).verdict == "wrong", "usage"


def test_only_an_error_after_a_correct_prefix_is_accepted() -> None:
    assert verdict("messages", messages(SCRIPT.blocks[:2], "lost")) == "told"
    wrong = (SCRIPT.blocks[0], Block(SCRIPT.blocks[1].kind, "other", SCRIPT.blocks[1].name))
    assert verdict("messages", messages(wrong, "lost")) == "wrong"
    assert (
        verdict(
            "messages", [*messages(SCRIPT.blocks[:2], "lost"), sse("error", error={"message": "x"})]
        )
        == "ends"
    )


@pytest.mark.parametrize("api", APIS)
def test_a_broken_connection_is_lost_unless_its_frontend_was_ended(api: Api) -> None:
    frames = STREAMS[api](SCRIPT.blocks)
    broken = Attempt(
        0.0, 200, chunks=[(0.0, b"".join(frames[:9]) + frames[9][:4])], broken="closed"
    )
    whole = Attempt(1.0, 200, chunks=[(1.0, b"".join(frames))])
    refused = Attempt(0.5, 0, broken="refused")
    assert judge(wanted(api), [broken], ["broken"]).verdict == "lost", "no retry was answered"
    assert judge(wanted(api), [broken, whole], ["serving", "serving"]).verdict == "lost"
    assert judge(wanted(api), [broken, whole], ["closed", "serving"]).verdict == "lost", (
        "a drain loses nothing"
    )
    assert judge(wanted(api), [broken, refused, whole], ["broken"] * 3).verdict == "reconnected"
    assert judge(wanted(api), [refused, whole], ["closed", "serving"]).verdict == "reconnected"
    damaged = Attempt(
        0.0, 200, chunks=[(0.0, b"".join([*frames[:4], *frames[5:9]]))], broken="closed"
    )
    assert judge(wanted(api), [damaged, whole], ["broken", "serving"]).verdict in (
        "wrong",
        "ill-formed",
    )


def test_a_refusal_needs_a_retry_after() -> None:
    whole = Attempt(1.0, 200, chunks=[(1.0, b"".join(messages(SCRIPT.blocks)))])
    clear = Attempt(0.0, 503, retry_after="1", chunks=[(0.0, b"{}")])
    assert judge(wanted("messages"), [clear, whole], ["serving"] * 2).verdict == "refused"
    for status, retry_after in ((503, ""), (500, "1"), (404, "")):
        other = Attempt(0.0, status, retry_after=retry_after)
        assert judge(wanted("messages"), [other], ["serving"]).verdict == "lost"


def test_pauses_are_of_output_and_silences_of_bytes() -> None:
    frames = messages(SCRIPT.blocks)
    ping = sse("ping")
    chunks = [(0.0, b"".join(frames[:9])), (4.0, ping), (9.0, ping), (11.0, b"".join(frames[9:]))]
    found = judge(wanted("messages"), [Attempt(-2.0, 200, chunks=chunks)], ["serving"])
    assert (found.verdict, found.pause_s, found.silence_s, found.wait_s) == (
        "whole",
        11.0,
        5.0,
        2.0,
    )


def test_scripts_are_of_their_seed_and_have_no_piece_in_common() -> None:
    assert write_script(Random(1), "w", 10.0, 30) == SCRIPT
    assert next(block.kind for block in expected_blocks("chat", SCRIPT.blocks)) == "reasoning"


@pytest.mark.parametrize(
    ("rss", "files", "grows"),
    [
        ([100, 140, 150, 150, 150, 150], [20] * 6, []),
        ([100, 110, 120, 140, 160, 180], [20] * 6, ["memory"]),
        ([100] * 6, [20, 30, 40, 60, 80, 100], ["open files"]),
    ],
)
def test_growth_is_found(rss: list[int], files: list[int], grows: list[str]) -> None:
    samples = [
        Sample(float(at), size << 20, count)
        for at, (size, count) in enumerate(zip(rss, files, strict=True))
    ]
    assert [text.partition(" grew")[0] for text in growth(samples)] == grows
