"""Messages that make no sense, on every subject, made from real ones: nobody falls, nothing stays, no turn minds."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats as nats_library
import pytest

from schemas import subjects
from tests.conftest import NatsServer, eventually
from tests.pipeline.local import Local, Plan

NONSENSE: list[Any] = [None, -1, 0, 2**31, 2**63 + 1, 1e300, True, "", "x", "\ud800", [], [[]], {}, {"a": 1}]


class Ear:
    """Keeps one message of each subject's kind and shape."""

    def __init__(self) -> None:
        self.heard: dict[tuple[str, str], tuple[str, bytes]] = {}

    async def open(self, nats: NatsServer) -> "Ear":
        self.bus = await nats_library.connect(nats.url)

        async def hear(message: Any) -> None:
            kind = message.subject.split(".")[2]
            document = json.loads(message.data)
            types = {e["type"] for entry in document.get("entries", ()) for e in entry.get("events", ())}
            self.heard.setdefault((kind, f"{sorted(document)} {sorted(types)}"), (message.subject, message.data))

        await self.bus.subscribe(subjects.ALL, cb=hear)
        await self.bus.flush()
        return self


@pytest.fixture
async def ear(local_nats: NatsServer) -> AsyncIterator[Ear]:
    listening = await Ear().open(local_nats)
    yield listening
    await listening.bus.close()


def spoilt(document: Any) -> Iterator[Any]:
    """The document with each of its values, at any depth, left out or replaced by each kind of nonsense."""
    if isinstance(document, dict):
        for key, value in document.items():
            rest = {k: v for k, v in document.items() if k != key}
            yield rest
            for instead in NONSENSE:
                yield {**rest, key: instead}
            for inner in spoilt(value):
                yield {**rest, key: inner}
    elif isinstance(document, list):
        for index, value in enumerate(document[:3]):
            for inner in [*NONSENSE, *spoilt(value)]:
                yield [*document[:index], inner, *document[index + 1 :]]


async def test_nonsense_on_every_subject_harms_nobody(local: Local, ear: Ear) -> None:
    await local.start(2, 2, 1)
    turns = [local.turn(Plan(length=20), max_tokens=n, stop=["q"], logprobs=0) for n in (10, 100)]
    turns.append(local.turn(Plan(length=20, fail_at=10)))
    for turn in turns:
        await turn.finished()
    await local.gateway.count(turns[0].conversation)
    await local.gateway.tokenize(local.model.name, "text", None, False)
    await local.gateway.detokenize(local.model.name, [1, 2, 3])
    dying = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await dying.sink.words_at_least(10)
    (await dying.task).cancel("hangup")
    await asyncio.sleep(0.3)  # for a few beats and the credit that follows
    kinds = {kind for kind, _ in ear.heard}
    assert kinds >= {"turn", "gen", "tok", "evt", "cancel", "credit", "beat", "count", "tokenize", "detokenize"}
    for stage in ("worker", "parser"):
        replay = {"receiver": "x", "streams": [{"turn": "t", "attempt": 1, "offset": 1, "block": 0}], "number": 1}
        for service in local.of(stage):
            ear.heard["replay", service.id] = (subjects.replay(stage, service.id), json.dumps(replay).encode())

    held = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await held.sink.words_at_least(10)
    sent = 0
    for subject, data in list(ear.heard.values()):
        # Not in the name of those who are here: that would not be nonsense but a lie.
        text = data.decode()
        for service in local.services:
            text = text.replace(service.id, f"{service.stage}-stranger")
        if ".evt." in subject or ".gen." in subject or ".turn." in subject:
            text = text.replace("frontend-stranger", local.of("frontend")[0].id)
        for document in [*spoilt(json.loads(text)), [], None, 7]:
            await ear.bus.publish(subject, json.dumps(document).encode())
            sent += 1
            if sent % 200 == 0:
                await ear.bus.flush()
        for raw in (b"", b"{", data[: len(data) // 2], b"\xff" + data, data + data):
            await ear.bus.publish(subject, raw)
    await ear.bus.flush()
    assert sent > 1000
    local.plans[held.id].go.set()
    await held.whole(60)
    for words in range(10):
        await local.turn(Plan(length=words)).whole(words)
    await eventually(lambda: not any(worker.engine.running for worker in local.of("worker")), 20)
    await eventually(lambda: not any(parser.core._shard.turns for parser in local.of("parser")), 20)
    await eventually(lambda: not local.gateway._turns and not local.of("preprocessor")[0].core._turns)
    for service in local.services:
        assert not service.running.done()
