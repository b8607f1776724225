"""A client's session over one of the APIs, built and read as agents do."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from tests.kit.messages_client import TOOLS, Client
from tests.kit.stack import MODEL
from turnwire_tools.clients.answer import Api
from turnwire_tools.clients.apis import CLIENTS

SHELL: Any = TOOLS[0]
TOOL = ToolSpec(SHELL["name"], SHELL["description"], SHELL["input_schema"], strict=False)


class Session:
    """One client's session, in which each call gets a result."""

    def __init__(
        self,
        client: Client,
        api: Api,
        question: str,
        *,
        result: str = "a file",
        reasons: bool,
        model: str = MODEL,
        tools: Sequence[ToolSpec] = (TOOL,),
    ) -> None:
        """`reasons`: it sends reasoning back, without its text where it may be sealed only."""
        self.api = api
        self.model = model
        self.turns: list[str] = []
        self.messages = [Message("user", [Text(question)])]
        self.tools = [*tools]
        self._client, self._result, self._reasons = client, result, reasons

    def use(self, client: Client) -> None:
        """Sends the next requests to another frontend."""
        self._client = client

    @property
    def body(self) -> dict[str, Any]:
        """The next request."""
        sampling = Sampling(max_tokens=1000)
        conversation = Conversation(self.model, self.messages, tools=self.tools, sampling=sampling)
        found: dict[str, Any] = json.loads(CLIENTS[self.api].request(conversation, stream=False))
        found.pop("store", None)  # by default, responses are stored
        return found

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, document = await self._client.post(path, body)
        assert status == 200, document
        return document

    async def turn(self) -> dict[str, Any]:
        """Sends the next request; returns the answer."""
        document = await self.post(CLIENTS[self.api].path, self.body)
        self.turns.append(document["id"].rpartition("_")[2].rpartition("-")[2])
        reader = CLIENTS[self.api].reader()
        reader.document(document)
        parts = reader.answer.parts
        self.messages.append(Message("assistant", [*self._sent_back(parts)]))
        calls = [part for part in parts if isinstance(part, Call)]
        results: list[Part] = [Result(call.call_id, [Text(self._result)]) for call in calls]
        self.messages.append(Message("tool", results) if calls else Message("user", [Text("And?")]))
        return document

    def _sent_back(self, parts: list[Part]) -> Iterator[Part]:
        for part in parts:
            if not isinstance(part, Reasoning):
                yield part
            elif self._reasons and self.api == "responses":
                yield structs.replace(part, text=None)  # as Codex sends it
            elif self._reasons:
                yield part


def used(api: Api, document: dict[str, Any]) -> int:
    """The prompt tokens of an answer."""
    reader = CLIENTS[api].reader()
    reader.document(document)
    assert reader.answer.usage is not None
    return reader.answer.usage[0]


def without_thoughts(messages: list[Message]) -> list[Message]:
    """The messages of a client that keeps no text of reasoning, only the seals."""
    found = []
    for message in messages:
        parts = [
            structs.replace(part, text="") if isinstance(part, Reasoning) else part
            for part in message.parts
        ]
        found.append(structs.replace(message, parts=parts))
    return found
