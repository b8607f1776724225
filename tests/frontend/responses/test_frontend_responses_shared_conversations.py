"""Conversations that two frontends share over a real nats-server."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError
from structlog.typing import FilteringBoundLogger

from schemas.errors import Unavailable
from services.frontend.apis.responses.conversations import turns
from services.frontend.apis.responses.store.shared import Sharing, bucket_config
from services.runtime.config import FrontendConfig
from services.runtime.storage.kv import Bucket
from tests.conftest import LIMIT_S, MakeProcess
from tests.frontend.frontend_fakes import MODEL, Served, serving
from tests.frontend.responses.pair import CONFIG, Pair, pairing, sdk
from tests.frontend.responses.responses_client import frames_of, said

HELLO: Any = {"type": "message", "role": "user", "content": "Hello."}
BYE: Any = {**HELLO, "content": "Bye."}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the last write of a turn is waited for."""
    monkeypatch.setattr(turns, "WAITS_S", (0.02,) * 3000)
    monkeypatch.setattr(turns, "SHOWN_WAITS", 3000)


def texts(served: Served) -> list[str]:
    """The prompt of the last turn."""
    return [text for _, parts in said(served.gateway.turns[-1].conversation) for text in parts]


async def items(client: AsyncOpenAI, id: str) -> list[str]:
    """The texts of a conversation's items, oldest first."""
    listed: list[Any] = [item async for item in client.conversations.items.list(id, order="asc")]
    return [item.content[0].text for item in listed]


async def test_a_conversation_is_the_same_at_both(pair: Pair) -> None:
    one, other = pair.sdks()
    made = await one.conversations.create(items=[HELLO], metadata={"a": "1"})
    assert await other.conversations.retrieve(made.id) == made
    changed = await other.conversations.update(made.id, metadata={"b": "2"})
    assert await one.conversations.retrieve(made.id) == changed
    added: Any = (await other.conversations.items.create(made.id, items=[BYE])).data[0]
    assert await items(one, made.id) == ["Hello.", "Bye."]
    assert await one.conversations.items.retrieve(added.id, conversation_id=made.id) == added
    await one.conversations.items.delete(added.id, conversation_id=made.id)
    assert await items(other, made.id) == ["Hello."]
    await one.conversations.delete(made.id)
    for client in (one, other):
        for attempt in (
            client.conversations.retrieve(made.id),
            client.conversations.update(made.id, metadata={}),
            client.conversations.delete(made.id),
            client.conversations.items.create(made.id, items=[HELLO]),
            client.responses.create(model=MODEL, input="Hi.", conversation=made.id),
        ):
            with pytest.raises(NotFoundError, match="not found"):
                await attempt


async def test_turns_of_every_kind_continue_each_other(pair: Pair) -> None:
    pair.go.set()
    one, other = pair.sdks()
    id = (await one.conversations.create()).id
    await one.responses.create(model=MODEL, input="One.", conversation=id)
    stream = await other.responses.create(model=MODEL, input="Two.", conversation=id, stream=True, store=False)
    async for _ in stream:
        pass
    assert texts(pair.other) == ["One.", "So far", "Two."]
    running = await one.responses.create(model=MODEL, input="Three.", conversation=id, background=True)
    async with asyncio.timeout(LIMIT_S):
        while (await other.responses.retrieve(running.id)).status != "completed":
            pass
    async with pair.http.ws_connect(pair.ask_other.url) as socket:
        create = {"type": "response.create", "model": MODEL, "conversation": id}
        await socket.send_json({**create, "input": "Four."})
        ended = (await frames_of(socket))[-1]
        assert (ended["type"], ended["response"]["conversation"]) == ("response.completed", {"id": id})
        await socket.send_json({**create, "input": "Five."})
        assert (await frames_of(socket))[-1]["type"] == "response.completed"
    said_before = ["One.", "So far", "Two.", "So far", "Three.", "So far", "Four.", "So far", "Five."]
    assert texts(pair.other) == said_before
    assert await items(one, id) == [*said_before, "So far"]


