"""`conversation` objects, through the SDK."""

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from schemas.conversation import Text
from schemas.events import FinishReason
from services.frontend.apis.responses.conversations import turns
from services.runtime.config import FrontendConfig
from tests.frontend.frontend_fakes import MODEL, FakeGateway, Served, finish, serving, text

HELLO: Any = {"type": "message", "role": "user", "content": "Hello."}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(FakeGateway()) as running:
        yield running


def sdk(served: Served, key: str = "k") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


def texts(served: Served) -> list[str]:
    """The prompt of the last turn."""
    turns = served.gateway.turns[-1].conversation.turns
    return [part.text for turn in turns for part in turn.parts if isinstance(part, Text)]


async def said(client: AsyncOpenAI, id: str) -> list[str]:
    """The texts of a conversation's items, oldest first."""
    items: list[Any] = [item async for item in client.conversations.items.list(id, order="asc")]
    return [item.content[0].text for item in items]


async def test_responses_continue_a_conversation_and_add_to_it(served: Served) -> None:
    client = sdk(served)
    conversation = await client.conversations.create(items=[HELLO], metadata={"topic": "greeting"})
    response = await client.responses.create(model=MODEL, input="How are you?", conversation=conversation.id)
    assert response.conversation is not None
    assert response.conversation.id == conversation.id
    assert texts(served) == ["Hello.", "How are you?"]
    async for _ in await client.responses.create(
        model=MODEL, input="Still there?", conversation={"id": conversation.id}, stream=True, store=False
    ):
        pass
    assert texts(served) == ["Hello.", "How are you?", "Hello there", "Still there?"]
    assert await said(client, conversation.id) == [*texts(served), "Hello there"]


async def test_a_conversation_is_shown_changed_and_deleted(served: Served) -> None:
    client = sdk(served)
    made = await client.conversations.create(metadata={"a": "1"})
    assert (made.object, made.metadata) == ("conversation", {"a": "1"})
    assert await client.conversations.retrieve(made.id) == made
    changed = await client.conversations.update(made.id, metadata={"b": "2"})
    assert (changed.id, changed.metadata, changed.created_at) == (made.id, {"b": "2"}, made.created_at)
    deleted = await client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "conversation.deleted")
    for attempt in (
        client.conversations.retrieve(made.id),
        client.responses.create(model=MODEL, input="Hi.", conversation=made.id),
    ):
        with pytest.raises(NotFoundError, match=f"Conversation with id '{made.id}' not found"):
            await attempt


async def test_items_are_added_shown_and_deleted(served: Served) -> None:
    client = sdk(served)
    items = client.conversations.items
    id = (await client.conversations.create()).id
    bye: Any = {**HELLO, "content": "Bye."}
    added: list[Any] = (await items.create(id, items=[HELLO, bye])).data
    assert [item.content[0].text for item in added] == ["Hello.", "Bye."]
    assert await items.retrieve(added[0].id, conversation_id=id) == added[0]
    assert (await items.delete(added[0].id, conversation_id=id)).id == id
    assert await said(client, id) == ["Bye."]
    for attempt in (items.retrieve(added[0].id, conversation_id=id), items.delete("msg_none", conversation_id=id)):
        with pytest.raises(NotFoundError):
            await attempt
    with pytest.raises(BadRequestError, match="array too long"):
        await items.create(id, items=[HELLO] * 21)
    with pytest.raises(BadRequestError):
        await items.create(id, items=[{"type": "function_call", "name": "x"}])  # type: ignore[list-item]


async def test_one_response_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "WAITS_S", ())
    held = asyncio.Event()
    gateway = FakeGateway(lambda: [held, [*text(0, "Hello there"), finish(1)]])
    async with serving(gateway) as served:
        client = sdk(served)
        id = (await client.conversations.create()).id
        first = asyncio.create_task(client.responses.create(model=MODEL, input="One.", conversation=id))
        await gateway.opening.wait()
        with pytest.raises(BadRequestError) as refusal:
            await client.responses.create(model=MODEL, input="Two.", conversation=id)
        assert (refusal.value.code, refusal.value.param) == ("conversation_locked", "conversation")
        held.set()
        await first
        await client.responses.create(model=MODEL, input="Three.", conversation=id)
        assert await said(client, id) == ["One.", "Hello there", "Three.", "Hello there"]


async def test_a_response_that_fails_adds_nothing() -> None:
    gateway = FakeGateway(lambda: [[*text(0, "Hello"), finish(1, FinishReason.ERROR)]])
    async with serving(gateway) as served:
        client = sdk(served)
        id = (await client.conversations.create(items=[HELLO])).id
        async for _ in await client.responses.create(model=MODEL, input="Hi.", conversation=id, stream=True):
            pass
        assert await said(client, id) == ["Hello."]


async def test_what_a_conversation_cannot_be_combined_with(served: Served) -> None:
    client = sdk(served)
    id = (await client.conversations.create()).id
    response = await client.responses.create(model=MODEL, input="Hi.")
    with pytest.raises(BadRequestError, match="Mutually exclusive"):
        await client.responses.create(model=MODEL, input="Hi.", conversation=id, previous_response_id=response.id)
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(id)
    with pytest.raises(NotFoundError):
        await client.conversations.retrieve(response.id)


async def test_a_conversation_belongs_to_the_key_that_made_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:{sha256(f'sk-{name}'.encode()).hexdigest()}\n" for name in ("one", "two")))
    async with serving(FakeGateway(), FrontendConfig(api_keys_file=str(keys))) as served:
        mine, other = sdk(served, "sk-one"), sdk(served, "sk-two")
        id = (await mine.conversations.create(items=[HELLO])).id
        for attempt in (
            other.conversations.retrieve(id),
            other.conversations.delete(id),
            other.responses.create(model=MODEL, input="Hi.", conversation=id),
        ):
            with pytest.raises(NotFoundError):
                await attempt
        assert await said(mine, id) == ["Hello."]


async def test_the_prompt_of_a_conversation_is_counted(served: Served) -> None:
    client = sdk(served)
    id = (await client.conversations.create(items=[HELLO])).id
    await client.responses.input_tokens.count(model=MODEL, input="Hi.", conversation=id)
    assert len(served.gateway.counted[-1].turns) == 2


async def test_items_of_a_conversation_are_found_by_reference(served: Served) -> None:
    client = sdk(served)
    id = (await client.conversations.create(items=[HELLO])).id
    items: list[Any] = [item async for item in client.conversations.items.list(id)]
    reference: Any = {"type": "item_reference", "id": items[0].id}
    await client.responses.create(model=MODEL, input=[reference, HELLO], conversation=id, store=False)
    assert texts(served) == ["Hello.", "Hello.", "Hello."]


async def test_a_conversation_has_a_limit(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_BYTES", 1000)
    client = sdk(served)
    long: Any = {**HELLO, "content": "x" * 600}
    id = (await client.conversations.create(items=[long])).id
    for attempt in (
        client.conversations.create(items=[long, long]),
        client.conversations.items.create(id, items=[long]),
        client.responses.create(model=MODEL, input=[long], conversation=id),
    ):
        with pytest.raises(BadRequestError) as refusal:
            await attempt
        assert refusal.value.code == "conversation_too_large"
    await client.responses.create(model=MODEL, input="Hi.", conversation=id)
    assert await said(client, id) == ["x" * 600, "Hi.", "Hello there"]
