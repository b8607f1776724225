"""Sessions that look alike, through real processes: the same prompt at once, of three APIs and two
tenants, with every process of the inner stages replaced in between. Every prompt is judged from the
bus."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Tokenizer

from tests.clients.bus_turns import BusTurns, DecodedTurn, prefix_break
from tests.kit.messages_client import TOOLS, call, say
from tests.kit.nats import NatsServer
from tests.kit.stack import MODEL, Stack
from tests.kit.waiting import LIMIT_S

pytestmark = pytest.mark.slow

COUNTS = {"worker": 2, "parser": 2, "preprocessor": 2}
ROOM = {"ledger_store_mb": 64}
TENANTS = ("red", "blue")
WORK = say(
    " I am [[turn]].  \n</think>\n\n Looking  \n\n\n" + call("ls  -l") + "\n",
    "Again [[turn]]\n</think>\n\n" + call("date") + "\n\n",
    "  [[turn]] says so. \n</think>\n\n\nDone.  ",
)
TALK = say("I, [[turn]], think.\n</think>\n\n Hello  ")


@pytest.fixture(scope="module")
def two_of_each(
    make_nats: Callable[[], NatsServer], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("siblings")
    keys = directory / "keys"
    keys.write_text(
        "".join(f"{name}:{hashlib.sha256(name.encode()).hexdigest()}\n" for name in TENANTS)
    )
    running = Stack(make_nats(), demo_model, directory)
    try:
        yield running.start_all(
            COUNTS, parser=ROOM, preprocessor=ROOM, frontend={"api_keys_file": keys}
        )
    finally:
        running.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=4 * LIMIT_S)) as session:
        yield session


class Session:
    """One client's session. `reasons`: it sends reasoning back."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        stack: Stack,
        tenant: str,
        *,
        reasons: bool,
        question: str,
    ) -> None:
        self.turns: list[str] = []
        self.texts: list[str] = []
        self._http, self._stack, self._tenant, self._reasons = http, stack, tenant, reasons
        self.begin(question)

    async def turn(self) -> None:
        headers = {"authorization": f"Bearer {self._tenant}"}
        async with self._http.post(
            f"{self._stack.url}{self.path}", json=self.body(), headers=headers
        ) as response:
            answer = await response.json()
            assert response.status == 200, answer
        self.turns.append(answer["id"].rpartition("_")[2].rpartition("-")[2])
        self.take(answer)

    path = ""

    def begin(self, question: str) -> None: ...
    def body(self) -> dict[str, Any]: ...  # type: ignore[empty-body]
    def take(self, answer: Any) -> None: ...


class Messages(Session):
    path = "/v1/messages"

    def begin(self, question: str) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": question}]

    def body(self) -> dict[str, Any]:
        return {"model": MODEL, "max_tokens": 1000, "messages": self.messages, "tools": TOOLS}

    def take(self, answer: Any) -> None:
        content = [
            block for block in answer["content"] if self._reasons or block["type"] != "thinking"
        ]
        ids = [block["id"] for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": id, "content": "a file"} for id in ids]
        self.messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results or "And?"},
        ]


class Chat(Session):
    path = "/v1/chat/completions"

    def begin(self, question: str) -> None:
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": question}]

    def body(self) -> dict[str, Any]:
        tools = [
            {
                "type": "function",
                "function": {"name": tool["name"], "parameters": tool["input_schema"]},
            }
            for tool in TOOLS
        ]
        return {"model": MODEL, "messages": self.messages, "tools": tools}

    def take(self, answer: Any) -> None:
        message = answer["choices"][0]["message"]
        kept = ("role", "content", "tool_calls", *(("reasoning_content",) if self._reasons else ()))
        self.messages.append(
            {name: message[name] for name in kept if message.get(name) is not None}
        )
        ids = [call["id"] for call in message.get("tool_calls") or []]
        results = [{"role": "tool", "tool_call_id": id, "content": "a file"} for id in ids]
        self.messages += results or [{"role": "user", "content": "And?"}]


