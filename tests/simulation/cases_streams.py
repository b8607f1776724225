"""Cases about the streams of key-value buckets: as the services use them, and as NATS itself
answers."""

import json
from typing import Any

import pytest
import structlog
from nats.aio.client import Client as NatsPy
from nats.aio.msg import Msg

from schemas.errors import EngineFailed, TooLarge, Unavailable
from services.runtime.storage.kv import Bucket, BucketConfig, create_bucket
from tests.kit.waiting import until
from tests.runtime.bus_clients import Client
from tests.simulation.nats_places import Place

JSON = dict[str, Any]
SECOND = 10**9
LONG_S = 30.0


def config(name: str, **changes: Any) -> JSON:
    """A stream as `create_bucket` makes it."""
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": 1,
        "discard": "old",
        "max_bytes": 64_000,
        "max_age": 60 * SECOND,
        "max_msgs": -1,
        "max_msgs_per_subject": 1,
        "max_msg_size": 2024,
        "max_consumers": -1,
        "duplicate_window": 60 * SECOND,
        "allow_direct": True,
        "allow_rollup_hdrs": False,
        "deny_delete": True,
    } | changes


async def call(client: NatsPy, verb: str, name: str, request: JSON | bytes = b"") -> JSON:
    """A call of JetStream's interface; returns the answer."""
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    found: JSON = json.loads(
        (await client.request(f"$JS.API.STREAM.{verb}.KV_{name}", data, timeout=LONG_S)).data
    )
    return found


async def put(client: NatsPy, name: str, key: str, data: bytes, **headers: str) -> JSON:
    """Stores a message; returns the acknowledgement. `headers`: with underscores for dashes."""
    named = {header.replace("_", "-"): value for header, value in headers.items()} or None
    message = await client.request(f"$KV.{name}.{key}", data, timeout=LONG_S, headers=named)
    found: JSON = json.loads(message.data)
    return found


async def state(client: NatsPy, name: str) -> JSON:
    """What a stream holds."""
    found: JSON = (await call(client, "INFO", name))["state"]
    return found


def headers_of(message: Msg) -> JSON:
    """Its headers, without the time."""
    return {
        name: value for name, value in (message.headers or {}).items() if name != "Nats-Time-Stamp"
    }


async def opened(client: Client, name: str, **changes: Any) -> Bucket:
    """A bucket of the services that exists."""
    limits: JSON = {"ttl_s": 60.0, "max_bytes": 1 << 20, "max_value_bytes": 10_000} | changes
    settings = BucketConfig(name=name, description="a test", **limits)
    await create_bucket(client.bus, settings)
    return Bucket(
        client.bus,
        settings,
        structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log]),
    )


# As the services use them.


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
    bucket = await opened(await at.bus(), "any")
    assert not await bucket.any_members(["k"])
    bucket.offer("k", b"v", "m")
    await bucket.put("l", b"not a member")
    assert await bucket.any_members(["none", "k", "other"])
    assert not await bucket.any_members(["none", "l"])
    many = [f"none {number}" for number in range(1000)]
    assert not await bucket.any_members(["l", *many])
    assert await bucket.any_members(["l", *many, "k"])


async def value_over_the_limit_is_refused(at: Place) -> None:
    client = await at.bus()
    bucket = await opened(client, "limits")
    await bucket.put("k", b"x" * 10_000)
    with pytest.raises(TooLarge):
        await bucket.put("k", b"x" * 10_001)
    with pytest.raises(TooLarge):
        bucket.offer("k", b"x" * 10_001)
    with pytest.raises(ValueError, match="empty"):
        await bucket.put("k", b"")
    with pytest.raises(EngineFailed, match="message size exceeds maximum allowed"):
        await client.bus.jetstream(lambda js: js.publish("$KV.limits.k", bytes(11_025)), LONG_S)
    assert await bucket.get("k") == b"x" * 10_000


async def full_bucket_drops_its_oldest_values(at: Place) -> None:
    bucket = await opened(await at.bus(), "full", max_bytes=64_000)
    for number in range(10):
        await bucket.put(f"{number}", bytes([number + 1]) * 10_000)
    assert [number for number in range(10) if await bucket.get(f"{number}") is not None] == [
        4,
        5,
        6,
        7,
        8,
        9,
    ]


async def values_expire(at: Place) -> None:
    bucket = await opened(await at.bus(), "short", ttl_s=0.3)
    await bucket.put("k", b"v")
    assert await bucket.get("k") == b"v"

    async def gone() -> bool:
        return await bucket.get("k") is None

    await until(gone)
    await bucket.put("k", b"w")
    assert await bucket.get("k") == b"w"


async def missing_bucket_keeps_nothing(at: Place) -> None:
    client = await at.bus()
    settings = BucketConfig(
        name="absent", description="", ttl_s=60, max_bytes=1 << 20, max_value_bytes=100
    )
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log])
    for use in ("get", "members", "put"):
        bucket = Bucket(client.bus, settings, log)
        if use == "put":
            with pytest.raises(Unavailable):
                await bucket.put("k", b"v")
        else:
            await getattr(bucket, use)("k")
        assert await bucket.get("k") is None
        assert await bucket.any_members(["k"]), "nobody knows"
    assert [entry["event"] for entry in client.log.entries] == ["kv.missing"] * 3


# As NATS answers.
