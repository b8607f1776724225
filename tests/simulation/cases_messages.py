"""Cases about messages: order, subjects, subscriptions, requests, and the protocol's bytes."""

import asyncio

import nats.errors
import pytest
from nats.aio.msg import Msg

from tests.kit.waiting import eventually
from tests.simulation.nats_places import MAX_PAYLOAD, Place, listen, settle

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


async def messages_of_two_publishers_keep_the_order_of_each(at: Place) -> None:
    publishers, reader = [await at.wire(), await at.wire()], await at.client()
    received = await listen(reader, "order2.*")
    for number in range(100):
        for name, publisher in enumerate(publishers):
            publisher.write(pub(f"order2.{name}", b"%d" % number))
        if number % 10 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: len(received) == 200)
    for name in range(2):
        assert [int(one.data) for one in received if one.subject == f"order2.{name}"] == list(
            range(100)
        )


async def large_messages_arrive_whole(at: Place) -> None:
    one, other = await at.client(), await at.client()
    received = await listen(other, "large")
    sent = [bytes([number]) * (1 << 20) for number in range(8)] + [b"", bytes(MAX_PAYLOAD)]
    for number, data in enumerate(
        sent, 1
    ):  # a server disconnects a reader that is far behind on a busy machine
        await one.publish("large", data)
        await eventually(lambda number=number: len(received) == number)  # type: ignore[misc]
    assert [one.data for one in received] == sent


# Subscriptions.


async def drained_subscription_handles_what_arrived_and_nothing_later(at: Place) -> None:
    one, other = await at.client(), await at.client()
    received: list[bytes] = []
    gate = asyncio.Event()

    async def take(message: Msg) -> None:
        await gate.wait()
        received.append(message.data)

    subscription = await other.subscribe("drain", cb=take)
    await settle(other)
    for number in range(10):
        await one.publish("drain", b"%d" % number)
    await settle(one)
    await settle(other)
    draining = asyncio.ensure_future(subscription.drain())  # type: ignore[no-untyped-call]
    await asyncio.sleep(0.01)
    await settle(other)
    await one.publish("drain", b"late")
    await settle(one)
    gate.set()
    await draining
    assert received == [b"%d" % number for number in range(10)]


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


async def request_gets_one_answer_and_late_ones_do_no_harm(at: Place) -> None:
    asker, server = await at.client(), await at.client()

    async def answer(message: Msg) -> None:
        await message.respond(b"to " + message.data)
        await message.respond(b"again")

    await server.subscribe("asked", cb=answer)
    waiting = await listen(server, "asked.slowly")
    assert (await asker.request("asked", b"1", timeout=30)).data == b"to 1"
    with pytest.raises(nats.errors.TimeoutError):
        await asker.request("asked.slowly", b"2", timeout=0.05)
    while not waiting:  # on a busy machine the request arrives after its time
        await settle(server)
    await waiting[0].respond(b"late")
    await settle(server)
    assert (await asker.request("asked", b"3", timeout=30)).data == b"to 3"


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


async def pings_are_answered_after_what_came_before(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(b"SUB ping 1\r\n" + (pub("ping", b"x") + b"PING\r\n") * 3) == msg(
        "ping", 1, b"x"
    )
    for _ in range(2):
        assert await wire.until(b"PONG\r\n") == msg("ping", 1, b"x") + b"PONG\r\n"
    assert await wire.until(b"PONG\r\n") == b"PONG\r\n"


async def headers_arrive_as_they_were_sent(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    received = await listen(client, "headed")
    await wire.ask(b"SUB headed 1\r\n")
    sizes = b"%d %d\r\n" % (len(HEADERS), len(HEADERS) + 2)
    assert (
        await wire.ask(b"HPUB headed r " + sizes + HEADERS + b"hi\r\n")
        == b"HMSG headed 1 r " + sizes + HEADERS + b"hi\r\n"
    )
    await client.publish("headed", b"", headers={"X": "1", "Y": "a b"})
    await eventually(lambda: len(received) == 2)
    assert [one.headers for one in received] == [{"A": "b"}, {"X": "1", "Y": "a b"}]


async def server_describes_itself(at: Place) -> None:
    info = (await at.wire()).info
    assert info["max_payload"] == MAX_PAYLOAD
    assert info["headers"] is True
    assert info["jetstream"] is True
    assert info["proto"] == 1
    assert tuple(int(part) for part in info["version"].split(".")) >= (2, 11, 0)
    assert isinstance(info["client_id"], int)
    assert {"server_id", "server_name", "host", "port"} <= set(info)
    assert "connect_urls" not in info
    assert not info.get("auth_required")
    assert not info.get("tls_required")


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


async def operation_over_the_limit_ends_the_connection_with_an_error(at: Place) -> None:
    wire = await at.wire()
    assert await wire.ask(pub("a" * 4000, b"x")) == b""
    assert await wire.ask(pub("a" * 5000, b"x")) == b"-ERR 'maximum control line exceeded'\r\n<end>"


async def error_of_one_client_leaves_the_others(at: Place) -> None:
    wire, other = await at.wire(), await at.client()
    received = await listen(other, "others")
    assert await wire.ask(pub("others", b"1") + b"WHAT\r\n" + pub("others", b"2")) == (
        b"-ERR 'Unknown Protocol Operation'\r\n<end>"
    )
    await other.publish("others", b"3")
    await eventually(lambda: len(received) == 2)
    assert [one.data for one in received] == [b"1", b"3"]
