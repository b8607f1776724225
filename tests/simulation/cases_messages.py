"""Cases about messages: order, subjects, subscriptions, requests, and the protocol's bytes."""

import asyncio

import nats.errors
import pytest

from tests.kit.waiting import eventually
from tests.simulation.nats_places import MAX_PAYLOAD, Place, listen

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


def pub(subject: str, data: bytes, reply: str = "") -> bytes:
    """The operation that publishes a message."""
    return f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n".encode() + data + b"\r\n"


def msg(subject: str, sid: int, data: bytes, reply: str = "") -> bytes:
    """The operation that delivers a message."""
    return (
        f"MSG {subject} {sid} {reply + ' ' if reply else ''}{len(data)}\r\n".encode()
        + data
        + b"\r\n"
    )


def nobody(inbox: str, sid: int, subject: str) -> bytes:
    """The server's answer to a request on a subject without subscribers."""
    status = f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()
    return f"HMSG {inbox} {sid} {len(status)} {len(status)}\r\n".encode() + status + b"\r\n"


# Order and loss.


async def messages_of_a_publisher_keep_their_order_over_all_subjects(at: Place) -> None:
    one, other = await at.wire(), await at.wire()
    await other.ask(b"SUB order.* 1\r\n")
    sent = [(f"order.{number % 3}", b"%d" % number) for number in range(300)]
    for start in range(0, 300, 50):
        one.write(b"".join(pub(*message) for message in sent[start : start + 50]))
    await one.ask()
    assert await other.ask() == b"".join(msg(subject, 1, data) for subject, data in sent)


# Subscriptions.


async def subscriptions_end_with_their_connection(at: Place) -> None:
    asker = await at.wire()
    await asker.ask(b"SUB answers 1\r\n")
    for abort in (False, True):
        wire = await at.wire()
        await wire.ask(b"SUB gone 1\r\nSUB gone.* 2\r\n")
        assert await asker.ask(pub("gone", b"x", "answers")) == b""
        if abort:
            wire.writer.transport.abort()
        else:
            wire.writer.close()
        await eventually_answers(at, "gone")


async def eventually_answers(at: Place, subject: str) -> None:
    """Waits until a subject has no subscriber."""
    wire = await at.wire()
    await wire.ask(b"SUB probes 1\r\n")
    while await wire.ask(pub(subject, b"", "probes")) != nobody("probes", 1, subject):
        await asyncio.sleep(0.005)


# Requests.


# The protocol.


async def operations_may_be_cut_at_any_byte(at: Place) -> None:
    wire = await at.wire()
    head = b"HPUB cut r %d %d\r\n%s" % (len(HEADERS), len(HEADERS) + 2, HEADERS)
    for byte in (
        b"SUB cut 1\r\n" + pub("cut", b"a\r\nb") + head + b"hi\r\nUNSUB 1\r\n" + pub("cut", b"x")
    ):
        wire.write(bytes([byte]))
        await asyncio.sleep(0)
    expected = b"HMSG cut 1 r %d %d\r\n%shi\r\n" % (len(HEADERS), len(HEADERS) + 2, HEADERS)
    assert await wire.ask() == msg("cut", 1, b"a\r\nb") + expected


# Errors.


async def payload_over_the_limit_ends_the_connection_with_an_error(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    received = await listen(client, "over")
    assert (
        await wire.ask(b"PUB over %d\r\n" % (MAX_PAYLOAD + 1))
        == b"-ERR 'Maximum Payload Violation'\r\n<end>"
    )
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("over", bytes(MAX_PAYLOAD + 1))
    await client.publish("over", b"small")
    await eventually(lambda: bool(received))
    assert [one.data for one in received] == [b"small"]
