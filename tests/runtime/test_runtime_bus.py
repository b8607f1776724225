"""Messages over one connection to a real server: handlers, requests, subscriptions, limits."""

import asyncio
from functools import partial

import pytest
from structlog.typing import FilteringBoundLogger

from schemas.errors import TimedOut, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus, Delivery
from services.runtime.config import BusConfig
from tests.kit.nats import NatsServer
from tests.kit.waiting import LIMIT_S, eventually


def make(
    url: str, log: FilteringBoundLogger, reconnected: list[bool] | None = None, **config: object
) -> Bus:
    bus = Bus(
        BusConfig(nats_url=url, **config),  # type: ignore[arg-type]
        name="test",
        inbox_prefix="_INBOX_test",
        log=log,
        on_fatal=lambda reason: pytest.fail(reason),
    )
    if reconnected is not None:
        bus.on_reconnect.append(partial(reconnected.append, True))
    return bus


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_a_handler_that_raises_receives_the_next_message(
    error: type[BaseException], nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus, heard = make(nats.url, quiet_log), list[bytes]()
    await bus.connect()

    def handle(delivery: Delivery) -> None:
        heard.append(delivery.data)
        raise error(delivery.data)

    await bus.subscribe("t.a", handle)
    for data in (b"1", b"2", b"3"):
        assert bus.publish("t.a", data)
    await eventually(lambda: heard == [b"1", b"2", b"3"])
    await bus.close()


async def test_requests_end_with_an_answer_or_an_error(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    await bus.subscribe("t.echo", lambda delivery: delivery.reply(delivery.data * 2))
    await bus.subscribe("t.mute", lambda _delivery: None)
    assert await bus.request("t.echo", b"ab", LIMIT_S) == b"abab"
    with pytest.raises(Unavailable, match=r"t\.nobody"):
        await bus.request("t.nobody", b"", LIMIT_S)
    with pytest.raises(TimedOut):
        await bus.request("t.mute", b"", 0.05)
    left = asyncio.create_task(bus.request("t.mute", b"", 60))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert not bus.waiting
    await bus.close()


async def test_a_request_without_a_task_is_sent_at_once_and_ends_with_one_call(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    with pytest.raises(Unavailable):
        bus.ask("t.echo", b"", 5, lambda _answer: pytest.fail("not asked"))
    await bus.connect()
    await bus.subscribe("t.echo", lambda delivery: delivery.reply(delivery.data * 2))
    await bus.subscribe("t.mute", lambda _delivery: None)
    answers: list[bytes | TurnwireError] = []
    bus.ask("t.echo", b"ab", 5, answers.append)
    await eventually(lambda: answers == [b"abab"])
    bus.ask("t.nobody", b"", 5, answers.append)
    await eventually(
        lambda: isinstance(answers[-1], Unavailable) and "t.nobody" in str(answers[-1])
    )
    bus.ask("t.mute", b"", 0.05, answers.append)
    await eventually(lambda: isinstance(answers[-1], TimedOut))
    forget = bus.ask("t.echo", b"", 5, answers.append)
    forget()
    await bus.request("t.echo", b"", LIMIT_S)
    bus.ask("t.mute", b"", 60, answers.append)
    await bus.close()
    await eventually(lambda: len(answers) == 4)
    assert isinstance(answers[-1], Unavailable)


async def test_expected_message_is_passed_on_once_and_not_after_it_was_forgotten(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus, other = make(nats.url, quiet_log), make(nats.url, quiet_log)
    await bus.connect()
    await other.connect()
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
    await other.close()


async def test_too_much_is_refused_here_and_the_connection_lives(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    heard: list[int] = []
    await bus.subscribe("t.big", lambda delivery: heard.append(len(delivery.data)))
    with pytest.raises(TooLarge) as refused:
        bus.publish("t.big", bytes(bus.max_payload + 1))
    assert refused.value.info.details == {
        "size_bytes": bus.max_payload + 1,
        "limit_bytes": bus.max_payload,
    }
    with pytest.raises(TooLarge):
        await bus.request("t.big", bytes(bus.max_payload + 1), 1)
    with pytest.raises(TooLarge):
        bus.ask("t.big", bytes(bus.max_payload + 1), 1, lambda _answer: pytest.fail("not asked"))
    for _ in range(8):
        assert bus.publish("t.big", bytes(bus.max_payload)), "64 MB in one tick do not suspend"
    await eventually(lambda: heard == [bus.max_payload] * 8)
    await bus.close()


async def test_nothing_is_published_while_disconnected(
    own_nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    back: list[bool] = []
    bus, other = make(own_nats.url, quiet_log, back), make(own_nats.url, quiet_log)
    await bus.connect()
    await other.connect()
    heard: list[bytes] = []
    await other.subscribe("t.x", lambda delivery: heard.append(delivery.data))
    own_nats.kill()
    await eventually(lambda: not bus.connected and not other.connected)
    assert not bus.publish("t.x", b"stale")
    with pytest.raises(Unavailable):
        await bus.request("t.x", b"stale", LIMIT_S)
    own_nats.start()
    await eventually(lambda: bus.connected and other.connected and bool(back))
    await other.flush()
    assert bus.publish("t.x", b"fresh")
    await eventually(lambda: bool(heard))
    assert heard == [b"fresh"]
    own_nats.kill()
    await eventually(lambda: not bus.connected)
    await asyncio.wait_for(asyncio.gather(bus.close(), other.close()), LIMIT_S)


async def test_messages_of_all_sizes_arrive_whole_and_in_order(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    one, two = make(nats.url, quiet_log), make(nats.url, quiet_log)
    await one.connect()
    await two.connect()
    heard: list[tuple[str, bytes, str]] = []
    await two.subscribe(
        "t.sizes",
        lambda delivery: heard.append((delivery.subject, delivery.data, delivery.reply_to)),
    )
    await two.flush()
    sent = [bytes([n]) * (n * 150_000) for n in range(12)]
    for data in sent:
        assert one.publish("t.sizes", data, reply_to="answer.here")
    await eventually(lambda: len(heard) == len(sent), 60)
    assert heard == [("t.sizes", data, "answer.here") for data in sent]
    assert (one.published, two.received) == (12, 12)
    await one.close()
    await two.close()


async def test_a_subscription_that_ends_still_handles_what_was_sent_before(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    one, two = make(nats.url, quiet_log), make(nats.url, quiet_log)
    await one.connect()
    await two.connect()
    heard: list[bytes] = []
    subscription = await two.subscribe("t.ends", lambda delivery: heard.append(delivery.data))
    await two.flush()
    one.publish("t.ends", b"before")
    await one.flush()
    await subscription.stop()
    await subscription.stop()
    assert heard == [b"before"]
    one.publish("t.ends", b"after")
    await one.flush()
    await two.flush()
    assert heard == [b"before"]
    await one.close()
    await two.close()


@pytest.mark.parametrize("subject", ["", "two words", "a\r\nPUB b 0\r\n", "a\tb"])
async def test_a_subject_that_is_not_one_word_is_not_sent(
    subject: str, nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    assert not bus.publish(subject, b"x")
    with pytest.raises(Unavailable):
        await bus.request(subject, b"x", LIMIT_S)
    assert not bus.waiting
    await bus.close()
