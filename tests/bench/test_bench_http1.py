"""Responses in every chunking; and what is none."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.http1 import BadResponse, ResponseParser

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = (
    HEAD
    + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=1\r\n, \r\n\r\nw\r\n4\r\norld\r\n0\r\nx-end: 1\r\n\r\n"
)
COUNTED = HEAD + b"content-length: 18\r\n\r\nhello, \r\n\r\nworld!!"
TEXT = b"hello, \r\n\r\nworld"


def read(pieces: list[bytes]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(piece) for piece in pieces)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % len(data) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(st.lists(st.integers(0, 500), max_size=8), st.sampled_from([CHUNKED, COUNTED]))
def test_every_chunking_gives_the_same_body(places: list[int], response: bytes) -> None:
    parser, body = read(cut(response, places))
    assert (parser.status, parser.complete, parser.keep_alive) == (200, True, True)
    assert body == (TEXT if response is CHUNKED else TEXT + b"!!")
    assert parser.headers[b"content-type"] == b"text/event-stream"


def test_byte_by_byte_is_complete_only_with_the_last_byte() -> None:
    parser = ResponseParser()
    for at in range(len(CHUNKED)):
        assert not parser.complete
        parser.feed(CHUNKED[at : at + 1])
    assert parser.complete


def test_a_second_response_on_the_same_connection() -> None:
    parser, _ = read([CHUNKED])
    parser.reset()
    assert parser.feed(COUNTED) == TEXT + b"!!"


def test_interim_responses_are_skipped() -> None:
    parser, body = read([b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED])
    assert (parser.status, body) == (200, TEXT + b"!!")


def test_no_body_and_no_keep_alive() -> None:
    parser, body = read([b"HTTP/1.1 503 Busy\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n"])
    assert (parser.status, body, parser.complete, parser.keep_alive) == (503, b"", True, False)


def test_a_body_to_the_connections_end() -> None:
    parser, body = read([HEAD + b"\r\nabc", b"def"])
    assert not parser.complete
    parser.end()
    assert (parser.complete, body) == (True, b"abcdef")


@pytest.mark.parametrize("size", range(1, len(CHUNKED), 7))
def test_a_cut_off_response_says_so(size: int) -> None:
    parser, _ = read([CHUNKED[:size]])
    with pytest.raises(BadResponse, match="closed"):
        parser.end()


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        HEAD + b"content-length: x\r\n\r\n",
        HEAD + b"content-length: 2\r\n\r\nabc",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n-2\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1" * 5000,
        CHUNKED + b"x",
        b"x" * 70_000,
    ],
)
def test_what_is_no_response_is_refused(response: bytes) -> None:
    with pytest.raises(BadResponse):
        read([response])
