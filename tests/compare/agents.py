"""Plays agents of the three chat APIs: conversations that grow with each answer, in which fields,
parts and spellings vary at random.

Requests are written and answers read by `turnwire_tools.clients`. A conversation ends where those
refuse an answer.
"""

import json
from random import Random
from typing import Any

from schemas.conversation import Call, Conversation, Message, Result, Text, ToolSpec
from tests.compare.contents import Json, Tool, ask, chosen, options, words
from tests.compare.recording import MODEL, Exchange
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import IllFormed, SseParser

AGENTS = ("messages", "chat", "responses")
LIMITS: dict[str, Json] = {
    "messages": {"max_tokens": [1, 9, 40]},
    "chat": {"max_tokens": [1, 9, 40, 5000], "max_completion_tokens": [3, 400]},
    "responses": {"max_output_tokens": [1, 9, 40, 5000]},
}


class Agent:
    """One client's conversation."""

    def __init__(self, rng: Random, name: str, mark: str) -> None:
        self.rng, self.name = rng, name
        self.client = CLIENTS[name]  # type: ignore[index]
        self.previous: str | None = None
        """The stored response that the next request continues."""
        self._parts: list[Json] = []
        """Parts of the next user message before its text."""
        every: list[Tool] = options()["tools"]
        self.tools = rng.sample(every, rng.randint(1, len(every))) if rng.random() < 0.85 else []
        table = options(mark, self.tools[0][0] if self.tools else "none")
        self._table: Json = table[name]
        # With a salt of its own, a session's count of cached tokens does not depend on others.
        self._fixed: Json = {"cache_salt": mark}
        self._fixed |= chosen(rng, 0.05, table["any"]) | chosen(rng, 0.08, self._table["fixed"])
        if rng.random() < 0.4:  # the answer has the prompt's tokens: those of the ledger, too
            self._fixed["return_token_ids"] = True
        if name == "responses":
            self._fixed["store"] = rng.random() < 0.25
        if not self.tools:
            self._fixed.pop("tool_choice", None)
        self._more: list[Json] = []
        """Tools of the API's own kinds, which are not called."""
        if self.tools and rng.random() < 0.2:
            self._more = rng.sample(self._table["tools"], rng.randint(1, 2))
        system = [Text(f"{mark} {words(rng, 5, 60)}")]
        tools = [ToolSpec(*tool) for tool in self.tools]
        self._conversation = Conversation(MODEL, [], system=system, tools=tools)

    def ask(self, turns: int) -> None:
        """Adds a user message that scripts this number of turns of the model."""
        if self.rng.random() < 0.2:
            self._parts = [self.rng.choice(self._table["parts"])]
        self._add("user", [Text(ask(self.rng, self.tools, turns))])

    def body(self) -> Json:
        """The next request."""
        rng = self.rng
        body: Json = json.loads(self.client.request(self._conversation, stream=rng.random() < 0.6))
        if self._more:
            body["tools"] = [*body.get("tools", ()), *self._more]
        history = body["input" if self.name == "responses" else "messages"]
        if self._parts and isinstance(history[-1].get("content"), list):
            history[-1]["content"][:0] = self._parts
        self._parts = []
        if self.previous:
            body["previous_response_id"] = self.previous
        return {**body, **self._fixed, **chosen(rng, 0.1, LIMITS[self.name])}

    def take(self, answer: Exchange) -> bool:
        """Adds an answer and the results of its calls; returns whether there are any."""
        reader = self.client.reader()
        document = answer.document
        try:
            if document is not None:
                reader.document(document)
            elif answer.is_stream:
                for name, data in SseParser().feed(answer.answer.encode()):
                    document = (data or {}).get("response", document)
                    reader.event(name, data)
        except IllFormed:
            return False
        parts, response = reader.answer.parts, (document or {}).get("id")
        if parts and response and self._fixed.get("store"):
            self.previous = response
            self._conversation.messages.clear()
        elif parts:
            self._add("assistant", parts)
        calls = [part.call_id for part in parts if isinstance(part, Call)]
        if calls:
            self._add("tool", [Result(call, [Text(words(self.rng, 0, 60))]) for call in calls])
        return bool(calls)

    def _add(self, role: Any, parts: list[Any]) -> None:
        self._conversation.messages.append(Message(role, parts))