async def test_one_turn_at_a_time_of_all_frontends(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair.sdks()
    id = (await one.conversations.create()).id
    running = await one.responses.create(model=MODEL, input="One.", conversation=id, background=True)
    with monkeypatch.context() as impatient:
        impatient.setattr(turns, "WAITS_S", ())
        impatient.setattr(turns, "SHOWN_WAITS", 0)
        for client in (one, other):
            for attempt in (
                client.responses.create(model=MODEL, input="Two.", conversation=id),
                client.responses.create(model=MODEL, input="Two.", conversation=id, background=True),
                client.conversations.items.create(id, items=[HELLO]),
            ):
                with pytest.raises(BadRequestError) as refusal:
                    await attempt
                assert (refusal.value.code, refusal.value.param) == ("conversation_locked", "conversation")
        async with pair.http.ws_connect(pair.ask_other.url) as socket:
            await socket.send_json({"type": "response.create", "model": MODEL, "input": "Two.", "conversation": id})
            assert (await frames_of(socket))[-1]["error"]["code"] == "conversation_locked"
        assert await items(other, id) == []
        assert (await other.conversations.update(id, metadata={"a": "1"})).metadata == {"a": "1"}
    waiting = asyncio.create_task(other.responses.create(model=MODEL, input="Two.", conversation=id))
    pair.go.set()
    await waiting
    assert texts(pair.other) == ["One.", "So far", "Two."]
    assert (await one.responses.retrieve(running.id)).status == "completed"
    assert (await one.conversations.retrieve(id)).metadata == {"a": "1"}


async def test_a_turn_that_is_cancelled_adds_nothing(pair: Pair) -> None:
    one, other = pair.sdks()
    id = (await one.conversations.create(items=[HELLO])).id
    running = await one.responses.create(model=MODEL, input="One.", conversation=id, background=True)
    await other.responses.cancel(running.id)
    async with asyncio.timeout(LIMIT_S):
        while (await one.responses.retrieve(running.id)).status != "cancelled":
            pass
    pair.go.set()
    await other.responses.create(model=MODEL, input="Two.", conversation=id)
    assert texts(pair.other) == ["Hello.", "Two."]


async def test_the_turn_of_a_process_that_is_gone_does_not_count(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = pair.sdks()
    id = (await one.conversations.create()).id
    first = asyncio.create_task(one.responses.create(model=MODEL, input="One.", conversation=id))
    await asyncio.wait_for(pair.one.gateway.opening.wait(), LIMIT_S)
    del pair.living[0]
    monkeypatch.setattr(turns, "WAITS_S", ())
    second = asyncio.create_task(other.responses.create(model=MODEL, input="Two.", conversation=id))
    await asyncio.wait_for(pair.other.gateway.opening.wait(), LIMIT_S)
    pair.go.set()
    await asyncio.gather(first, second)  # the first was alive after all, and is too late
    await asyncio.wait_for(pair.one.responses.turns.settled(), LIMIT_S)
    await asyncio.wait_for(pair.other.responses.turns.settled(), LIMIT_S)
    assert await items(one, id) == ["Two.", "So far"]


async def test_changes_at_the_same_time_are_all_kept(pair: Pair) -> None:
    id = (await pair.sdks()[0].conversations.create()).id
    numbers = [str(n) for n in range(12)]
    new: list[Any] = [{**HELLO, "content": number} for number in numbers]
    clients = pair.sdks() * 6
    await asyncio.gather(
        *(client.conversations.items.create(id, items=[item]) for client, item in zip(clients, new, strict=True))
    )
    assert sorted(await items(pair.sdks()[1], id), key=int) == numbers


async def test_the_end_of_a_turn_is_written_when_the_store_answers_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RETRY_S", (0.0,))
    one, other = pair.sdks()
    id = (await one.conversations.create()).id
    first = asyncio.create_task(one.responses.create(model=MODEL, input="One.", conversation=id))
    await asyncio.wait_for(pair.one.gateway.opening.wait(), LIMIT_S)
    store, refused = pair.one.responses.store, 0
    revise = store.revise

    async def refusing(*arguments: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused < 4:
            raise Unavailable("no answer")
        return await revise(*arguments)

    monkeypatch.setattr(store, "revise", refusing)
    pair.go.set()
    await first
    await asyncio.wait_for(pair.one.responses.turns.settled(), LIMIT_S)
    assert refused == 4
    assert await items(other, id) == ["One.", "So far"]
    lines = [line for line in pair.one.lines if line["event"] == "responses.conversation_not_written"]
    assert [line["conversation"] for line in lines] == [id] * 3


async def test_a_conversation_belongs_to_the_key_that_made_it(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:{sha256(f'sk-{name}'.encode()).hexdigest()}\n" for name in ("a", "b")))
    config = FrontendConfig(response_store="shared", api_keys_file=str(keys))
    async with pairing(make_process, quiet_log, config) as pair:
        mine, theirs = pair.sdks("sk-a")[0], pair.sdks("sk-b")[1]
        id = (await mine.conversations.create(items=[HELLO])).id
        for attempt in (
            theirs.conversations.retrieve(id),
            theirs.conversations.update(id, metadata={}),
            theirs.conversations.delete(id),
            theirs.responses.create(model=MODEL, input="Hi.", conversation=id),
        ):
            with pytest.raises(NotFoundError):
                await attempt
        assert await items(pair.sdks("sk-a")[1], id) == ["Hello."]


async def test_without_a_bucket_there_are_no_conversations(
    make_process: MakeProcess, quiet_log: FilteringBoundLogger
) -> None:
    process = await make_process("frontend", "alone")
    absent = Bucket(process.bus, replace(bucket_config(CONFIG), name="absent"), quiet_log)
    sharing = Sharing(absent, process.id, lambda _id: True, lambda _notice: None, process.spawn)
    async with serving(None, CONFIG, sharing=sharing) as one:
        with pytest.raises(InternalServerError, match="does not exist"):
            await sdk(one).conversations.create()
        with pytest.raises(NotFoundError):
            await sdk(one).conversations.retrieve("conv_1")


async def test_a_drain_leaves_the_turns_in_the_bucket(pair: Pair) -> None:
    pair.go.set()
    one, other = pair.sdks()
    id = (await one.conversations.create()).id
    await one.responses.create(model=MODEL, input="One.", conversation=id)
    await pair.one.responses.drain()
    assert await items(other, id) == ["One.", "So far"]
