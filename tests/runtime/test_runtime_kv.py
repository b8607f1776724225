"""Buckets on a real server with JetStream, and what is said where there is none."""

from typing import Any

import nats as nats_py
import pytest
import structlog
from structlog.typing import FilteringBoundLogger

from schemas.errors import EngineFailed, TimedOut, Unavailable
from services.runtime.nats.bus import Bus
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from services.runtime.storage.write_watch import WriteWatch
from tests.kit.nats import NatsServer
from tests.kit.processes import make_bucket
from tests.kit.waiting import LIMIT_S, eventually, until


def config(name: str) -> BucketConfig:
    return BucketConfig(
        name=name, description="a test", ttl_s=60.0, max_bytes=1 << 20, max_value_bytes=100_000
    )


async def test_offered_values_are_sent_before_the_connection_closes(
    bus: Bus, other: Bus, quiet_log: FilteringBoundLogger
) -> None:
    bucket = await make_bucket(bus, config("offered"), quiet_log)
    reading = await make_bucket(other, config("offered"), quiet_log)
    bucket.offer("a", b"1")
    bucket.offer("b", b"2")
    await bus.close()
    assert (await reading.get("a"), await reading.get("b")) == (b"1", b"2")


def logging() -> tuple[FilteringBoundLogger, structlog.testing.LogCapture]:
    capture = structlog.testing.LogCapture()
    return structlog.wrap_logger(structlog.PrintLogger(), processors=[capture]), capture


