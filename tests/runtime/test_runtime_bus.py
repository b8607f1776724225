"""One connection to a real server: what goes wrong in it is told, and goes no further."""

import asyncio
from pathlib import Path

import pytest
from structlog.typing import FilteringBoundLogger

from schemas.errors import TimedOut, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus, Message
from services.runtime.config import BusConfig
from tests.conftest import NatsServer, eventually, free_port


def make(url: str, log: FilteringBoundLogger, reconnected: list[bool] | None = None, **config: object) -> Bus:
    return Bus(
        BusConfig(nats_url=url, **config),  # type: ignore[arg-type]
        name="test",
        inbox_prefix="_INBOX_test",
        log=log,
        on_fatal=lambda reason: pytest.fail(reason),
        on_reconnect=lambda: (reconnected if reconnected is not None else []).append(True),
    )


async def test_a_handler_that_fails_hears_the_next_message(nats: NatsServer, quiet_log: FilteringBoundLogger) -> None:
    bus, heard = make(nats.url, quiet_log), list[bytes]()
    await bus.connect()

    def handle(message: Message) -> None:
        heard.append(message.data)
        raise ValueError(message.data)

    await bus.subscribe("t.a", handle)
    for data in (b"1", b"2", b"3"):
        assert bus.publish("t.a", data)
    await eventually(lambda: heard == [b"1", b"2", b"3"])
    await bus.close()


async def test_requests_are_answered_or_end_in_a_word(nats: NatsServer, quiet_log: FilteringBoundLogger) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    await bus.subscribe("t.echo", lambda message: message.reply(message.data * 2))
    await bus.subscribe("t.mute", lambda _message: None)
    assert await bus.request("t.echo", b"ab", 5) == b"abab"
    with pytest.raises(Unavailable, match=r"t\.nobody"):
        await bus.request("t.nobody", b"", 5)
    with pytest.raises(TimedOut):
        await bus.request("t.mute", b"", 0.05)
    left = asyncio.create_task(bus.request("t.mute", b"", 60))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await eventually(lambda: bus._connection is not None and not bus._connection._waiting)
    await bus.close()


async def test_a_question_without_a_task_is_sent_at_once_and_ends_in_one_word(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    with pytest.raises(Unavailable):
        bus.ask("t.echo", b"", 5, lambda _answer: pytest.fail("not asked"))
    await bus.connect()
    await bus.subscribe("t.echo", lambda message: message.reply(message.data * 2))
    await bus.subscribe("t.mute", lambda _message: None)
    answers: list[bytes | TurnwireError] = []
    bus.ask("t.echo", b"ab", 5, answers.append)
    await eventually(lambda: answers == [b"abab"])
    bus.ask("t.nobody", b"", 5, answers.append)
    await eventually(lambda: isinstance(answers[-1], Unavailable) and "t.nobody" in str(answers[-1]))
    bus.ask("t.mute", b"", 0.05, answers.append)
    await eventually(lambda: isinstance(answers[-1], TimedOut))
    forget = bus.ask("t.echo", b"", 5, answers.append)
    forget()
    await bus.request("t.echo", b"", 5)
    bus.ask("t.mute", b"", 60, answers.append)
    await bus.close()
    await eventually(lambda: len(answers) == 4)
    assert isinstance(answers[-1], Unavailable)


async def test_too_much_is_refused_here_and_the_connection_lives(
    nats: NatsServer, quiet_log: FilteringBoundLogger
) -> None:
    bus = make(nats.url, quiet_log)
    await bus.connect()
    heard: list[int] = []
    await bus.subscribe("t.big", lambda message: heard.append(len(message.data)))
    with pytest.raises(TooLarge):
        bus.publish("t.big", bytes(bus.max_payload + 1))
    with pytest.raises(TooLarge):
        await bus.request("t.big", bytes(bus.max_payload + 1), 1)
    with pytest.raises(TooLarge):
        bus.ask("t.big", bytes(bus.max_payload + 1), 1, lambda _answer: pytest.fail("not asked"))
    for _ in range(8):
        assert bus.publish("t.big", bytes(bus.max_payload)), "64 MB in one tick do not suspend"
    await eventually(lambda: heard == [bus.max_payload] * 8, 30)
    await bus.close()


async def test_nothing_is_sent_later_than_it_was_said(own_nats: NatsServer, quiet_log: FilteringBoundLogger) -> None:
    back: list[bool] = []
    bus, other = make(own_nats.url, quiet_log, back), make(own_nats.url, quiet_log)
    await bus.connect()
    await other.connect()
    heard: list[bytes] = []
    await other.subscribe("t.x", lambda message: heard.append(message.data))
    own_nats.kill()
    await eventually(lambda: not bus.connected and not other.connected)
    assert not bus.publish("t.x", b"stale")
    with pytest.raises(Unavailable):
        await bus.request("t.x", b"stale", 5)
    own_nats.start()
    await eventually(lambda: bus.connected and other.connected and bool(back))
    await other.flush()
    assert bus.publish("t.x", b"fresh")
    await eventually(lambda: bool(heard))
    assert heard == [b"fresh"]
    own_nats.kill()
    await eventually(lambda: not bus.connected)
    await asyncio.wait_for(asyncio.gather(bus.close(), other.close()), 5)


async def test_a_server_that_is_not_there_is_waited_for_and_then_named(quiet_log: FilteringBoundLogger) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    bus = make(url, quiet_log, connect_timeout_s=0.3)
    with pytest.raises(Unavailable, match=url):
        await bus.connect()


async def test_a_server_may_come_after_its_clients(
    nats_binary: str, tmp_path: Path, quiet_log: FilteringBoundLogger
) -> None:
    server = NatsServer(nats_binary, str(tmp_path))
    bus = make(server.url, quiet_log)
    connecting = asyncio.create_task(bus.connect())
    await asyncio.sleep(0.05)
    server.start()
    await asyncio.wait_for(connecting, 10)
    await bus.close()
    server.kill()
