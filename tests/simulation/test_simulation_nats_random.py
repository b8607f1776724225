"""Random operations have equal results on nats-server and on the model."""

import json
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsPy

from tests.simulation.cases_messages import pub
from tests.simulation.nats_places import ModelServers, Place, RealServers

SECOND = 10**9
LONG_S = 30.0
JSON = dict[str, Any]
Record = Callable[[Place, Random], Awaitable[list[object]]]


def random_subject(random: Random, tokens: str) -> str:
    """One to three of these tokens; a blank stands for an empty one."""
    subject = ".".join(random.choice(tokens).strip() for _ in range(random.randrange(1, 4)))
    return subject if subject.strip(".") else "a"


async def messages(at: Place, random: Random) -> list[object]:
    """Three clients subscribe, unsubscribe and publish."""
    wires = [
        await at.wire(echo=random.random() < 0.7, headers=True, no_responders=random.random() < 0.7)
        for _ in range(3)
    ]
    for number, wire in enumerate(wires):
        await wire.ask(f"SUB inbox.{number} 9\r\n".encode())
    steps: list[object] = []
    for _ in range(120):
        number = random.randrange(3)
        operation = random_operation(random, number)
        received = [pieces(await wires[number].ask(operation))]
        received += [pieces(await wire.ask()) for wire in wires if wire is not wires[number]]
        steps.append((number, operation, received))
    return steps


def pieces(answer: bytes) -> list[bytes]:
    """What a client received, message by message. Copies of one message come in any order, and the
    server's own pings by its clock."""
    plain = answer.replace(b"PING\r\n", b"").removesuffix(b"\r\n")
    return sorted(re.split(rb"\r\n(?=H?MSG )", plain))


def random_operation(random: Random, number: int) -> bytes:
    sid = random.randrange(1, 6)
    kind = random.random()
    if kind < 0.3:
        tokens = "ab*>" if random.random() < 0.9 else "ab "
        return f"SUB t.{random_subject(random, tokens)} {sid}\r\n".encode()
    if kind < 0.4:
        return f"UNSUB {sid}{random.choice(['', ' 0', ' 1', ' 3', ' 9'])}\r\n".encode()
    subject = "t." + random_subject(random, "aab" if random.random() < 0.8 else "ab*> ")
    # With one subscription: the server answers any of several.
    reply = random.choice(["", "", f"inbox.{number}"])
    data = bytes(random.choices(b"\r\n PUBx\x00\xff", k=random.randrange(8)))
    if kind < 0.9:
        return pub(subject, data, reply)
    headers = b"NATS/1.0\r\nA: %d\r\n\r\n" % sid
    sizes = b"%d %d" % (len(headers), len(headers) + len(data))
    return b"HPUB %s %s %s\r\n%s%s\r\n" % (subject.encode(), reply.encode(), sizes, headers, data)


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


async def call(client: NatsPy, verb: str, name: str, request: JSON | None = None) -> JSON:
    """A call of JetStream's interface; returns the answer."""
    data = b"" if request is None else json.dumps(request).encode()
    answer = await client.request(f"$JS.API.STREAM.{verb}.KV_{name}", data, timeout=LONG_S)
    found: JSON = json.loads(answer.data)
    return found


async def streams(at: Place, random: Random) -> list[object]:
    """A client stores, reads, purges and changes."""
    client = await at.client()
    name = f"random{random.random()}".replace(".", "")
    steps: list[object] = [failed(await call(client, "CREATE", name, config(name, max_bytes=1000)))]
    for _ in range(80):
        kind = random.random()
        if kind < 0.45:
            steps.append(("put", await stored(client, name, random)))
        elif kind < 0.85:
            steps.append(("get", await read(client, name, random)))
        elif kind < 0.9:
            purged = {"filter": f"$KV.{name}.{random_subject(random, 'ab*')}"}
            steps.append(("purge", purged, await call(client, "PURGE", name, purged)))
        else:
            size, largest = random.randrange(100, 1500), random.randrange(100, 300)
            settings = config(name, max_bytes=size, max_msg_size=largest)
            verb = random.choice(["UPDATE", "CREATE"])
            steps.append((verb, failed(await call(client, verb, name, settings))))
        held = (await call(client, "INFO", name))["state"]
        steps.append([held[member] for member in ("messages", "bytes", "first_seq", "last_seq")])
    await call(client, "DELETE", name)
    return [json.loads(json.dumps(step).replace(name, "NAME")) for step in steps]


def failed(answer: dict[str, object]) -> object:
    return answer.get("error", answer["type"])


async def stored(client: NatsPy, name: str, random: Random) -> object:
    key = random_subject(random, "aab")
    headers = {}
    if random.random() < 0.2:
        headers["KV-Operation"] = "DEL"
    if random.random() < 0.2:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(random.randrange(40))
    if random.random() < 0.1:
        headers["Nats-Expected-Last-Sequence"] = str(random.randrange(60))
    data = bytes(random.randrange(250))
    message = await client.request(
        f"$KV.{name}.{key}", data, timeout=LONG_S, headers=headers or None
    )
    return key, headers, json.loads(message.data)


async def read(client: NatsPy, name: str, random: Random) -> object:
    subject = f"$KV.{name}.{random_subject(random, 'ab*' if random.random() < 0.9 else 'ab>')}"
    if ">." in subject:
        subject = subject[: subject.index(">.") + 1]
    api = f"$JS.API.DIRECT.GET.KV_{name}"
    request: dict[str, object] = {}
    match random.randrange(5):
        case 0:
            api = f"{api}.{subject}"
        case 1:
            request = {"seq": random.randrange(1, 60)}
        case 2:
            request = {"seq": random.randrange(60), "next_by_subj": subject}
        case 3:
            request = {"last_by_subj": subject}
        case _:
            others = [
                f"$KV.{name}.{random_subject(random, 'ab*')}" for _ in range(random.randrange(3))
            ]
            request = {"multi_last": [subject, *others], "batch": 1}
    data = json.dumps(request).encode() if request else b""
    try:
        message = await client.request(api, data, timeout=LONG_S)
    except nats.errors.NoRespondersError:
        return api, request, "nobody"
    headers = dict(message.headers or {})
    headers.pop("Nats-Time-Stamp", None)
    return api, request, headers, len(message.data)


def compare(server: RealServers, record: Record, seed: int) -> None:
    """Records the results on both, and compares them step by step."""
    results: list[list[object]] = []

    async def case(at: Place) -> None:
        results.append(await record(at, Random(seed)))

    server.run(case)
    ModelServers(seed=seed).run(case)
    real, modelled = results
    for number, (one, other) in enumerate(zip(real, modelled, strict=True)):
        assert one == other, f"seed {seed}, step {number} after {real[max(number - 6, 0) : number]}"


@pytest.mark.parametrize("record", [messages, streams])
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 150), marks=pytest.mark.slow)])
def test_random_operations_have_equal_results(
    server: RealServers, record: Record, seeds: range
) -> None:
    for seed in seeds:
        compare(server, record, seed)
