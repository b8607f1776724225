"""Chat completions with `store: true`, through the SDK."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from schemas.events import FinishReason
from services.runtime.config import FrontendConfig
from tests.frontend.frontend_fakes import MODEL, FakeGateway, Served, call, finish, reasoning, serving, text

HI: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hello."}]},
]


def turn() -> list[Any]:
    said = [*reasoning(0, "Think."), *text(1, "Hello there"), *call(2, "look", '{"at": 1}', call_id="call_1")]
    return [[*said, finish(3)]]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(FakeGateway(turn)) as running:
        yield running


def sdk(served: Served, key: str = "k") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0)


async def test_a_stored_completion_is_the_one_that_was_sent(served: Served) -> None:
    chats = sdk(served).chat.completions
    sent = await chats.create(model=MODEL, messages=HI, store=True, metadata={"topic": "greeting"})
    kept = await chats.retrieve(sent.id)
    assert kept.metadata == {"topic": "greeting"}
    assert kept.to_dict() == {**sent.to_dict(), "metadata": {"topic": "greeting"}}


async def test_a_stream_is_stored_as_the_document_that_it_adds_up_to(served: Served) -> None:
    chats = sdk(served).chat.completions
    whole = await chats.create(model=MODEL, messages=HI)
    async for chunk in await chats.create(model=MODEL, messages=HI, store=True, stream=True):
        id = chunk.id
    kept = (await chats.retrieve(id)).to_dict()
    own = {"id", "created", "metadata"}
    assert {k: v for k, v in kept.items() if k not in own} == {k: v for k, v in whole.to_dict().items() if k not in own}


async def test_nothing_is_stored_without_being_asked_to(served: Served) -> None:
    chats = sdk(served).chat.completions
    sent = await chats.create(model=MODEL, messages=HI, metadata={"anything": "else"})
    with pytest.raises(NotFoundError, match=f"Chat completion with id '{sent.id}' not found"):
        await chats.retrieve(sent.id)
    assert [kept async for kept in chats.list()] == []


async def test_messages_of_the_request(served: Served) -> None:
    chats = sdk(served).chat.completions
    id = (await chats.create(model=MODEL, messages=HI, store=True)).id
    listed = [message.to_dict() async for message in chats.messages.list(id)]
    assert [(message["id"], message["role"], message["content"]) for message in listed] == [
        (f"{id}-0", "system", "Be brief."),
        (f"{id}-1", "user", "Say hello."),
    ]
    assert [message["content_parts"] for message in listed] == [None, HI[1]["content"]]
    newest = await chats.messages.list(id, order="desc", limit=1)
    assert ([message.id for message in newest.data], newest.has_more) == ([f"{id}-1"], True)


async def test_lists_are_pages_of_what_matches(served: Served) -> None:
    chats = sdk(served).chat.completions
    ids = [
        (await chats.create(model=model, messages=HI, store=True, metadata={"n": n})).id
        for model, n in ((MODEL, "1"), ("claude-alias", "2"), (MODEL, "2"))
    ]
    assert [kept.id async for kept in chats.list(limit=1)] == ids
    assert [kept.id async for kept in chats.list(metadata={"n": "2"}, model=MODEL)] == [ids[2]]
    assert [kept.id async for kept in chats.list(model="claude-alias")] == [ids[1]]
    with pytest.raises(BadRequestError):
        await chats.list(order="none")  # type: ignore[arg-type]


async def test_completions_of_one_second_are_listed_in_their_order(served: Served) -> None:
    chats = sdk(served).chat.completions
    ids = [(await chats.create(model=MODEL, messages=HI, store=True)).id for _ in range(8)]
    assert [kept.id async for kept in chats.list()] == ids
    assert [kept.id async for kept in chats.list(order="desc")] == ids[::-1]


async def test_metadata_is_replaced_and_a_completion_deleted(served: Served) -> None:
    chats = sdk(served).chat.completions
    id = (await chats.create(model=MODEL, messages=HI, store=True, metadata={"a": "1"})).id
    assert (await chats.update(id, metadata={"b": "2"})).metadata == {"b": "2"}
    assert (await chats.retrieve(id)).metadata == {"b": "2"}
    with pytest.raises(BadRequestError):
        await chats.update(id, metadata={"b": 2})  # type: ignore[dict-item]
    deleted = await chats.delete(id)
    assert (deleted.id, deleted.deleted, deleted.object) == (id, True, "chat.completion.deleted")
    with pytest.raises(NotFoundError):
        await chats.retrieve(id)


async def test_a_completion_is_no_response_and_a_response_no_completion(served: Served) -> None:
    client = sdk(served)
    chat = await client.chat.completions.create(model=MODEL, messages=HI, store=True)
    response = await client.responses.create(model=MODEL, input="Hi.")
    with pytest.raises(NotFoundError):
        await client.responses.retrieve(chat.id)
    with pytest.raises(NotFoundError):
        await client.responses.delete(chat.id)
    with pytest.raises(BadRequestError, match="Previous response"):
        await client.responses.create(model=MODEL, input="Hi.", previous_response_id=chat.id)
    with pytest.raises(NotFoundError):
        await client.chat.completions.retrieve(response.id)
    assert (await client.chat.completions.retrieve(chat.id)).id == chat.id


async def test_a_completion_belongs_to_the_key_that_made_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:{sha256(f'sk-{name}'.encode()).hexdigest()}\n" for name in ("one", "two")))
    async with serving(FakeGateway(turn), FrontendConfig(api_keys_file=str(keys))) as served:
        mine, other = (sdk(served, f"sk-{name}").chat.completions for name in ("one", "two"))
        id = (await mine.create(model=MODEL, messages=HI, store=True)).id
        for attempt in (other.retrieve(id), other.delete(id), other.update(id, metadata={})):
            with pytest.raises(NotFoundError):
                await attempt
        assert [kept async for kept in other.list()] == []
        assert [kept.id async for kept in mine.list()] == [id]


async def test_a_turn_that_fails_is_not_stored() -> None:
    gateway = FakeGateway(lambda: [[*text(0, "Hello"), finish(1, FinishReason.ERROR)]])
    async with serving(gateway) as served:
        chats = sdk(served).chat.completions
        with pytest.raises(Exception, match="engine failed"):
            async for _ in await chats.create(model=MODEL, messages=HI, store=True, stream=True):
                pass
        assert [kept async for kept in chats.list()] == []


async def test_metadata_of_what_is_stored_is_checked(served: Served) -> None:
    chats = sdk(served).chat.completions
    with pytest.raises(BadRequestError, match="metadata"):
        await chats.create(model=MODEL, messages=HI, store=True, metadata={"a": "x" * 513})
