"""Cases about the streams of key-value buckets: as the services use them, and as NATS itself
answers."""

import asyncio
import json
import re
from typing import Any

import nats.errors
import nats.js.errors
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
DELETED_S = 0.3
"""A real server removes files a moment after its answer: a stream made at once may still have the
old messages."""


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


async def made(client: NatsPy, name: str, **changes: Any) -> None:
    """Makes a stream."""
    assert "error" not in await call(client, "CREATE", name, config(name, **changes))


async def put(client: NatsPy, name: str, key: str, data: bytes, **headers: str) -> JSON:
    """Stores a message; returns the acknowledgement. `headers`: with underscores for dashes."""
    named = {header.replace("_", "-"): value for header, value in headers.items()} or None
    message = await client.request(f"$KV.{name}.{key}", data, timeout=LONG_S, headers=named)
    found: JSON = json.loads(message.data)
    return found


async def direct(client: NatsPy, name: str, key: str = "", **request: Any) -> Msg:
    """A direct request by subject, or of any kind."""
    subject = f"$JS.API.DIRECT.GET.KV_{name}" + (f".$KV.{name}.{key}" if key else "")
    return await client.request(
        subject, json.dumps(request).encode() if request else b"", timeout=LONG_S
    )


async def state(client: NatsPy, name: str) -> JSON:
    """What a stream holds."""
    found: JSON = (await call(client, "INFO", name))["state"]
    return found


def headers_of(message: Msg) -> JSON:
    """Its headers, without the time."""
    return {
        name: value for name, value in (message.headers or {}).items() if name != "Nats-Time-Stamp"
    }


def failure(answer: JSON) -> tuple[int, int, str]:
    """Code, number and text of an error."""
    error = answer["error"]
    return error["code"], error["err_code"], error["description"]


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


async def bucket_takes_new_settings(at: Place) -> None:
    client = await at.bus()
    old = await opened(client, "changed")
    await old.put("k", b"v")
    new = await opened(client, "changed", max_value_bytes=20_000)
    assert await new.get("k") == b"v"
    await new.put("k", b"x" * 15_000)
    assert await old.get("k") == b"x" * 15_000


async def missing_bucket_keeps_nothing(at: Place) -> None:
    client = await at.bus()
    settings = BucketConfig(
        name="absent", description="", ttl_s=60, max_bytes=1 << 20, max_value_bytes=100
    )
    log = structlog.wrap_logger(structlog.PrintLogger(), processors=[client.log])
    for use in ("get", "members", "put"):
        bucket = Bucket(client.bus, settings, log)
        await (bucket.put("k", b"v") if use == "put" else getattr(bucket, use)("k"))
        assert await bucket.get("k") is None
        assert await bucket.any_members(["k"]), "nobody knows"
    assert [entry["event"] for entry in client.log.entries] == ["kv.missing"] * 3


async def bucket_that_the_server_refuses_is_an_error(at: Place) -> None:
    client = await at.bus()
    with pytest.raises(EngineFailed, match="insufficient storage resources available"):
        await opened(client, "huge", max_bytes=1 << 40)
    with pytest.raises(EngineFailed, match="replicas > 1 not supported in non-clustered mode"):
        await opened(client, "copies", replicas=3)
    await client.bus.close()
    with pytest.raises(Unavailable):
        await opened(client, "closed")


async def deleted_bucket_is_unavailable_until_it_is_made_again(at: Place) -> None:
    client, setup = await at.bus(), await at.client()
    bucket = await opened(client, "again")
    await bucket.put("k", b"v")
    assert await call(setup, "DELETE", "again") == {
        "type": "io.nats.jetstream.api.v1.stream_delete_response",
        "success": True,
    }
    with pytest.raises(Unavailable):
        await bucket.get("k")
    with pytest.raises(Unavailable):
        await bucket.put("k", b"w")
    await asyncio.sleep(DELETED_S)
    bucket = await opened(client, "again")
    assert await bucket.get("k") is None
    await bucket.put("k", b"w")
    assert await bucket.get("k") == b"w"


# As NATS answers.


