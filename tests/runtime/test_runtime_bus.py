"""Messages over one connection to a real server: handlers, requests, subscriptions, limits."""

import asyncio

import nats as nats_py
import pytest

from schemas.errors import TimedOut, TooLarge, TurnwireError, Unavailable
from services.runtime.nats.bus import Bus, Delivery
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_handler_that_raises_receives_the_next_message(
    error: type[BaseException], bus: Bus
) -> None:
    heard = list[bytes]()

    def handle(delivery: Delivery) -> None:
        heard.append(delivery.data)
        raise error(delivery.data)

    await bus.subscribe("t.a", handle)
    for data in (b"1", b"2", b"3"):
        assert bus.publish("t.a", data)
    await eventually(lambda: heard == [b"1", b"2", b"3"])
    assert bus.received == 3


async def test_message_with_headers_reaches_no_handler(nats: NatsServer, bus: Bus) -> None:
    """JetStream answers a reader with a stored value, on any subject that the reader names."""
    heard: list[bytes] = []
    await bus.subscribe("t.foreign", lambda delivery: heard.append(delivery.data))
    await bus.flush()
    client = await nats_py.connect(nats.url)
    await client.publish("t.foreign", b"stored", headers={"Nats-Stream": "KV_x"})
    await client.publish("t.foreign", b"real")
    await eventually(lambda: bool(heard))
    assert heard == [b"real"]
    await client.close()


async def test_requests_end_with_an_answer_or_an_error(bus: Bus) -> None:
    await bus.subscribe("t.echo", lambda delivery: delivery.reply(delivery.data * 2))
    await bus.subscribe("t.mute", lambda _delivery: None)
    assert await bus.request("t.echo", b"ab", LIMIT_S) == b"abab"
    with pytest.raises(Unavailable, match=r"t\.nobody"):
        await bus.request("t.nobody", b"", LIMIT_S)
    with pytest.raises(TimedOut):
        await bus.request("t.mute", b"", 0.05)
    for subject in ("", "two words", "a\r\nPUB b 0\r\n"):
        with pytest.raises(Unavailable):
            await bus.request(subject, b"x", LIMIT_S)
    left = asyncio.create_task(bus.request("t.mute", b"", LIMIT_S))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert not bus.waiting


async def test_expected_message_is_passed_on_once_and_not_after_it_was_forgotten(
    bus: Bus, other: Bus
) -> None:
    answers: list[bytes | TurnwireError] = []
    (first, _), (second, forget), (third, _) = (bus.expect(answers.append) for _ in range(3))
    forget()
    for subject in (second, first, first):
        other.publish(subject, b"it")
    await other.flush()
    await bus.flush()
    assert answers == [b"it"]
    assert third not in (first, second)
    await bus.close()
    assert isinstance(answers[-1], Unavailable)
    assert not bus.waiting
    assert not bus.connected


async def test_too_much_is_refused_here_and_the_connection_lives(bus: Bus) -> None:
    heard: list[int] = []
    await bus.subscribe("t.big", lambda delivery: heard.append(len(delivery.data)))
    with pytest.raises(TooLarge) as refused:
        bus.publish("t.big", bytes(bus.max_payload + 1))
    assert refused.value.info.details == {
        "size_bytes": bus.max_payload + 1,
        "limit_bytes": bus.max_payload,
    }
    for _ in range(3):
        assert bus.publish("t.big", bytes(bus.max_payload)), "24 MB in one tick do not suspend"
    await eventually(lambda: heard == [bus.max_payload] * 3)


async def test_a_subscription_that_ends_still_handles_what_was_sent_before(
    bus: Bus, other: Bus
) -> None:
    heard: list[bytes] = []
    subscription = await other.subscribe("t.ends", lambda delivery: heard.append(delivery.data))
    await other.flush()
    bus.publish("t.ends", b"before")
    await bus.flush()
    await subscription.stop()
    await subscription.stop()
    assert heard == [b"before"]
    bus.publish("t.ends", b"after")
    await bus.flush()
    await other.flush()
    assert heard == [b"before"]