@pytest.mark.parametrize("first", ["put", "offer"])
async def test_a_bucket_that_does_not_exist_keeps_nothing_until_it_does(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr("services.runtime.storage.bucket_presence.RETRY_S", 0.0)
    log, capture = logging()
    bucket = Bucket(bus, config(f"later-{first}"), log)
    if first == "offer":
        bucket.offer("k", b"v", "m")
        await eventually(lambda: bool(capture.entries))
    else:
        with pytest.raises(Unavailable, match="missing"):
            await bucket.put("k", b"v")
    assert await bucket.get("k") is None
    assert await bucket.members("k") == []
    (line,) = capture.entries
    assert (line["event"], line["bucket"]) == ("kv.missing", f"later-{first}")
    await create_bucket(bus, config(f"later-{first}"))
    await bucket.put("k", b"w")
    assert await bucket.get("k") == b"w"
    assert [entry["event"] for entry in capture.entries] == ["kv.missing", "kv.found"]


async def test_value_is_replaced_only_after_the_expected_write(
    bus: Bus, quiet_log: FilteringBoundLogger
) -> None:
    bucket = await make_bucket(bus, config("replaced"), quiet_log)
    assert await bucket.entry("k") == (0, None)
    assert await bucket.replace("k", b"a", 0)
    assert not await bucket.replace("k", b"b", 0)
    number, value = await bucket.entry("k")
    assert value == b"a"
    assert await bucket.replace("k", b"b", number)
    await bucket.delete("k")
    assert not await bucket.replace("k", b"c", 0)
    number, value = await bucket.entry("k")
    assert value is None
    assert await bucket.replace("k", b"c", number)
    assert await bucket.get("k") == b"c"


async def test_a_lost_race_is_no_failed_write(
    bus: Bus, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Any] = []
    monkeypatch.setattr(WriteWatch, "record", lambda watch, answer: failed.append(answer))
    bucket = await make_bucket(bus, config("raced"), quiet_log)
    assert await bucket.replace("k", b"a", 0)
    assert not await bucket.replace("k", b"b", 0)
    assert not failed


async def test_a_key_may_have_members_while_the_server_does_not_answer(
    bus: Bus, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await make_bucket(bus, config("silent"), quiet_log)

    async def request(*args: object) -> bytes:
        raise TimedOut("no answer")

    monkeypatch.setattr(bus, "request", request)
    assert await bucket.any_members(["k"])


async def test_no_writer_can_empty_a_bucket(bus: Bus, quiet_log: FilteringBoundLogger) -> None:
    old = config("rollup")
    bucket = await make_bucket(bus, config("rollup"), quiet_log)
    before = await bus.jetstream(lambda js: js.stream_info("KV_rollup"), LIMIT_S)
    before.config.allow_rollup_hdrs = True
    await bus.jetstream(lambda js: js.update_stream(before.config), LIMIT_S)
    await create_bucket(bus, old)  # as a bucket of an older release is updated
    await bucket.put("k", b"v")
    with pytest.raises(EngineFailed, match="rollup"):
        await bus.jetstream(
            lambda js: js.publish("$KV.rollup.x", b"x", headers={"Nats-Rollup": "all"}), LIMIT_S
        )
    assert await bucket.get("k") == b"v"


async def test_members_are_deleted_from_the_newest_to_the_first(
    bus: Bus, quiet_log: FilteringBoundLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await make_bucket(bus, config("members"), quiet_log)
    names = ["first", "second", "third"]
    for name in [*names, "second"]:
        await bucket.put("k", name.encode(), name)
    await bucket.put("other", b"stays", "first")

    write = bucket._write
    left = 2

    async def cut_off(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Unavailable("cut off")
        await write(*args)

    monkeypatch.setattr(bucket, "_write", cut_off)
    with pytest.raises(Unavailable):
        await bucket.delete_members("k")
    monkeypatch.undo()
    values = [value async for _, value in bucket.members_after("k", 0)]
    assert values == [b"first"]
    await bucket.delete_members("k")
    assert [value async for _, value in bucket.members_after("k", 0)] == []
    assert [value async for _, value in bucket.members_after("other", 0)] == [b"stays"]


async def stored_under(bus: Bus, bucket: str, subject: str) -> tuple[str, bytes]:
    """The last value of the keys that a subject with wildcards matches, as NATS has it, and its own
    subject."""
    message = await bus.jetstream(
        lambda js: js.get_last_msg(f"KV_{bucket}", subject, direct=True), LIMIT_S
    )
    assert message.subject is not None
    assert message.data is not None
    return message.subject, message.data


@pytest.mark.parametrize("kept", [slice(12), slice(3, None)])
async def test_value_that_was_not_made_with_its_key_is_missing(
    bus: Bus, quiet_log: FilteringBoundLogger, kept: slice
) -> None:
    name = f"damaged{kept.start}"
    bucket = await make_bucket(bus, config(name), quiet_log)
    await bucket.put("k", b"a secret")
    bucket.offer("m", b"a secret", "one")
    await until(lambda: bucket.members("m"))
    for subject in (f"$KV.{name}.*", f"$KV.{name}.*.*"):
        place, data = await stored_under(bus, name, subject)
        assert b"secret" not in data
        assert bus.publish(place, data[kept])
    await bus.flush()

    async def missing() -> bool:
        return await bucket.get("k") is None and await bucket.members("m") == []

    await until(missing)
    await bucket.put("k", b"again")
    assert await bucket.get("k") == b"again"


async def test_lost_bucket_is_an_error_for_a_while_then_missing_and_used_when_it_is_made_again(
    nats: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.runtime.storage.bucket_presence.RETRY_S", 0.0)
    log, capture = logging()
    bucket = await make_bucket(bus, config("lost"), log)
    await bucket.put("k", b"v")
    client = await nats_py.connect(nats.url)
    await client.jetstream().delete_stream("KV_lost")
    await client.close()
    with pytest.raises(Unavailable):
        await bucket.get("k")
    assert capture.entries == []
    monkeypatch.setattr("services.runtime.storage.bucket_presence.LOST_S", 0.0)
    assert await bucket.get("k") is None
    with pytest.raises(Unavailable, match="missing"):
        await bucket.put("k", b"w")
    assert [entry["event"] for entry in capture.entries] == ["kv.missing"]
    await create_bucket(bus, config("lost"))
    await bucket.put("k", b"w")
    assert await bucket.get("k") == b"w"
    assert [entry["event"] for entry in capture.entries] == ["kv.missing", "kv.found"]
