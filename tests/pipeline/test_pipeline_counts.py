"""Every path that counts a prompt counts what the turn of the same request uses."""

import json
from typing import Any, TypeAlias

import pytest
from msgspec import structs

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from tests.kit.messages_client import TOOLS, Client, call, say
from tests.kit.stack import MODEL
from turnwire_tools.clients.answer import APIS, Api
from turnwire_tools.clients.apis import CLIENTS

Json: TypeAlias = dict[str, Any]
WORK = say(
    "I look [[turn]].\n</think>\n\nLooking.\n" + call("ls  -l") + call("date"),
    "So [[turn]].\n</think>\n\nDone.",
)
"""The model's turns: thought, text and two calls; then thought and text."""
TOOL = ToolSpec("run_shell", "Runs a command.", TOOLS[0]["input_schema"], strict=False)  # type: ignore[arg-type]
COUNTS = {
    "messages": ("/v1/messages/count_tokens", "/v1/tokenize", "/tokenize"),
    "chat": ("/v1/tokenize", "/tokenize"),
    "responses": ("/v1/responses/input_tokens",),
}
"""The paths that count a request."""


@pytest.fixture
async def client(client: Client) -> Client:
    client.http.headers["x-turnwire-reasoning-details"] = "1"
    return client


async def post(client: Client, path: str, body: Json) -> Json:
    status, document = await client.post(path, body)
    assert status == 200, document
    return document


class Session:
    """A client of one API. `sealed`: it sends the seals of reasoning without the text, where the
    API allows that."""

    def __init__(self, client: Client, api: Api, question: str, *, sealed: bool) -> None:
        image = Media("image", "image/png", size_bytes=200)
        self.messages = [Message("user", [Text(question + WORK), image])]
        self._client, self._api, self._sealed = client, api, sealed

    @property
    def body(self) -> Json:
        conversation = Conversation(
            MODEL, self.messages, tools=[TOOL], sampling=Sampling(max_tokens=1000)
        )
        found: Json = json.loads(CLIENTS[self._api].request(conversation, stream=False))
        found.pop("store", None)  # by default, responses are stored
        return found

    async def counted(self, body: Json) -> int:
        """The count of a request, which all paths agree on."""
        counts = set()
        for path in COUNTS[self._api]:
            document = await post(self._client, path, body)
            counts.add(int(document.get("input_tokens") or document["count"]))
        (count,) = counts
        return count

    async def turn(self, **more: Any) -> tuple[int, Json]:
        """Sends a request; returns the tokens of its prompt and the answer."""
        body = self.body | more
        document = await post(self._client, CLIENTS[self._api].path, body)
        reader = CLIENTS[self._api].reader()
        reader.document(document)
        assert reader.answer.usage is not None
        used = reader.answer.usage[0]
        assert await self.counted(body) == used
        if not more:
            self._go_on(reader.answer.parts)
        return used, document

    def _go_on(self, parts: list[Part]) -> None:
        hidden = None if self._api == "responses" else ""
        sealed = self._sealed and self._api != "chat"
        sent = [
            structs.replace(part, text=hidden) if sealed and isinstance(part, Reasoning) else part
            for part in parts
        ]
        results: list[Part] = [
            Result(part.call_id, [Text("A file with a line. " * 20)])
            for part in parts
            if isinstance(part, Call)
        ]
        self.messages += [
            Message("assistant", sent),
            Message("tool", results) if results else Message("user", [Text("And?")]),
        ]


@pytest.mark.parametrize("api", APIS)
async def test_counts_equal_turns(client: Client, api: Api) -> None:
    for sealed in (False, True):
        session = Session(client, api, f"{sealed}", sealed=sealed)
        sizes = [(await session.turn())[0] for _ in range(3)]
        assert sizes[0] < sizes[1] < sizes[2]


async def test_count_of_a_stored_session_equals_that_of_its_history(client: Client) -> None:
    session = Session(client, "responses", "stored", sealed=True)
    _, first = await session.turn()
    size = await session.counted(session.body)
    results = [one for one in session.body["input"] if one.get("type") == "function_call_output"]
    stored = session.body | {"input": results, "previous_response_id": first["id"]}
    assert await session.counted(stored) == size
    for threshold, kind in ((size + 1, "reasoning"), (size, "compaction")):
        managed = [{"type": "compaction", "compact_threshold": threshold}]
        answer = await post(client, "/v1/responses", stored | {"context_management": managed})
        assert answer["output"][0]["type"] == kind


async def test_context_edits_and_compaction_of_messages_see_seals(client: Client) -> None:
    session = Session(client, "messages", "edited", sealed=True)
    await session.turn()
    size = await session.counted(session.body)
    sizes = []
    for trigger, kind in ((size, "thinking"), (size - 1, "compaction")):
        when = {"trigger": {"type": "input_tokens", "value": trigger}}
        keep = {"keep": {"type": "tool_uses", "value": 0}}
        edit = {"type": "clear_tool_uses_20250919", **when, **keep}
        used, _ = await session.turn(context_management={"edits": [edit]})
        sizes.append(used)
        compact = {"edits": [{"type": "compact_20260112", **when}]}
        answer = await post(client, "/v1/messages", session.body | {"context_management": compact})
        assert answer["content"][0]["type"] == kind
    assert sizes[0] == size
    assert sizes[1] != size
