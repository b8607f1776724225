"""Cases about messages: order, subscriptions, and the protocol's bytes."""

import asyncio

import nats.errors
import pytest

from tests.kit.waiting import eventually
from tests.simulation.nats_places import MAX_PAYLOAD, Place, listen


def pub(subject: str, data: bytes, reply: str = "") -> bytes:
    """The operation that publishes a message."""
    head = f"PUB {subject} {reply + ' ' if reply else ''}{len(data)}\r\n"
    return head.encode() + data + b"\r\n"


def msg(subject: str, data: bytes) -> bytes:
    """The operation that delivers a message to subscription 1."""
    return f"MSG {subject} 1 {len(data)}\r\n".encode() + data + b"\r\n"


async def messages_of_a_publisher_keep_their_order_over_all_subjects(at: Place) -> None:
    one, other = await at.wire(), await at.wire()
    await other.ask(b"SUB order.* 1\r\n")
    sent = [(f"order.{number % 3}", b"%d" % number) for number in range(300)]
    for start in range(0, 300, 50):
        one.write(b"".join(pub(*message) for message in sent[start : start + 50]))
    await one.ask()
    assert await other.ask() == b"".join(msg(*message) for message in sent)


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
        # The server's answer to a request on a subject without subscribers.
        status = b"NATS/1.0 503\r\nNats-Subject: gone\r\n\r\n"
        nobody = b"HMSG answers 1 %d %d\r\n%s\r\n" % (len(status), len(status), status)
        while await asker.ask(pub("gone", b"", "answers")) != nobody:
            await asyncio.sleep(0.005)


async def payload_over_the_limit_ends_the_connection_with_an_error(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    received = await listen(client, "over")
    answer = await wire.ask(b"PUB over %d\r\n" % (MAX_PAYLOAD + 1))
    assert answer == b"-ERR 'Maximum Payload Violation'\r\n<end>"
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("over", bytes(MAX_PAYLOAD + 1))
    await client.publish("over", b"small")
    await eventually(lambda: [one.data for one in received] == [b"small"])
