"""The judge: what is as it should be is whole, and each way to be wrong has its verdict."""

import json
from dataclasses import replace
from typing import Any

from tests.chaos.judge import Attempt, Verdict, Wanted, judge
from tests.chaos.scripts import Block, Script

WORDS = [f"é{number}" for number in range(80)]
CALL = Block("call", json.dumps({"cmd": " ".join(WORDS[:40])}, ensure_ascii=False), "run")
SCRIPT = Script("", "", (Block("text", " ".join(WORDS[40:])), CALL))
TOKENS = 77


def sse(name: str, **data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data}, ensure_ascii=False)}\n\n".encode()


def messages(blocks: tuple[Block, ...], error: str = "") -> list[bytes]:
    """A stream of Messages."""
    found = [sse("message_start", message={})]
    for index, block in enumerate(blocks):
        start: dict[str, Any] = {"type": "text", "text": ""}
        delta, field = "text_delta", "text"
        if block.kind == "call":
            start = {"type": "tool_use", "name": block.name, "id": f"id{index}", "input": {}}
            delta, field = "input_json_delta", "partial_json"
        found.append(sse("content_block_start", index=index, content_block=start))
        for at in range(0, len(block.text), 9):
            piece = {"type": delta, field: block.text[at : at + 9]}
            found.append(sse("content_block_delta", index=index, delta=piece))
        found.append(sse("content_block_stop", index=index))
    if error:
        return [*found, sse("error", error={"message": error})]
    usage = {"input_tokens": 9, "output_tokens": TOKENS}
    usage |= {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    found.append(sse("message_delta", delta={"stop_reason": "tool_use"}, usage=usage))
    return [*found, sse("message_stop")]


WANTED = Wanted("messages", True, SCRIPT, TOKENS)
FRAMES = messages(SCRIPT.blocks)


def whole(at: float) -> Attempt:
    return Attempt(200, chunks=[(at, b"".join(FRAMES))])


def verdict(frames: list[bytes]) -> Verdict:
    return judge(WANTED, [Attempt(200, chunks=[(0.0, b"".join(frames))])], ["serving"]).verdict


def test_a_changed_missing_doubled_or_foreign_piece_is_found() -> None:
    assert verdict(FRAMES) == "whole"
    for number, block in enumerate(SCRIPT.blocks):
        text = block.text
        changes: dict[str, Verdict] = {
            text[:20] + "#" + text[21:]: "wrong",
            text[:20] + text[40:]: "wrong",
            text[:-1]: "wrong",
            text[:60] + text[20:60] + text[60:]: "doubled",
        }
        for changed, expected in changes.items():
            blocks = [*SCRIPT.blocks]
            blocks[number] = Block(block.kind, changed, block.name)
            assert verdict(messages(tuple(blocks))) == expected
    assert verdict(messages((CALL, *SCRIPT.blocks))) == "wrong"


def test_two_calls_have_two_ids() -> None:
    twice = replace(WANTED, script=replace(SCRIPT, blocks=(CALL, CALL)))
    for id, expected in ((b'"id1"', "whole"), (b'"id0"', "wrong")):
        data = b"".join(messages(twice.script.blocks)).replace(b'"id1"', id)
        sent = Attempt(200, chunks=[(0.0, data)])
        assert judge(twice, [sent], ["serving"]).verdict == expected


def test_the_end_is_judged() -> None:
    assert verdict(FRAMES[:-1]) in ("ends", "ill-formed"), "no terminal event"
    assert verdict([*FRAMES, FRAMES[-1]]) in ("ends", "ill-formed"), "two of them"
    assert verdict([*FRAMES[:5], FRAMES[5][:-1]]) in ("ill-formed", "wrong")
    assert judge(replace(WANTED, tokens=TOKENS + 1), [whole(0.0)], ["serving"]).verdict == "wrong"
    assert verdict(messages(SCRIPT.blocks[:1], "lost")) == "told"


def test_a_broken_connection_is_lost_unless_its_frontend_was_ended() -> None:
    data = b"".join(FRAMES[:9]) + FRAMES[9][:4]
    broken = Attempt(200, chunks=[(0.0, data)], broken="closed")
    refused = Attempt(broken="refused")
    assert judge(WANTED, [broken], ["broken"]).verdict == "lost", "no retry was answered"
    assert judge(WANTED, [broken, whole(1.0)], ["serving", "serving"]).verdict == "lost"
    assert judge(WANTED, [broken, whole(1.0)], ["closed", "serving"]).verdict == "lost"
    assert judge(WANTED, [broken, refused, whole(1.0)], ["broken"] * 3).verdict == "reconnected"


def test_a_refusal_needs_a_retry_after() -> None:
    clear = Attempt(503, retry_after="1", chunks=[(0.0, b"{}")])
    assert judge(WANTED, [clear, whole(1.0)], ["serving"] * 2).verdict == "refused"
    assert judge(WANTED, [Attempt(503)], ["serving"]).verdict == "lost"
