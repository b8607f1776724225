"""Deadlines, refusals and texts at the service, and the prompt core as a library."""

from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.conversation import Conversation
from schemas.errors import ErrorKind
from schemas.events import Failed
from schemas.frames import EventEntry, EventFrame
from schemas.requests import Accepted, DetokenizeRequest, TextReply, TokenizeRequest, TurnRequest
from schemas.token_ids import pack_ids
from services.ledger.turn_ledger import Ledger
from services.preprocessor.ledger_reader import LedgerReader
from services.preprocessor.library import assemble, prompt_ids
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.service import Preprocessor
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.nats.bus import Delivery
from services.runtime.process import Process
from services.runtime.storage.seal import Sealer
from tests.kit.conversations import user
from tests.kit.processes import MakeProcess
from tests.kit.waiting import LIMIT_S, eventually

CONVERSATION = Conversation("m", [user("hi")])


def test_prompt_ids_are_made_from_a_directory(demo_dir: Path, setup: ModelSetup) -> None:
    ids = prompt_ids(str(demo_dir), CONVERSATION)
    assert ids == list(assemble(CONVERSATION, setup).ids)
    assert (
        setup.tokenizer.decode(ids)
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


async def started(process: Process, setup: ModelSetup) -> Preprocessor:
    config = PreprocessorConfig(model="m", threads=1)
    preprocessor = Preprocessor(
        process, setup, Sealer(b"test"), config, LedgerReader(Ledger(setup.encoder))
    )
    await preprocessor.start()
    await process.bus.flush(LIMIT_S)
    return preprocessor


async def test_expired_turn_fails_once(make_process: MakeProcess, setup: ModelSetup) -> None:
    frontend = await make_process("frontend", "late-f")
    process = await make_process("preprocessor", "late-p")
    entries: list[EventEntry] = []

    def receive(delivery: Delivery) -> None:
        entries.extend(msgspec.json.decode(delivery.data, type=EventFrame).entries)
        delivery.reply(b"{}")

    await frontend.subscribe(subjects.events(frontend.id), receive)
    preprocessor = await started(process, setup)
    await frontend.bus.flush(LIMIT_S)
    for turn, timeout_s in (("late", -1.0), ("no-worker", None)):
        request = TurnRequest(turn, frontend.id, CONVERSATION, timeout_s=timeout_s)
        subject = subjects.turn(setup.card.name, process.id)
        reply = await frontend.bus.request(subject, msgspec.json.encode(request), LIMIT_S)
        assert msgspec.json.decode(reply, type=Accepted).preprocessor == process.id
    await eventually(lambda: len(entries) >= 2)
    await preprocessor.drain()
    kinds = {
        entry.turn: [event.error.kind for event in entry.events if isinstance(event, Failed)]
        for entry in entries
    }
    assert kinds == {"late": [ErrorKind.TIMED_OUT], "no-worker": [ErrorKind.UNAVAILABLE]}
    assert len(entries) == 2


async def test_text_is_tokenized_and_back(make_process: MakeProcess, setup: ModelSetup) -> None:
    process = await make_process("preprocessor", "text-p")
    await started(process, setup)
    ids = setup.tokenizer.encode("hi there")
    for subject, request, reply in (
        (subjects.tokenize, TokenizeRequest("hi there"), {"token_ids": pack_ids(ids)}),
        (subjects.detokenize, DetokenizeRequest(pack_ids(ids)), {"text": "hi there"}),
    ):
        data = msgspec.json.encode(request)
        answer = await process.bus.request(subject(setup.card.name, process.id), data, LIMIT_S)
        found = msgspec.json.decode(answer, type=TextReply)
        assert (found.count, found.error) == (len(ids), None)
        assert {name: getattr(found, name) for name in reply} == reply


async def test_refusal_is_sent_until_the_frontend_has_it(
    make_process: MakeProcess, setup: ModelSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.preprocessor.refusals.REFUSE_TIMEOUT_S", 0.2)
    frontend = await make_process("frontend", "deaf-f")
    process = await make_process("preprocessor", "deaf-p", recovery_s=0.0)
    tries = 0

    def receive(delivery: Delivery) -> None:
        nonlocal tries
        tries += 1
        if tries > 3:  # what came before is lost
            delivery.reply(b"{}")

    await frontend.subscribe(subjects.events(frontend.id), receive)
    preprocessor = await started(process, setup)
    await frontend.bus.flush(LIMIT_S)
    request = TurnRequest("refused", frontend.id, CONVERSATION)  # there is no worker
    await frontend.bus.request(
        subjects.turn(setup.card.name, process.id), msgspec.json.encode(request), LIMIT_S
    )
    await eventually(lambda: tries == 4)
    await preprocessor.drain()
    assert tries == 4
