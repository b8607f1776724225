"""A preprocessor's ledger over a real bus: entries that it receives, and siblings that only the
bucket has."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from schemas import subjects
from schemas.conversation import Client, Conversation, Reasoning, Text
from schemas.ledger import LedgerEntry
from services.ledger.lookup.match import MatchedHistory
from services.preprocessor.ledger_reader import BusLedgerReader
from services.preprocessor.model.ledger_model import open_ledger
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.preparation import Preparation
from services.runtime.config.stages import PreprocessorConfig
from services.runtime.process import Process
from services.runtime.storage.kv import Bucket, BucketConfig
from services.runtime.storage.seal import Sealer
from tests.kit.conversations import assistant
from tests.kit.ledger_turns import ANSWER, MORE, QUESTION, SIGNER, Alike, Session, started
from tests.kit.processes import MakeProcess, make_bucket
from tests.kit.waiting import eventually


@pytest.fixture(scope="module")
def setup(setup: ModelSetup) -> ModelSetup:
    """The demo's, by the name that its turns have."""
    return replace(setup, card=structs.replace(setup.card, name="m"))


async def opened(process: Process, name: str) -> Bucket:
    config = BucketConfig(
        name=name, description="", ttl_s=60, max_bytes=1 << 20, max_value_bytes=1 << 16
    )
    return await make_bucket(process.bus, config, process.log)


async def reader(make_process: MakeProcess, setup: ModelSetup, name: str) -> BusLedgerReader:
    return await reader_of(await make_process("preprocessor", name), setup, name)


async def reader_of(process: Process, setup: ModelSetup, name: str) -> BusLedgerReader:
    ledger = open_ledger(setup, entry_bytes=1 << 20, prompt_bytes=1 << 20)
    found = BusLedgerReader(process, ledger, SIGNER, await opened(process, name))
    await found.start()
    await process.bus.flush()
    return found


def conversation(*, thought: str | None = None, session: str | None = None) -> Conversation:
    parts = [Reasoning(thought), Text(ANSWER)] if thought else [Text(ANSWER)]
    return Conversation("m", [QUESTION, assistant(*parts), MORE], client=Client(session=session))


def looked_up(reader: BusLedgerReader, conversation: Conversation) -> MatchedHistory:
    return reader.ledger.look_up(conversation, [])


def restored(reader: BusLedgerReader, conversation: Conversation) -> Sequence[str]:
    messages = looked_up(reader, conversation).restored().messages
    return [
        part.text or ""
        for message in messages
        for part in message.parts
        if isinstance(part, Reasoning)
    ]


def written(alike: Alike) -> list[tuple[str, str, bytes]]:
    return [
        (entry.key.hex(), entry.mac.hex(), msgspec.json.encode(entry))
        for entry in alike.entries.values()
    ]


async def test_listeners_get_each_authentic_entry_once(
    make_process: MakeProcess, setup: ModelSetup
) -> None:
    first, second = started(Session(setup), 2, ANSWER).entries.values()
    forged = msgspec.structs.replace(first, mac=b"forged")
    heard: list[LedgerEntry] = []
    receiver = await reader(make_process, setup, "listening")
    receiver.listen(heard.append)
    writer = await make_process("parser", "listening-writer")
    for entry in (forged, first, first, second):
        writer.bus.publish(subjects.ledger("m"), msgspec.json.encode(entry))
    await eventually(lambda: second in heard)
    assert heard == [first, second]


async def test_siblings_before_the_start_are_fetched_before_one_is_chosen(
    make_process: MakeProcess, setup: ModelSetup
) -> None:
    alike = started(Session(setup), 2, ANSWER)
    writer = await make_process("parser", "siblings-writer")
    bucket = await opened(writer, "siblings-late")
    (key, mac, first), (_, other, second) = written(alike)
    bucket.offer(key, first, mac)
    await bucket.put("flush", b"x")
    late = await reader(make_process, setup, "siblings-late")
    bucket.offer(key, second, other)
    writer.bus.publish(subjects.ledger("m"), second)
    await eventually(lambda: len(late.ledger.entries) == 1)
    keys = looked_up(late, conversation()).missing
    assert restored(late, conversation()) == [], "there may be others"
    assert await late.fetch(keys)
    assert len(late.ledger.entries) == 2
    assert restored(late, conversation()) == [], "there are"
    for number in range(2):
        assert restored(late, conversation(thought=alike.thought(number))) == [
            alike.thought(number)
        ]
    assert not await late.fetch(looked_up(late, conversation()).missing)


@pytest.mark.parametrize("there", [True, False])
async def test_prompt_has_the_fetched_turns(
    make_process: MakeProcess, setup: ModelSetup, there: bool
) -> None:
    name = f"fetched-{there}".lower()
    alike = started(Session(setup), 1, ANSWER)
    ((key, mac, data),) = written(alike)
    process = await make_process("preprocessor", name)
    late = await reader_of(process, setup, name)
    if there:
        writer = await make_process("parser", f"{name}-writer")
        bucket = await opened(writer, name)
        bucket.offer(key, data, mac)
        await bucket.put("flush", b"x")
    preparation = Preparation(
        process, setup, Sealer(b"test"), PreprocessorConfig(model="m", threads=1), late
    )
    steps: list[str] = []
    prompt = await preparation.make_prompt(conversation(), size=1, on_step=steps.append)
    preparation.threads.close()
    assert steps == ["normalize", "restore", "normalize", "restore", "render", "encode"], (
        "rendered once"
    )
    assert prompt.encoded.outcome
    assert prompt.encoded.outcome == ("moved" if there else "unknown"), (
        "the entry follows another prompt"
    )
