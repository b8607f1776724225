"""Malformed messages on every subject, derived from real ones: no process fails, none keeps state,
turns go on, and the log gets few lines."""

import asyncio
import io
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats as nats_library
import pytest

from schemas import subjects
from services.frontend.http.auth import anyone
from services.runtime.bus import Bus, Handler, Subscription
from services.runtime.config import ServiceConfig
from services.runtime.observability.telemetry import open_log
from tests.kit.counting import Plan
from tests.kit.local import Local
from tests.kit.waiting import eventually

NUMBERS = [-1, 0, 2**31, 2**63 + 1, 1e300]
MALFORMED: list[Any] = [None, *NUMBERS, True, "", "x", "\ud800", [], [[]], {}, {"a": 1}]


class Recorder:
    """Keeps one message of each subject's kind and shape."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.prompt = b""
        """What follows the JSON of a generate request."""

    async def open(self, url: str) -> "Recorder":
        self.bus = await nats_library.connect(url)

        async def keep(message: Any) -> None:
            kind = message.subject.split(".")[2]
            json_part, zero, prompt = message.data.partition(b"\0")
            document = json.loads(json_part)
            if zero:
                self.prompt = zero + prompt
            types = {
                e["type"] for entry in document.get("entries", ()) for e in entry.get("events", ())
            }
            self.messages.setdefault(
                (kind, f"{sorted(document)} {sorted(types)}"), (message.subject, json_part)
            )

        await self.bus.subscribe(subjects.ALL, cb=keep)
        await self.bus.flush()
        return self


@pytest.fixture
async def recorder(local: Local) -> AsyncIterator[Recorder]:
    opened = await Recorder().open(local.nats.url)
    yield opened
    await opened.bus.close()


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
    local: Local, recorder: Recorder
) -> None:
    await local.start(2, 2, 1)
    turns = [local.turn(Plan(length=20), max_tokens=n, stop=["q"], logprobs=0) for n in (10, 100)]
    turns.append(local.turn(Plan(length=20, fail_at=10)))
    for turn in turns:
        await turn.finished()
    await local.admission.count(turns[0].conversation, anyone())
    await local.admission.tokenize_text(local.model.name, "text", anyone(), False)
    await local.admission.detokenize(local.model.name, [1, 2, 3], anyone())
    dying = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await dying.sink.words_at_least(10)
    (await dying.task).cancel("hangup")
    expected = {"turn", "gen", "tok", "evt", "cancel", "credit", "beat"}
    expected |= {"count", "tokenize", "detokenize"}
    await eventually(lambda: {kind for kind, _ in recorder.messages} >= expected)
    for stage in ("worker", "parser"):
        replay = {
            "receiver": "x",
            "streams": [{"turn": "t", "attempt": 1, "offset": 1, "block": 0}],
            "number": 1,
        }
        for service in local.of(stage):
            recorder.messages["replay", service.id] = (
                subjects.replay(stage, service.id),
                json.dumps(replay).encode(),
            )

    held = local.turn(Plan(length=60, hold_at=20, go=asyncio.Event()))
    await held.sink.words_at_least(10)
    sent = 0
    for subject, data in list(recorder.messages.values()):
        # Under other names than those of the running processes: those would be forgeries, not
        # malformed messages.
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
            for ids in (recorder.prompt[:-1], recorder.prompt + b"x", b"\0" + b"\xff" * 400):
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


ACK = b'{"stream":"KV_tw_responses","seq":7}'
"""JetStream's answer to a writer, which it sends to any subject that the writer names."""
GARBAGE = [b"", b"{", b"null", ACK, b"\xff", b'{"a":' + b"[" * 100_000, b"x" * 300_000]
HEADERS: list[dict[str, str] | None] = [None, {"Status": "503"}, {"Nats-Stream": "KV_tw_ledger"}]


async def test_flood_of_garbage_on_every_subject_is_one_line_a_second(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every subject that the services subscribe to, and the inboxes of their requests."""
    listened: list[str] = []
    subscribe = Bus.subscribe

    async def noted(self: Bus, subject: str, handler: Handler) -> Subscription:
        listened.append(subject)
        return await subscribe(self, subject, handler)

    monkeypatch.setattr(Bus, "subscribe", noted)
    stream = io.StringIO()
    local.log = open_log(ServiceConfig(log_format="json", log_level="warning"), stream)
    publisher = await nats_library.connect(local.nats.url)
    try:
        await local.start()
        listened += [
            f"{service.process.bus.inbox}{number}"
            for service in local.services
            for number in range(1, 20)
        ]
        assert len(listened) > 20
        held = local.turn(Plan(length=200, hold_at=20, go=asyncio.Event()))
        await held.sink.words_at_least(10)
        began = time.monotonic()
        for _ in range(3):
            for pattern in listened:
                subject = pattern.replace("*", "stranger")
                for data in GARBAGE:
                    for headers in HEADERS:
                        await publisher.publish(subject, data, reply=subject, headers=headers)
                await publisher.flush()
            await local.turn(Plan(length=10)).whole(10)
        held_plan = local.plans[held.id].go
        assert held_plan is not None
        held_plan.set()
        await held.whole(200)
        seconds = time.monotonic() - began
        await local.idle()
        lines = [json.loads(line) for line in stream.getvalue().splitlines()]
        for (process, event), count in Counter(
            (line["process"], line["event"]) for line in lines
        ).items():
            assert count <= seconds + 2, (process, event, count)
        assert not [line for line in lines if line["event"] == "bus.handler_failed"], (
            "garbage is not a defect"
        )
        assert all(service.alive for service in local.services)
    finally:
        await publisher.close()
