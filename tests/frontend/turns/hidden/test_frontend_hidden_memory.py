"""What clients do not see is found in the store, looked up once, and again if the store did not
answer."""

import asyncio
from collections import Counter
from itertools import permutations

import pytest
from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Call, Client, Conversation, HostedTool, Message, Result, Text
from schemas.errors import Unavailable
from services.frontend.content.hosted_tools import hosted_spec
from services.frontend.stored.memory import MemoryStore, R, StoreLimits
from services.frontend.stored.record import Record, StoredHidden
from services.frontend.turns.hidden.history import HiddenTurns
from services.frontend.turns.hidden.memory import HiddenMemory
from services.ledger.turns.evidence import call_id

SEARCH = hosted_spec(HostedTool("tool_search_bm25", hidden=True), "tool_search")
HIDDEN = HiddenTurns(
    ["first"],
    [
        Message("assistant", [Call(call_id("first", 0), "tool_search", "{}")]),
        Message("tool", [Result(call_id("first", 0), [Text("No results.")])]),
    ],
)
ASKED = Message("user", [Text("Do it.")])
SHOWN = Message("assistant", [Call(call_id("second", 0), "look", "{}")])
SEEN = Message("tool", [Result(call_id("second", 0), [Text("seen")])])
DONE = Message("assistant", [Text("Done.")])


class CountingStore(MemoryStore):
    """Counts the look-ups that would read the bucket."""

    def __init__(self) -> None:
        super().__init__(StoreLimits(60.0, 100, 1 << 20), lambda: 5.0)
        self.reads: Counter[str] = Counter()
        self.answers = True

    @override
    async def get(
        self,
        kind: type[R],
        id: str,
        tenant: str | None,
        *,
        ended: bool = False,
        wait: bool = True,
    ) -> R | None:
        self.reads[id] += 1
        if not self.answers:
            raise Unavailable("no answer")
        return await super().get(kind, id, tenant, ended=ended, wait=wait)


def conversation(*messages: Message, session: str | None = None) -> Conversation:
    return Conversation("m", [*messages], tools=[SEARCH], client=Client(session))


def hidden_of(turn: str) -> HiddenTurns:
    """A hidden search, with other ids and results in each turn."""
    id = call_id(turn, 0)
    found = Message("tool", [Result(id, [Text(turn)])])
    return HiddenTurns([turn], [Message("assistant", [Call(id, "tool_search", "{}")]), found])


async def test_hidden_turns_are_of_one_owner() -> None:
    memory = HiddenMemory(CountingStore(), lambda: 5.0)
    await memory.keep(conversation(ASKED), SHOWN, HIDDEN, "red")
    history = conversation(ASKED, SHOWN, SEEN)
    restored = await memory.add(history, "red")
    assert restored.messages == [ASKED, *HIDDEN.messages, SHOWN, SEEN]
    for other in ("blue", None):
        assert await memory.add(history, other) == history


async def test_sessions_with_the_same_words_keep_apart() -> None:
    memory = HiddenMemory(CountingStore(), lambda: 5.0)
    for session in ("a", "b"):
        await memory.keep(conversation(ASKED, session=session), DONE, hidden_of(session), None)
    for session in ("a", "b"):
        history = conversation(ASKED, DONE, ASKED, session=session)
        restored = await memory.add(history, None)
        assert restored.messages[1:3] == hidden_of(session).messages


@pytest.mark.parametrize("other", [hidden_of("b"), HiddenTurns()])
async def test_nothing_is_put_back_into_answers_that_look_alike(other: HiddenTurns) -> None:
    for kept in permutations([hidden_of("a"), other]):
        memory = HiddenMemory(CountingStore(), lambda: 5.0)
        for hidden in kept:
            await memory.keep(conversation(ASKED), DONE, hidden, None)
        history = conversation(ASKED, DONE, ASKED)
        assert await memory.add(history, None) == history
        await memory.keep(conversation(ASKED), DONE, hidden_of("a"), None)
        assert await memory.add(history, None) == history, "a third one does not change that"


async def test_nothing_is_put_back_into_answers_that_may_look_alike() -> None:
    store = CountingStore()
    memory = HiddenMemory(store, lambda: 5.0)
    store.answers = False
    await memory.keep(conversation(ASKED), DONE, HIDDEN, None)
    store.answers = True
    history = conversation(ASKED, DONE, ASKED)
    assert await memory.add(history, None) == history


async def test_turns_without_hidden_parts_are_looked_up_once() -> None:
    store = CountingStore()
    memory = HiddenMemory(store, lambda: 5.0)
    history = conversation(ASKED, SHOWN, SEEN, DONE, ASKED)
    for _ in range(3):
        await memory.add(history, None)
    assert sorted(store.reads.values()) == [1, 3], "the newest may be on its way"


async def test_store_that_does_not_answer_is_asked_again() -> None:
    store = CountingStore()
    memory = HiddenMemory(store, lambda: 5.0)
    history = conversation(ASKED, SHOWN, SEEN, DONE, ASKED)
    store.answers = False
    assert await memory.add(history, None) == history
    store.answers = True
    other = HiddenMemory(store, lambda: 5.0)
    await other.keep(conversation(ASKED), SHOWN, HIDDEN, None)
    restored = await memory.add(history, None)
    assert restored.messages[1:3] == HIDDEN.messages


async def test_reads_of_a_long_history_are_few_at_once() -> None:
    store = SlowStore()
    memory = HiddenMemory(store, lambda: 5.0)
    turns = [
        message
        for number in range(100)
        for message in (ASKED, Message("assistant", [Call(call_id(str(number), 0), "look", "{}")]))
    ]
    await memory.add(conversation(*turns), None)
    assert store.most_at_once <= 16
    assert store.ended == 100
    await memory.add(conversation(*turns), None)
    assert store.ended == 101, "only the newest is looked up again"


class SlowStore(CountingStore):
    """Counts the look-ups in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = 0
        self.most_at_once = 0
        self.ended = 0

    @override
    async def get(
        self,
        kind: type[R],
        id: str,
        tenant: str | None,
        *,
        ended: bool = False,
        wait: bool = True,
    ) -> R | None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.ended += 1
        return None


async def test_record_of_another_release_is_forgotten() -> None:
    class OtherRelease(CountingStore):
        @override
        def put(self, record: Record) -> None:
            assert isinstance(record, StoredHidden)
            super().put(replace(record, turns=Raw(b'{"turns": [{"id": 1}]}')))

    memory = HiddenMemory(OtherRelease(), lambda: 5.0)
    await memory.keep(conversation(ASKED), SHOWN, HIDDEN, None)
    history = conversation(ASKED, SHOWN, SEEN)
    assert await memory.add(history, None) == history
