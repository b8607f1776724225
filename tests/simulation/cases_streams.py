"""Cases about the streams of key-value buckets: as the services use them, and as NATS itself
answers."""

from typing import Any

import pytest
import structlog

from schemas.errors import EngineFailed, TooLarge, Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.waiting import LIMIT_S, until
from tests.runtime.bus_clients import Client
from tests.simulation.nats_places import Place

JSON = dict[str, Any]


def settings(name: str, **changes: Any) -> BucketConfig:
    limits: JSON = {"ttl_s": 60.0, "max_bytes": 1 << 20, "max_value_bytes": 10_000} | changes
    return BucketConfig(name=name, description="a test", **limits)


def bucket(client: Client, name: str, *, patience_s: float = 0.0, **changes: Any) -> Bucket:
    """A bucket of the services, which may not exist."""
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log])
    return Bucket(client.bus, settings(name, **changes), log, patience_s=patience_s)


async def create(client: Client, name: str, **changes: Any) -> None:
    await create_bucket(client.bus, settings(name, **changes))


async def opened(client: Client, name: str, **changes: Any) -> Bucket:
    """A bucket that exists."""
    await create(client, name, **changes)
    return bucket(client, name, **changes)


async def value_of_one_process_is_read_by_another(at: Place) -> None:
    one, other = await opened(await at.bus(), "shared"), await opened(await at.bus(), "shared")
    assert await other.get("k") is None
    await one.put("k", b"1")
    assert await other.get("k") == b"1"
    await other.put("k", b"2")
    assert await one.get("k") == b"2"
    await one.delete("k")
    await one.delete("never there")
    assert await other.get("k") is None
    await one.put("k", b"3")
    assert await other.get("k") == b"3"
    keys = ["a.b c/ü*>", "=", ""]
    for key in keys:
        await one.put(key, key.encode() + b"\x00value")
    for key in keys:
        assert await other.get(key) == key.encode() + b"\x00value"


async def members_of_a_key_are_read_oldest_first(at: Place) -> None:
    one, other = await opened(await at.bus(), "members"), await opened(await at.bus(), "members")
    assert await other.members("k") == []
    for number in range(20):
        one.offer(f"k{number % 2}", b"%d" % number, f"m{number}")
    await one.put("k0", b"not a member")
    assert await other.members("k0") == [b"%d" % number for number in range(0, 20, 2)]
    assert await other.members("k1") == [b"%d" % number for number in range(1, 20, 2)]
    one.offer("k0", b"newer", "m0")
    await one.put("k0", b"not a member")
    assert await other.members("k0") == [*(b"%d" % number for number in range(2, 20, 2)), b"newer"]


async def one_request_finds_whether_any_key_has_members(at: Place) -> None:
    some = await opened(await at.bus(), "any")
    assert not await some.any_members(["k"])
    some.offer("k", b"v", "m")
    await some.put("l", b"not a member")
    many = [f"none {number}" for number in range(1000)]
    assert not await some.any_members(["l", *many])
    assert await some.any_members(["l", *many, "k"])


async def value_over_the_limit_is_refused(at: Place) -> None:
    client = await at.bus()
    limited = await opened(client, "limits")
    await limited.put("k", b"x" * 10_000)
    with pytest.raises(TooLarge):
        await limited.put("k", b"x" * 10_001)
    with pytest.raises(TooLarge):
        limited.offer("k", b"x" * 10_001)
    with pytest.raises(ValueError, match="empty"):
        await limited.put("k", b"")
    with pytest.raises(EngineFailed, match="message size exceeds maximum allowed"):
        await client.bus.jetstream(lambda js: js.publish("$KV.limits.k", bytes(11_025)), LIMIT_S)
    assert await limited.get("k") == b"x" * 10_000


async def full_bucket_drops_its_oldest_values(at: Place) -> None:
    full = await opened(await at.bus(), "full", max_bytes=64_000)
    for number in range(10):
        await full.put(f"{number}", bytes([number + 1]) * 10_000)
    kept = [number for number in range(10) if await full.get(f"{number}") is not None]
    assert kept == list(range(4, 10))


async def values_expire(at: Place) -> None:
    short = await opened(await at.bus(), "short", ttl_s=0.3)
    await short.put("k", b"v")

    async def gone() -> bool:
        return await short.get("k") is None

    await until(gone)
    await short.put("k", b"w")
    assert await short.get("k") == b"w"


async def missing_bucket_keeps_nothing(at: Place) -> None:
    client = await at.bus()
    for use in ("get", "members", "put"):
        absent = bucket(client, "absent")
        if use == "put":
            with pytest.raises(Unavailable):
                await absent.put("k", b"v")
        else:
            await getattr(absent, use)("k")
        assert await absent.get("k") is None
        assert await absent.any_members(["k"]), "nobody knows"
    assert [entry["event"] for entry in client.log.entries] == ["kv.missing"] * 3
