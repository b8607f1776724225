"""The wire protocol: the same is understood however the bytes come, and nonsense is told from sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.runtime import nats_protocol as wire
from services.runtime.nats_protocol import Delivered, Info, NatsProtocolError, Parser, Pinged, Ponged, Refused, Said

words = st.text("abcXYZ019._-$>", min_size=1, max_size=12).map(str.encode)
payloads = st.one_of(st.binary(max_size=60), st.sampled_from([b"", b"\r\n", b"MSG a 1 3\r\n", b"x" * 5000]))


def spelled(said: Said) -> bytes:
    match said:
        case Delivered(sid, subject, reply, headers, payload):
            target = b" ".join(part for part in (subject, sid, reply) if part)
            size = len(headers) + len(payload)
            head = b"HMSG %b %d %d" % (target, len(headers), size) if headers else b"MSG %b %d" % (target, size)
            return head + b"\r\n" + headers + payload + b"\r\n"
        case Refused(reason):
            return b"-ERR '" + reason.encode() + b"'\r\n"
        case Pinged():
            return b"PING\r\n"
        case Ponged():
            return b"PONG\r\n"
        case Info(max_payload):
            return b'INFO {"server_id":"x","max_payload":%d} \r\n' % max_payload


said = st.one_of(
    st.builds(
        Delivered,
        sid=st.integers(1, 99).map(lambda n: b"%d" % n),
        subject=words,
        reply=st.one_of(st.just(b""), words),
        headers=st.sampled_from([b"", b"NATS/1.0 503\r\n\r\n", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        payload=payloads,
    ),
    st.builds(Refused, st.sampled_from(["Stale Connection", 'Permissions Violation for Publish to "a.b"'])),
    st.just(Pinged()),
    st.just(Ponged()),
    st.builds(Info, max_payload=st.integers(1, 10**9)),
)


@given(st.lists(said, max_size=8), st.data())
def test_pieces_of_any_size_say_the_same(whole: list[Said], data: st.DataObject) -> None:
    stream = b"".join(spelled(item) for item in whole)
    parser, heard = Parser(), list[Said]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        heard += parser.feed(stream[:size])
        stream = stream[size:]
    assert heard == whole


def test_byte_by_byte() -> None:
    whole: list[Said] = [
        Delivered(b"7", b"a.b", b"_INBOX.1", b"", b"hello\r\n"),
        Pinged(),
        Delivered(b"1", b"c", b"", b"", b""),
    ]
    parser, heard = Parser(), list[Said]()
    for byte in b"".join(spelled(item) for item in whole):
        heard += parser.feed(bytes([byte]))
    assert heard == whole


def feed_in_pieces(stream: bytes) -> None:
    parser = Parser()
    for at in range(0, len(stream), 3):
        parser.feed(stream[at : at + 3])


def test_ok_says_nothing() -> None:
    assert Parser().feed(b"+OK\r\nPONG\r\n") == [Ponged()]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 r 3 4\r\n",
        b"MSG a 1 -3\r\n",
        b"MSG a 1 3\r\nabcdef\r\n",
        b"HMSG a 1 12 5\r\n",
        b"HMSG a 1 x 5\r\n",
        b"INFO nothing\r\n",
        b"\r\n",
        b"x" * (wire.MAX_LINE + 1),
    ],
)
def test_nonsense_is_an_error(nonsense: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        Parser().feed(nonsense)
    with pytest.raises(NatsProtocolError):
        feed_in_pieces(nonsense)


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_garbage_is_understood_or_an_error(chunks: list[bytes]) -> None:
    parser = Parser()
    try:
        for chunk in chunks:
            parser.feed(chunk)
    except NatsProtocolError:
        pass


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"", 0),
        (b"NATS/1.0\r\nA: 1\r\n\r\n", 0),
        (b"NATS/1.0 503\r\n\r\n", 503),
        (b"NATS/1.0 404 Message Not Found\r\n\r\n", 404),
        (b"NATS/1.0 what\r\n\r\n", 0),
        (b"HTTP/1.0 503\r\n\r\n", 0),
    ],
)
def test_the_status_is_in_the_first_line_of_the_headers(headers: bytes, status: int) -> None:
    assert wire.status_of(headers) == status


def test_commands() -> None:
    assert wire.connect({"verbose": False}) == b'CONNECT {"verbose":false}\r\n'
    assert wire.subscribe(b"3", "a.*") == b"SUB a.* 3\r\n"
    assert wire.subscribe(b"3", "a.*", "group") == b"SUB a.* group 3\r\n"
    assert wire.unsubscribe(b"3") == b"UNSUB 3\r\n"
    assert wire.publish("a.é", 5) == "PUB a.é 5\r\n".encode()
    assert wire.publish("a", 5, "r.1") == b"PUB a r.1 5\r\n"
    headers = wire.encode_headers({"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    assert headers == b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n"
    assert (
        wire.publish_with_headers("a", 2, headers, "r")
        == b"HPUB a r %d %d\r\n" % (len(headers), len(headers) + 2) + headers
    )


@pytest.mark.parametrize("name", ["", "a b", "a\r\nPUB b 0", "a\n", "a\x00", "a\tb"])
def test_a_name_cannot_become_a_command(name: str) -> None:
    for make in (
        lambda: wire.publish(name, 0),
        lambda: wire.publish_with_headers(name, 0, b""),
        lambda: wire.subscribe(b"1", name),
        lambda: wire.subscribe(b"1", "a", name or " "),
        lambda: wire.publish("a", 0, name or " "),
        lambda: wire.encode_headers({name: "x"}),
    ):
        with pytest.raises(ValueError):
            make()
    with pytest.raises(ValueError):
        wire.encode_headers({"A": "x\r\nB: y"})
