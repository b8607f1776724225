"""Malformed messages on every subject, derived from real ones: no process fails, none keeps state,
and turns go on."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats as nats_library
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from services.frontend.http.auth import anyone
from tests.kit.counting import Plan, held
from tests.kit.local import Local
from tests.kit.waiting import eventually

NUMBERS = [-1, 0, 2**31, 2**63 + 1, 1e300]
MALFORMED: list[Any] = [None, *NUMBERS, True, "", "x", "\ud800", [], [[]], {}, {"a": 1}]


Messages = dict[tuple[str, str], tuple[str, bytes]]
"""One message of each subject's kind and shape: its subject and its JSON."""


@pytest.fixture
async def publisher(local: Local) -> AsyncIterator[Client]:
    connected = await nats_library.connect(local.nats.url)
    yield connected
    await connected.close()


async def record(bus: Client) -> tuple[Messages, list[bytes]]:
    """Subscribes to everything. Returns the messages that are kept, and what follows the JSON of
    generate requests."""
    messages: Messages = {}
    prompts: list[bytes] = []

    async def keep(message: Msg) -> None:
        kind = message.subject.split(".")[2]
        json_part, zero, prompt = message.data.partition(b"\0")
        if zero:
            prompts.append(zero + prompt)
        document = json.loads(json_part)
        events = [event for e in document.get("entries", ()) for event in e.get("events", ())]
        shape = f"{sorted(document)} {sorted({event['type'] for event in events})}"
        messages.setdefault((kind, shape), (message.subject, json_part))

    await bus.subscribe(subjects.ALL, cb=keep)
    await bus.flush()
    return messages, prompts


def variants(document: Any) -> Iterator[Any]:
    """The document with each of its values, at any depth, left out or replaced by each malformed
    value."""
    if isinstance(document, dict):
        for key, value in document.items():
            rest = {k: v for k, v in document.items() if k != key}
            yield rest
            for instead in MALFORMED:
                yield {**rest, key: instead}
            for inner in variants(value):
                yield {**rest, key: inner}
    elif isinstance(document, list):
        for index, value in enumerate(document[:3]):
            for inner in [*MALFORMED, *variants(value)]:
                yield [*document[:index], inner, *document[index + 1 :]]


async def test_malformed_messages_on_every_subject_harm_no_turn(
    local: Local, publisher: Client
) -> None:
    messages, prompts = await record(publisher)
    await local.start(2, 2, 1)
    turns = [local.turn(Plan(length=20), max_tokens=n, stop=["q"], logprobs=0) for n in (10, 100)]
    turns.append(local.turn(Plan(length=20, fail_at=10)))
    for turn in turns:
        await turn.finished()
    await local.turns.count(turns[0].conversation, anyone())
    await local.turns.tokenize_text(local.model.name, "text", anyone(), False)
    await local.turns.detokenize(local.model.name, [1, 2, 3], anyone())
    dying = local.turn(held(20))
    await dying.sink.words_at_least(10)
    (await dying.task).cancel("hangup")
    expected = {"turn", "gen", "tok", "evt", "cancel", "credit", "beat"}
    expected |= {"count", "tokenize", "detokenize"}
    await eventually(lambda: {kind for kind, _ in messages} >= expected)
    streams = [{"turn": "t", "attempt": 1, "offset": 1, "block": 0}]
    replay = json.dumps({"receiver": "x", "streams": streams, "number": 1}).encode()
    for service in (*local.of("worker"), *local.of("parser")):
        messages["replay", service.id] = subjects.replay(service.stage, service.id), replay

    plan = held(20)
    running = local.turn(plan)
    await running.sink.words_at_least(10)
    sent = 0
    for subject, data in list(messages.values()):
        # Under other names than those of the running processes: those would be forgeries, not
        # malformed messages.
        text = data.decode()
        for service in local.services:
            text = text.replace(service.id, f"{service.stage}-stranger")
        if ".evt." in subject or ".gen." in subject or ".turn." in subject:
            text = text.replace("frontend-stranger", local.of("frontend")[0].id)
        for document in [*variants(json.loads(text)), [], None, 7]:
            await publisher.publish(subject, json.dumps(document).encode())
            sent += 1
            if sent % 200 == 0:
                await publisher.flush()
        for raw in (b"", b"{", data[: len(data) // 2], b"\xff" + data, data + data):
            await publisher.publish(subject, raw)
        if ".gen." in subject:
            for ids in (prompts[0][:-1], prompts[0] + b"x", b"\0" + b"\xff" * 400):
                await publisher.publish(subject, text.encode() + ids)
                await publisher.publish(subject, b"{}" + ids)
    await publisher.flush()
    assert sent > 1000
    plan.go.set()
    await running.whole(60)
    for words in range(10):
        await local.turn(Plan(length=words)).whole(words)
    await local.idle()
    assert all(service.alive for service in local.services)