class Responses(Session):
    path = "/v1/responses"

    def begin(self, question: str) -> None:
        self.items: list[dict[str, Any]] = [{"role": "user", "content": question}]

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": tool["name"], "parameters": tool["input_schema"]}
            for tool in TOOLS
        ]
        sealed = {"include": ["reasoning.encrypted_content"]} if self._reasons else {}
        return {"model": MODEL, "input": self.items, "tools": tools, "store": False, **sealed}

    def take(self, answer: Any) -> None:
        for item in answer["output"]:
            if item["type"] == "reasoning":  # as Codex sends it
                item = {key: item.get(key) for key in ("id", "type", "encrypted_content")} | {
                    "summary": []
                }
            if self._reasons or item["type"] != "reasoning":
                self.items.append(item)
        ids = [item["call_id"] for item in answer["output"] if item["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": id, "output": "a file"} for id in ids
        ]
        self.items += results or [{"role": "user", "content": "And?"}]


def replace_all(stack: Stack) -> None:
    for stage in ("preprocessor", "parser", "worker"):
        old = stack.of(stage)
        for _ in old:
            stack.start(stage, **({} if stage == "worker" else ROOM))
        for child in old:
            child.terminate()
        for child in old:
            child.wait()
    stack.restore(COUNTS)


async def decoded(bus: BusTurns, session: Session) -> list[DecodedTurn]:
    return [await bus.ended(turn) for turn in session.turns]


def foreign(
    sessions: list[Session], session: Session, prompt: list[int], tokenizer: Tokenizer
) -> list[str]:
    """The turns of other sessions with thoughts in the prompt."""
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    return [
        turn for other in sessions if other is not session for turn in other.turns if turn in text
    ]


async def test_every_session_is_its_own_prefix(
    two_of_each: Stack, http: aiohttp.ClientSession, demo_model: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    sessions: list[Session] = [
        api(http, two_of_each, tenant, reasons=reasons, question=WORK)
        for api in (Messages, Chat, Responses)
        for tenant in TENANTS
        for reasons in (True, True, False)
    ]
    async with BusTurns(two_of_each.nats.url) as bus:
        for number in range(4):
            if number == 2:
                await asyncio.to_thread(replace_all, two_of_each)
            await asyncio.gather(*(session.turn() for session in sessions))
        for session in sessions:
            turns = await decoded(bus, session)
            for earlier, later in pairwise(turns):
                assert prefix_break(earlier, later) is None, (
                    session.path,
                    prefix_break(earlier, later),
                )
            for turn in turns:
                assert not foreign(sessions, session, turn.prompt, tokenizer)


async def test_without_evidence_nothing_is_restored(
    two_of_each: Stack, http: aiohttp.ClientSession, demo_model: Path
) -> None:
    """Look-alike sessions of clients that send back nothing but the same text."""
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    sessions: list[Session] = [
        api(http, two_of_each, "red", reasons=False, question=TALK)
        for api in (Messages, Chat)
        for _ in range(3)
    ]
    async with BusTurns(two_of_each.nats.url) as bus:
        await asyncio.gather(*(session.turn() for session in sessions))
        await asyncio.to_thread(replace_all, two_of_each)
        await asyncio.gather(*(session.turn() for session in sessions))
        for session in sessions:
            _, later = await decoded(bus, session)
            assert not foreign([*sessions, session], session, later.prompt, tokenizer)
            assert session.turns[0] not in tokenizer.decode(later.prompt), (
                "and not its own thought, by chance"
            )


async def test_a_seal_of_another_tenant_restores_nothing(
    two_of_each: Stack, http: aiohttp.ClientSession, demo_model: Path
) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model / "tokenizer.json"))
    mine = Messages(http, two_of_each, "red", reasons=True, question="\n" + WORK)
    await mine.turn()
    theirs = Messages(http, two_of_each, "blue", reasons=True, question="\n" + WORK)
    theirs.messages = [dict(message) for message in mine.messages]
    for block in theirs.messages[1]["content"]:
        if block["type"] == "thinking":
            block["thinking"] = ""
    async with BusTurns(two_of_each.nats.url) as bus:
        await asyncio.gather(mine.turn(), theirs.turn())
        for session, restored in ((mine, True), (theirs, False)):
            prompt = (await bus.ended(session.turns[-1])).prompt
            assert (f"I am {mine.turns[0]}." in tokenizer.decode(prompt)) is restored
