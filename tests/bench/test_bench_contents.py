"""What load may change in an answer, and what it may not."""

import json
from typing import Any

import pytest

from bench.contents import Event, NotAStream, canonical, difference


def sse(*events: dict[str, Any], named: bool = True) -> bytes:
    lines = [
        (f"event: {event['type']}\n" if named else "")
        + f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    ]
    return "".join(lines).encode()


def text(*pieces: str, index: int = 0) -> list[Event]:
    return [
        {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "text_delta", "text": piece},
        }
        for piece in pieces
    ]


def test_how_a_text_is_cut_does_not_matter() -> None:
    fine = canonical("messages", sse(*text("Gr", "üße", " 👋")))
    assert difference(fine, canonical("messages", sse(*text("Grüße 👋")))) is None
    found = difference(fine, canonical("messages", sse(*text("Grüsse 👋"))))
    assert found is not None
    assert "Grüsse" in found


def test_deltas_of_two_blocks_are_not_joined() -> None:
    both = canonical("messages", sse(*text("a"), *text("b", index=1)))
    assert difference(canonical("messages", sse(*text("ab"))), both) is not None


def test_an_event_between_deltas_keeps_them_apart() -> None:
    stop = {"type": "content_block_stop", "index": 0}
    assert len(canonical("messages", sse(*text("a"), stop, *text("b")))) == 3


def test_ids_are_named_by_their_order_and_must_still_agree() -> None:
    def turn(first: str, second: str) -> list[Event]:
        start = {"type": "content_block_start", "content_block": {"id": first}}
        return canonical("messages", sse(start, {"type": "other", "id": second}))

    one = turn("toolu_abcdefgh", "toolu_abcdefgh")
    assert difference(one, turn("toolu_zzzzzzzz", "toolu_zzzzzzzz")) is None
    assert difference(one, turn("toolu_zzzzzzzz", "toolu_yyyyyyyy")) is not None


def test_times_pings_and_the_cache_do_not_matter_but_token_counts_do() -> None:
    def turn(cached: int, rest: int, output: int) -> bytes:
        usage = {"input_tokens": rest, "cache_read_input_tokens": cached, "output_tokens": output}
        return sse({"type": "ping"}, {"type": "message_delta", "created": output, "usage": usage})

    seen = canonical("messages", turn(0, 100, 7))
    assert (
        difference(
            seen, canonical("messages", turn(96, 4, 7).replace(b'"created": 7', b'"created": 8'))
        )
        is None
    )
    assert difference(seen, canonical("messages", turn(96, 5, 7))) is not None
    assert difference(seen, canonical("messages", turn(96, 4, 8))) is not None


def test_a_missing_end_is_a_difference() -> None:
    whole = canonical("messages", sse(*text("a"), {"type": "message_stop"}))
    assert (
        difference(whole, canonical("messages", sse(*text("a"))))
        == "1 events where the slow run has 2"
    )


def test_sealed_reasoning_is_there_or_not() -> None:
    def turn(seal: str) -> list[Event]:
        return canonical("messages", sse({"type": "x", "signature": seal}))

    assert difference(turn("abcd"), turn("abcde")) is None
    assert difference(turn("abcd"), turn("")) is not None


def chat(*deltas: dict[str, Any], finish: str | None = None) -> bytes:
    chunks = [
        {
            "id": "chatcmpl-abcdefgh",
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
        for delta in deltas
    ]
    if finish:
        chunks.append(
            {
                "id": "chatcmpl-abcdefgh",
                "choices": [{"index": 0, "delta": {}, "finish_reason": finish}],
            }
        )
    return sse(*chunks, named=False) + b"data: [DONE]\n\n"


def test_chat_joins_content_reasoning_and_arguments_each_with_its_own() -> None:
    def call(arguments: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}

    fine = canonical(
        "chat",
        chat(
            {"reasoning_content": "a"},
            {"content": "b"},
            {"content": "c"},
            call("{"),
            call("}"),
            finish="stop",
        ),
    )
    assert len(fine) == 5
    merged = chat({"reasoning_content": "a"}, {"content": "bc"}, call("{}"), finish="stop")
    assert difference(fine, canonical("chat", merged)) is None
    moved = chat({"reasoning_content": "ab"}, {"content": "c"}, call("{}"), finish="stop")
    assert difference(fine, canonical("chat", moved)) is not None


def test_responses_numbers_must_have_no_gap() -> None:
    def item(number: int, said: str) -> Event:
        return {
            "type": "response.output_text.delta",
            "item_id": "msg_abcdefgh",
            "delta": said,
            "sequence_number": number,
        }

    fine = canonical("responses", sse(item(0, "a"), item(1, "b")))
    assert difference(fine, canonical("responses", sse(item(0, "ab")))) is None
    with pytest.raises(NotAStream, match="sequence numbers"):
        canonical("responses", sse(item(0, "a"), item(2, "b")))


def test_nothing_is_no_answer() -> None:
    with pytest.raises(NotAStream):
        canonical("messages", b"")
