"""Buckets on a real server with JetStream, and what is said where there is none."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from structlog.typing import FilteringBoundLogger

from schemas.errors import EngineFailed, TooLarge, TurnwireError, Unavailable
from services.runtime.bus import Bus
from services.runtime.config import BusConfig
from services.runtime.kv import Bucket, BucketConfig, digest_key, open_bucket
from tests.conftest import NatsServer, eventually

MakeBus = Callable[[str], Awaitable[Bus]]


@pytest.fixture
async def make_bus(quiet_log: FilteringBoundLogger) -> AsyncIterator[MakeBus]:
    made: list[Bus] = []

    async def make(url: str) -> Bus:
        bus = Bus(
            BusConfig(nats_url=url),
            name="test",
            inbox_prefix="_INBOX_test",
            log=quiet_log,
            on_fatal=lambda _reason: None,
            on_reconnect=lambda: None,
        )
        await bus.connect()
        made.append(bus)
        return bus

    yield make
    for bus in made:
        await bus.close()


@pytest.fixture
def without_jetstream(nats_binary: str, tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(nats_binary, str(tmp_path), jetstream="")
    server.start()
    yield server
    server.kill()


def config(name: str, **changes: object) -> BucketConfig:
    limits = {"ttl_s": 60.0, "max_bytes": 1 << 20, "max_value_bytes": 100_000} | changes
    return BucketConfig(name=name, description="a test", **limits)  # type: ignore[arg-type]


async def opened(bus: Bus, name: str, log: FilteringBoundLogger, **changes: object) -> Bucket:
    bucket = await open_bucket(bus, config(name, **changes), log)
    assert bucket is not None
    return bucket


async def test_what_one_process_puts_another_gets(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    one = await opened(await make_bus(nats.url), "shared", quiet_log)
    other = await opened(await make_bus(nats.url), "shared", quiet_log)
    keys = ["resp_1", "a.b c/ü*>", "=", ""]
    for key in keys:
        assert await other.get(key) is None
        await one.put(key, key.encode() + b"\x00value")
    for key in keys:
        assert await other.get(key) == key.encode() + b"\x00value"
    await other.put("resp_1", b"newer")
    assert await one.get("resp_1") == b"newer"
    await one.delete("resp_1")
    await one.delete("never there")
    assert await other.get("resp_1") is None
    assert await other.get("=") == b"=\x00value"
    await one.put("resp_1", b"again")
    assert await other.get("resp_1") == b"again"


async def test_a_watcher_hears_every_write(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    one = await opened(await make_bus(nats.url), "watched", quiet_log)
    bus = await make_bus(nats.url)
    other = await opened(bus, "watched", quiet_log)
    heard = list[tuple[str, bytes | None]]()
    watching = await other.watch(lambda key, value: heard.append((key, value)))
    await bus.flush()
    await one.put("k 1", b"a")
    assert one.offer("k 2", b"b")
    await one.delete("k 1")
    await eventually(lambda: heard == [("k 1", b"a"), ("k 2", b"b"), ("k 1", None)])
    assert await other.get("k 2") == b"b"
    await watching.stop()


async def test_a_key_has_several_values(nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger) -> None:
    one = await opened(await make_bus(nats.url), "several", quiet_log)
    other = await opened(await make_bus(nats.url), "several", quiet_log)
    assert await other.members("k") == []
    for number in range(20):
        assert one.offer(f"k{number % 2}", b"%d" % number, f"m{number}")
    await one.put("k0", b"not a member")
    assert await other.members("k0") == [b"%d" % number for number in range(0, 20, 2)]
    assert await other.members("k1") == [b"%d" % number for number in range(1, 20, 2)]


async def test_what_was_offered_is_sent_before_the_connection_closes(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    one, other = await make_bus(nats.url), await make_bus(nats.url)
    bucket = await opened(one, "offered", quiet_log)
    reading = await opened(other, "offered", quiet_log)
    assert bucket.offer("a", b"1")
    assert bucket.offer("b", b"2")
    await one.close()
    assert (await reading.get("a"), await reading.get("b")) == (b"1", b"2")


async def test_full_means_that_the_oldest_go(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    bucket = await opened(await make_bus(nats.url), "small", quiet_log, max_bytes=64_000)
    for number in range(10):
        await bucket.put(f"{number}", bytes([number + 1]) * 10_000)
    there = [number for number in range(10) if await bucket.get(f"{number}") is not None]
    assert there == list(range(10 - len(there), 10))
    assert 4 <= len(there) <= 6


async def test_entries_expire(nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger) -> None:
    bucket = await opened(await make_bus(nats.url), "short", quiet_log, ttl_s=0.2)
    await bucket.put("k", b"v")
    assert await bucket.get("k") == b"v"
    while await bucket.get("k") is not None:
        pass


async def test_a_value_must_be_one_and_must_fit(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    bucket = await opened(await make_bus(nats.url), "limits", quiet_log)
    await bucket.put("k", b"x" * 100_000)
    with pytest.raises(TooLarge):
        await bucket.put("k", b"x" * 100_001)
    with pytest.raises(TooLarge):
        bucket.offer("k", b"x" * 100_001)
    with pytest.raises(ValueError, match="empty"):
        await bucket.put("k", b"")
    assert await bucket.get("k") == b"x" * 100_000


async def test_the_limits_of_today_hold_for_a_bucket_of_yesterday(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    bus = await make_bus(nats.url)
    old = await opened(bus, "changed", quiet_log)
    await old.put("k", b"v")
    new = await opened(bus, "changed", quiet_log, max_value_bytes=200_000)
    assert await new.get("k") == b"v"
    await new.put("k", b"x" * 150_000)
    assert await old.get("k") == b"x" * 150_000


async def test_a_bucket_outlives_its_server(
    own_nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    bus = await make_bus(own_nats.url)
    kept = await opened(bus, "kept", quiet_log)
    lost = await opened(bus, "lost", quiet_log, storage="memory")
    await kept.put("k", b"v")
    await lost.put("k", b"v")
    own_nats.kill()
    await eventually(lambda: not bus.connected)
    with pytest.raises(TurnwireError):
        await kept.get("k")
    assert not kept.offer("k", b"w")
    own_nats.start()
    await eventually(lambda: bus.connected)
    assert await kept.get("k") == b"v"
    assert await lost.get("k") is None
    await lost.put("k", b"w")
    assert await lost.get("k") == b"w"


async def test_without_jetstream_there_is_no_bucket_and_one_line_says_so(
    without_jetstream: NatsServer, make_bus: MakeBus
) -> None:
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[capture])
    assert await open_bucket(await make_bus(without_jetstream.url), config("none"), log) is None
    (line,) = capture.entries
    assert (line["event"], line["bucket"], line["reason"]) == ("kv.disabled", "none", "the server has no JetStream")


async def test_a_bucket_for_which_there_is_no_room_is_none(
    nats: NatsServer, make_bus: MakeBus, quiet_log: FilteringBoundLogger
) -> None:
    bus = await make_bus(nats.url)
    assert await open_bucket(bus, config("huge", max_bytes=1 << 40), quiet_log) is None
    with pytest.raises(EngineFailed, match="replicas"):
        await Bucket(bus, config("copies", replicas=3)).put("k", b"v")
    await bus.close()
    with pytest.raises(Unavailable):
        await Bucket(bus, config("closed")).put("k", b"v")


def test_digest_keys_tell_lists_apart() -> None:
    lists = [("a", "b"), ("ab",), ("a", None), ("a", ""), ("a",), ("b", "a")]
    keys = {digest_key(*parts) for parts in lists}
    assert len(keys) == len(lists)
    assert all(len(key) == 40 for key in keys)
    assert digest_key("a", "b") == digest_key("a", "b")
