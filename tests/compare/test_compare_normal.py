"""What is replaced before two recordings are compared, and what is not."""

import base64
import json
from array import array

from tests.compare.normal import Renamer, bus_message, headers, stream_events

A, B = "2b5f6b282c5f8ae9d1b1aa76", "980bd0b91ec3ee91bcbcde87"


def chunk(choice: int, delta: object, **more: object) -> str:
    choices = [{"index": choice, "delta": delta, **more, "finish_reason": None}]
    return (
        "data: "
        + json.dumps({"id": "chatcmpl-" + A, "choices": choices}, separators=(",", ":"))
        + "\n\n"
    )


def test_equal_ids_have_equal_names_and_others_do_not() -> None:
    text = f'{{"id":"msg_{A}","request_id":"req_{A}","other":"toolu_SjHEej9brNg4D8KcJK3xFitT","item":"rs_{B}000"}}'
    assert (
        Renamer().text(text)
        == '{"id":"msg_#1","request_id":"req_#1","other":"toolu_#2","item":"rs_#3000"}'
    )


def test_times_and_seals_are_replaced_and_other_values_stay() -> None:
    seal = "AgAVdgsUy2VWa_ACuiFUvkh9P-V0y7JXEbzw-IuEXV_y07OKvh-DNm_bDF8GZv_ddpElkyPg=="
    text = f'{{"created":1795673833,"created_at":1795673833.5,"signature":"{seal}","max_tokens":1795673833}}'
    stable = '{"created":"<time>","created_at":"<time float>","signature":"<sealed>","max_tokens":1795673833}'
    assert Renamer().text(text) == stable


def test_streams_with_other_cuts_of_deltas_are_equal() -> None:
    whole = chunk(0, {"content": "Hello there"}) + "data: [DONE]\n\n"
    cut = chunk(0, {"content": "Hel"}) + chunk(0, {"content": "lo there"}) + "data: [DONE]\n\n"
    assert stream_events(cut, Renamer()) == stream_events(whole, Renamer())


def test_delta_of_another_block_or_shape_is_not_merged() -> None:
    events = stream_events(
        chunk(0, {"content": "a"})
        + chunk(0, {"reasoning": "b"})
        + chunk(0, {"content": "c", "x": 1}),
        Renamer(),
    )
    assert len(events) == 3


def test_choices_are_compared_separately() -> None:
    mixed = chunk(0, {"content": "a"}) + chunk(1, {"content": "x"}) + chunk(0, {"content": "b"})
    separate = chunk(0, {"content": "ab"}) + chunk(1, {"content": "x"})
    assert stream_events(mixed, Renamer()) == stream_events(separate, Renamer())


def test_token_ids_in_several_chunks_are_compared_as_one() -> None:
    cut = [
        chunk(0, {}, token_ids=[1]),
        chunk(0, {"content": "a"}),
        chunk(0, {}, token_ids=[2]),
        chunk(0, {"content": "b"}),
    ]
    whole = chunk(0, {}, token_ids=[1, 2]) + chunk(0, {"content": "ab"})
    assert stream_events("".join(cut), Renamer()) == stream_events(whole, Renamer())


def test_log_probabilities_are_joined_with_their_text() -> None:
    one, two = ({"content": [{"token": text, "logprob": -0.5}]} for text in "ab")
    cut = chunk(0, {"content": "a"}, logprobs=one) + chunk(0, {"content": "b"}, logprobs=two)
    whole = chunk(0, {"content": "ab"}, logprobs={"content": one["content"] + two["content"]})
    assert stream_events(cut, Renamer()) == stream_events(whole, Renamer())


def test_gap_in_the_sequence_numbers_stays_visible() -> None:
    def stream(*numbers: int) -> str:
        return "".join(f'event: x\ndata: {{"type":"x","sequence_number":{n}}}\n\n' for n in numbers)

    assert {event.data for event in stream_events(stream(0, 1), Renamer())} == {
        '{"type":"x","sequence_number":0}'
    }
    assert stream_events(stream(0, 2), Renamer())[1].data == '{"type":"x","sequence_number":2}'


def test_length_of_a_prompt_is_kept_whatever_is_cached() -> None:
    usage = '"input_tokens":%d,"cache_creation_input_tokens":0,"cache_read_input_tokens":%d'
    assert Renamer().text(usage % (5, 240)) == usage % (245, 240)


def test_bus_messages_have_numbers_for_token_ids_and_names_for_digests() -> None:
    packed = base64.b64encode(array("I", [7, 300]).tobytes()).decode()
    mac = base64.b64encode(bytes(range(32))).decode()
    text = json.dumps(
        {
            "ids": packed,
            "mac": mac,
            "parser": "parser-1-0a1b2c",
            "timeout_s": 3599.98,
            "notice": "_INBOX_preprocessor.b6727894906c010d.28",
            "text": "stays",
        }
    )
    stable = {
        "ids": [7, 300],
        "mac": "digest#1",
        "parser": "process#2",
        "timeout_s": 3600.0,
        "notice": "_INBOX_preprocessor",
        "text": "stays",
    }
    assert bus_message(text, Renamer()) == stable


def test_varying_headers_are_left_out() -> None:
    found = [
        ("Date", "today"),
        ("Content-Length", "9"),
        ("X-Request-Id", f"req_{A}"),
        ("Content-Type", "text/plain"),
    ]
    assert headers(found, Renamer()) == {"x-request-id": "req_#1", "content-type": "text/plain"}