async def several_subjects_are_answered_in_order_with_an_end(at: Place) -> None:
    wire, client = await at.wire(), await at.client()
    await made(client, "multi")
    for key in ("a", "b", "c.d", "a"):
        await put(client, "multi", key, key.encode())
    await wire.ask(b"SUB batch 1\r\n")

    async def batch(request: JSON) -> list[tuple[str, str]]:
        data = json.dumps(request).encode()
        wire.write(b"PUB $JS.API.DIRECT.GET.KV_multi batch %d\r\n%s\r\n" % (len(data), data))
        end = await wire.until(b"\r\n\r\n\r\n")
        names = ("Nats-Sequence", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence")
        return re.findall(
            "(" + "|".join(names) + r"|NATS/1.0): ?(\d+)", end.decode().replace("1.0 ", "1.0: ")
        )

    one_of_two = await batch(
        {"multi_last": ["$KV.multi.none", "$KV.multi.a", "$KV.multi.b"], "batch": 1}
    )
    assert one_of_two == [
        *[("Nats-Sequence", "2"), ("Nats-Num-Pending", "1"), ("Nats-Last-Sequence", "0")],
        *[
            ("NATS/1.0", "204"),
            ("Nats-Num-Pending", "1"),
            ("Nats-Last-Sequence", "2"),
            ("Nats-UpTo-Sequence", "4"),
        ],
    ]
    both = await batch({"multi_last": ["$KV.multi.c.*", "$KV.multi.a", "$KV.multi.a"]})
    assert both == [
        *[("Nats-Sequence", "3"), ("Nats-Num-Pending", "1"), ("Nats-Last-Sequence", "0")],
        *[("Nats-Sequence", "4"), ("Nats-Num-Pending", "0"), ("Nats-Last-Sequence", "3")],
        *[
            ("NATS/1.0", "204"),
            ("Nats-Num-Pending", "0"),
            ("Nats-Last-Sequence", "4"),
            ("Nats-UpTo-Sequence", "4"),
        ],
    ]
    assert await batch({"multi_last": ["$KV.multi.none"], "batch": 1}) == [("NATS/1.0", "404")]


async def missing_message_and_missing_stream_differ(at: Place) -> None:
    client = await at.client()
    await made(client, "there")
    statuses = [
        (await direct(client, "there", "k")).headers,
        (await direct(client, "there", seq=9)).headers,
        (await direct(client, "there", last_by_subj="$KV.there.k")).headers,
        (await direct(client, "there", multi_last=["$KV.there.k"], batch=1)).headers,
    ]
    nothing = {"Status": "404", "Description": "Message Not Found"}
    assert statuses == [nothing, nothing, nothing, {"Status": "404", "Description": "No Results"}]
    for subject in (
        "$JS.API.DIRECT.GET.KV_absent2",
        "$JS.API.DIRECT.GET.KV_absent2.$KV.absent2.k",
        "$KV.absent2.k",
    ):
        with pytest.raises(nats.errors.NoRespondersError):
            await client.request(subject, b"x", timeout=LONG_S)
    with pytest.raises(nats.js.errors.NoStreamResponseError):
        await client.jetstream().publish("$KV.absent2.k", b"x")
    assert failure(await call(client, "INFO", "absent2")) == (404, 10059, "stream not found")


async def malformed_direct_request_is_answered(at: Place) -> None:
    client = await at.client()
    await made(client, "malformed")
    requests = {
        b"": "Empty Request",
        b"{}": "Empty Request",
        b"{": "Malformed Request",
        b'{"multi_last":[]}': "Empty Request",
    }
    for request, text in requests.items():
        message = await client.request("$JS.API.DIRECT.GET.KV_malformed", request, timeout=LONG_S)
        assert message.headers == {"Status": "408", "Description": text}


async def unknown_call_gets_no_answer(at: Place) -> None:
    wire = await at.wire()
    await wire.ask(b"SUB unknown 1\r\n")
    assert await wire.ask(b"PUB $JS.API.NOPE unknown 0\r\n\r\n") == b""
    await asyncio.sleep(0.05)
    assert await wire.ask() == b""


async def there(client: NatsPy, name: str, key: str) -> bool:
    """Whether a key has a value."""
    return "Nats-Sequence" in ((await direct(client, name, key)).headers or {})


async def deleted_stream_is_gone_and_begins_anew(at: Place) -> None:
    client = await at.client()
    await made(client, "deleted")
    await put(client, "deleted", "k", b"v")
    assert (await call(client, "DELETE", "deleted"))["success"]
    for verb in ("DELETE", "INFO", "PURGE"):
        assert failure(await call(client, verb, "deleted")) == (404, 10059, "stream not found")
    with pytest.raises(nats.errors.NoRespondersError):
        await put(client, "deleted", "k", b"v")
    await asyncio.sleep(DELETED_S)
    await made(client, "deleted")
    assert await put(client, "deleted", "l", b"v") == {"stream": "KV_deleted", "seq": 1}
    assert not await there(client, "deleted", "k")


async def messages_expire_by_their_own_age(at: Place) -> None:
    client, loop = await at.client(), asyncio.get_running_loop()
    await made(client, "aged", max_age=SECOND, duplicate_window=SECOND)
    stored_at = loop.time()
    await put(client, "aged", "a", b"1")
    await asyncio.sleep(0.6)
    then_stored_at = loop.time()
    await put(client, "aged", "b", b"2")

    async def first_is_gone() -> bool:
        return not await there(client, "aged", "a")

    await until(first_is_gone)
    assert loop.time() - stored_at >= 1.0
    assert (
        await there(client, "aged", "b") or loop.time() - then_stored_at >= 1.0
    )  # this machine may be slow


async def publisher_need_not_wait_for_the_store(at: Place) -> None:
    client, wire = await at.client(), await at.wire()
    await made(client, "unasked")
    await wire.ask(b"".join(b"PUB $KV.unasked.k%d 1\r\nv\r\n" % number for number in range(100)))

    async def all_there() -> bool:
        return bool((await state(client, "unasked"))["messages"] == 100)

    await until(all_there)


async def subscribers_of_a_stored_subject_get_messages_too(at: Place) -> None:
    client, wire = await at.client(), await at.wire()
    await made(client, "watched")
    await wire.ask(b"SUB $KV.watched.> 1\r\n")
    await put(client, "watched", "k", b"v")
    received = await wire.ask()
    assert received.startswith(b"MSG $KV.watched.k 1 _INBOX.")
    assert received.endswith(b" 1\r\nv\r\n")
