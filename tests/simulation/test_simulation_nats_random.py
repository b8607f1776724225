"""Random operations have equal results on nats-server and on the model."""

import json
from collections.abc import Awaitable, Callable
from random import Random

import nats.errors
import pytest
from nats.aio.client import Client as NatsPy

from tests.simulation.cases_messages import pub
from tests.simulation.cases_streams import call, config, headers_of, put, state
from tests.simulation.nats_places import Place, RealServers, compare, pieces

QUICK = range(6)
MANY = range(6, 150)

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
        steps.append((number, operation))
        received = [pieces(await wires[number].ask(operation))]
        received += [pieces(await wire.ask()) for wire in wires if wire is not wires[number]]
        steps.append(received)
    return steps


def random_operation(random: Random, number: int) -> bytes:
    sid = random.randrange(1, 6)
    kind = random.random()
    if kind < 0.3:
        return f"SUB t.{random_subject(random, 'ab*>' if random.random() < 0.9 else 'ab ')} {sid}\r\n".encode()
    if kind < 0.4:
        return f"UNSUB {sid}{random.choice(['', ' 0', ' 1', ' 3', ' 9'])}\r\n".encode()
    subject = "t." + random_subject(random, "aab" if random.random() < 0.8 else "ab*> ")
    reply = random.choice(
        ["", "", f"inbox.{number}"]
    )  # with one subscription: the server answers any of several
    data = bytes(random.choices(b"\r\n PUBx\x00\xff", k=random.randrange(8)))
    if kind < 0.9:
        return pub(subject, data, reply)
    headers = b"NATS/1.0\r\nA: %d\r\n\r\n" % sid
    sizes = b"%d %d" % (len(headers), len(headers) + len(data))
    return b"HPUB %s %s %s\r\n%s%s\r\n" % (subject.encode(), reply.encode(), sizes, headers, data)


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
            request = (
                {"filter": f"$KV.{name}.{random_subject(random, 'ab*')}"}
                if random.random() < 0.8
                else {}
            )
            steps.append(("purge", request, await call(client, "PURGE", name, request)))
        else:
            settings = config(
                name, max_bytes=random.randrange(100, 1500), max_msg_size=random.randrange(100, 300)
            )
            steps.append(
                (
                    "change",
                    failed(await call(client, random.choice(["UPDATE", "CREATE"]), name, settings)),
                )
            )
        held = await state(client, name)
        steps.append([held[member] for member in ("messages", "bytes", "first_seq", "last_seq")])
    await call(client, "DELETE", name)
    return [json.loads(json.dumps(step).replace(name, "NAME")) for step in steps]


def failed(answer: dict[str, object]) -> object:
    return answer.get("error", answer["type"])


async def stored(client: NatsPy, name: str, random: Random) -> object:
    key = random_subject(random, "aab")
    headers = {}
    if random.random() < 0.2:
        headers["KV_Operation"] = "DEL"
    if random.random() < 0.2:
        headers["Nats_Expected_Last_Subject_Sequence"] = str(random.randrange(40))
    if random.random() < 0.1:
        headers["Nats_Expected_Last_Sequence"] = str(random.randrange(60))
    return key, headers, await put(client, name, key, bytes(random.randrange(250)), **headers)


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
    try:
        message = await client.request(
            api, json.dumps(request).encode() if request else b"", timeout=30
        )
    except nats.errors.NoRespondersError:
        return api, request, "nobody"
    return api, request, headers_of(message), len(message.data)


@pytest.mark.parametrize("seed", QUICK)
@pytest.mark.parametrize("record", [messages, streams])
def test_random_operations_have_equal_results(
    server: RealServers, record: Record, seed: int
) -> None:
    compare(server, lambda at: record(at, Random(seed)), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("record", [messages, streams])
def test_many_random_operations_have_equal_results(server: RealServers, record: Record) -> None:
    for seed in MANY:
        compare(server, lambda at, seed=seed: record(at, Random(seed)), seed=seed)  # type: ignore[misc]
