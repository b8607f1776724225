"""Plays agents of the three chat APIs: conversations that grow with each answer, in which fields,
parts and spellings vary at random. Pure.

Requests are written and answers read by `turnwire_tools.clients`. A conversation ends where those
refuse an answer.
"""

import json
from random import Random
from typing import Any

from schemas.conversation import (
    Call,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    ToolSpec,
)
from tests.compare.checkout import MODEL
from tests.compare.contents import Json, Tool, arguments, ask, chosen, options, words
from tests.compare.exchange import Answer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import IllFormed, SseParser

AGENTS = ("messages", "chat", "responses")
CACHED: Json = {"cache_control": {"type": "ephemeral"}}
BILLING: Json = {
    "type": "text",
    "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=abc12;",
}
LIMITS: dict[str, Json] = {
    "messages": {"max_tokens": [1, 9, 40]},
    "chat": {"max_tokens": [1, 9, 40, 5000], "max_completion_tokens": [3, 400]},
    "responses": {"max_output_tokens": [1, 9, 40, 5000]},
}
SEALS = (None, "", "unsealed", "EqQBCgIYAhIkZm9y", "gAAAAABforeign")
ALSO = {
    "messages": ["/v1/messages/count_tokens"],
    "responses": ["/v1/responses/input_tokens", "/v1/responses/compact"],
    "chat": ["/tokenize"],
}
"""Further endpoints that take the bodies of an API."""
GENERATES = ("cache_salt", "store", "stream", *(name for one in LIMITS.values() for name in one))
"""Fields that those endpoints do not have."""


class Agent:
    """One client's conversation."""

    def __init__(self, rng: Random, name: str, mark: str) -> None:
        self.rng, self.name = rng, name
        self.client = CLIENTS[name]  # type: ignore[index]
        self.path = self.client.path
        self.previous: str | None = None
        """The stored response that the next request continues."""
        self._parts: list[Json] = []
        """Parts of the next user message before its text."""
        every: list[Tool] = options()["tools"]
        self.tools = rng.sample(every, rng.randint(1, len(every))) if rng.random() < 0.85 else []
        table = options(mark, self.tools[0][0] if self.tools else "none")
        self._table: Json = table[name]
        # With a salt of its own, a session's count of cached tokens does not depend on other
        # sessions.
        self._fixed = {
            "cache_salt": mark,
            **chosen(rng, 0.05, table["any"]),
            **chosen(rng, 0.08, self._table["fixed"]),
        }
        if (
            rng.random() < 0.4
        ):  # the answer has the prompt's tokens, and so has a next turn the ledger's
            self._fixed["return_token_ids"] = True
        if name == "responses":
            self._fixed["store"] = rng.random() < 0.25
        if not self.tools and rng.random() < 0.98:
            self._fixed.pop("tool_choice", None)
        self._more: list[Json] = []
        if self.tools and rng.random() < 0.2:
            self._more = rng.sample(self._table["tools"], rng.randint(1, 2))
        more_names = json.dumps(self._more)
        self._called = self.tools + [
            tool for tool in table["more_calls"] if f'"{tool[0].split("__")[0]}"' in more_names
        ]
        self._conversation = Conversation(
            MODEL,
            [],
            system=[Text(f"{mark} {words(rng, 5, 60)}")],
            tools=[ToolSpec(*tool) for tool in self.tools],
        )

    def ask(self, turns: int) -> None:
        """Adds a user message that scripts this number of turns of the model."""
        if self.rng.random() < 0.06:
            self._add("system", [Text(words(self.rng, 1, 12))])
        if self.rng.random() < 0.2:
            self._parts = [self.rng.choice(self._table["parts"])]
        self._add("user", [Text(ask(self.rng, self._called, turns))])

    def body(self) -> Json:
        """The next request."""
        rng = self.rng
        body: Json = json.loads(self.client.request(self._conversation, stream=rng.random() < 0.6))
        if self._more:
            body["tools"] = [*body.get("tools", ()), *self._more]
        history = body["input" if self.name == "responses" else "messages"]
        for message in history:
            self._respell(message)
        if self._parts and isinstance(history[-1].get("content"), list):
            history[-1]["content"][:0] = self._parts
        self._parts = []
        if isinstance(system := body.get("system"), list) and rng.random() < 0.6:
            body["system"] = [*rng.choice([[], [BILLING]]), system[0] | CACHED]
        if self.previous:
            body["previous_response_id"] = self.previous
        return {**body, **self._fixed, **chosen(rng, 0.1, LIMITS[self.name])}

    def _respell(self, message: Json) -> None:
        """A text alone is a string or a list of parts."""
        content = message.get("content")
        if isinstance(content, list) and len(content) == 1 and self.rng.random() < 0.4:
            (part,) = content
            if part.keys() == {"type", "text"} and part["type"] in ("text", "input_text"):
                message["content"] = part["text"]

    def take(self, answer: Answer) -> bool:
        """Adds an answer and the results of its calls; returns whether there are any."""
        reader = self.client.reader()
        try:
            if answer.is_stream:
                for name, data in SseParser().feed(answer.body):
                    reader.event(name, data)
            elif answer.document is not None:
                reader.document(answer.document)
        except IllFormed:
            return False
        return self._continue(reader.answer.parts, _response_id(answer))

    def _continue(self, parts: list[Part], response: str | None) -> bool:
        if parts and response and self._fixed.get("store"):
            self.previous = response
            self._conversation.messages.clear()
        elif parts:
            keeps = self.rng.random() > 0.1  # some clients drop thinking
            kept = [part for part in parts if keeps or not isinstance(part, Reasoning)]
            self._add("assistant", kept)
        calls = [part for part in parts if isinstance(part, Call)]
        if calls:
            self._add("tool", [self._result(call) for call in calls])
        return bool(calls)

    def _result(self, call: Call) -> Result:
        failed = self.name == "messages" and self.rng.random() < 0.05
        return Result(call.call_id, [Text(words(self.rng, 0, 60))], is_error=failed)

    def _add(self, role: Any, parts: list[Any]) -> None:
        self._conversation.messages.append(Message(role, parts))

    def invent(self, number: int) -> None:
        """Adds an answer that another server gave, and results."""
        rng = self.rng
        parts: list[Part] = [Text(words(rng, 1, 20))]
        if rng.random() < 0.5:
            parts.insert(0, Reasoning(words(rng, 1, 20), rng.choice(SEALS)))
        if rng.random() < 0.6:
            name, _, schema = rng.choice(self.tools) if self.tools else ("gone", "", {})
            spelled = json.dumps(
                arguments(rng, schema), separators=rng.choice([(",", ":"), (", ", ": ")])
            )
            parts.append(Call(f"toolu_{number}x{rng.randint(0, 9)}", name, spelled))
        self._continue(parts, None)


def _response_id(answer: Answer) -> str | None:
    """The id of the response that the server stored."""
    document = answer.document if isinstance(answer.document, dict) else {}
    for event in answer.events:
        document = event.get("response", document)
    return document.get("id")


def freely(rng: Random, mark: str) -> tuple[str, Json]:
    """A request with a whole history that no server answered: its path and body."""
    agent = Agent(rng, rng.choice(AGENTS), mark)
    for number in range(rng.randint(1, 5)):
        agent.ask(1)
        agent.invent(number)
    agent.ask(1)
    body = agent.body()
    if rng.random() < 0.6:
        return agent.path, body
    kept = {k: v for k, v in body.items() if k not in GENERATES or rng.random() < 0.05}
    return rng.choice(ALSO[agent.name]), kept
