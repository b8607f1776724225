"""Malformed messages on every subject, derived from real ones: no process fails, none keeps state, turns go on."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats as nats_library
import pytest

from schemas import subjects
from tests.conftest import NatsServer, eventually
from tests.pipeline.counting import Plan
from tests.pipeline.local import Local

MALFORMED: list[Any] = [None, -1, 0, 2**31, 2**63 + 1, 1e300, True, "", "x", "\ud800", [], [[]], {}, {"a": 1}]


class Recorder:
    """Keeps one message of each subject's kind and shape."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.prompt = b""
        """What follows the JSON of a generate request."""

    async def open(self, nats: NatsServer) -> "Recorder":
        self.bus = await nats_library.connect(nats.url)

        async def keep(message: Any) -> None:
            kind = message.subject.split(".")[2]
            json_part, zero, prompt = message.data.partition(b"\0")
            document = json.loads(json_part)
            if zero:
                self.prompt = zero + prompt
            types = {e["type"] for entry in document.get("entries", ()) for e in entry.get("events", ())}
            self.messages.setdefault((kind, f"{sorted(document)} {sorted(types)}"), (message.subject, json_part))

        await self.bus.subscribe(subjects.ALL, cb=keep)
        await self.bus.flush()
        return self


@pytest.fixture
async def recorder(local_nats: NatsServer) -> AsyncIterator[Recorder]:
    opened = await Recorder().open(local_nats)
    yield opened
    await opened.bus.close()


def variants(document: Any) -> Iterator[Any]:
    """The document with each of its values, at any depth, left out or replaced by each malformed value."""
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


async def test_malformed_messages_on_every_subject_harm_no_turn(local: Local, recorder: Recorder) -> None:
    await local.start(2, 2, 1)
    turns = [local.turn(Plan(length=20), max_tokens=n, stop=["q"], logprobs=0) for n in (10, 100)]
    turns.append(local.turn(Plan(length=20, fail_at=10)))
    for turn in turns:
        await turn.finished()
    await local.admission.count(turns[0].conversation, None)
    await local.admission.tokenize_text(local.model.name, "text", None, False)
    await local.admission.detokenize(local.model.name, [1, 2, 3], None)
    dying = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await dying.sink.words_at_least(10)
    (await dying.task).cancel("hangup")
    expected = {"turn", "gen", "tok", "evt", "cancel", "credit", "beat", "count", "tokenize", "detokenize"}
    await eventually(lambda: {kind for kind, _ in recorder.messages} >= expected)
    for stage in ("worker", "parser"):
        replay = {"receiver": "x", "streams": [{"turn": "t", "attempt": 1, "offset": 1, "block": 0}], "number": 1}
        for service in local.of(stage):
            recorder.messages["replay", service.id] = (subjects.replay(stage, service.id), json.dumps(replay).encode())

    held = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await held.sink.words_at_least(10)
    sent = 0
    for subject, data in list(recorder.messages.values()):
        # Under other names than those of the running processes: those would be forgeries, not malformed messages.
        text = data.decode()
        for service in local.services:
            text = text.replace(service.id, f"{service.stage}-stranger")
        if ".evt." in subject or ".gen." in subject or ".turn." in subject:
            text = text.replace("frontend-stranger", local.of("frontend")[0].id)
        for document in [*variants(json.loads(text)), [], None, 7]:
            await recorder.bus.publish(subject, json.dumps(document).encode())
            sent += 1
            if sent % 200 == 0:
                await recorder.bus.flush()
        for raw in (b"", b"{", data[: len(data) // 2], b"\xff" + data, data + data):
            await recorder.bus.publish(subject, raw)
        if ".gen." in subject:
            for ids in (recorder.prompt[:-1], recorder.prompt + b"x", b"\0", b"\0" * 7, b"\0" + b"\xff" * 400):
                await recorder.bus.publish(subject, text.encode() + ids)
                await recorder.bus.publish(subject, b"{}" + ids)
    await recorder.bus.flush()
    assert recorder.prompt
    assert sent > 1000
    local.plans[held.id].go.set()
    await held.whole(60)
    for words in range(10):
        await local.turn(Plan(length=words)).whole(words)
    await local.idle()
    for service in local.services:
        assert service.alive
