"""A bus with messages made by hand."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, json

from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Message,
    Part,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from schemas.events import Finish, FinishReason, Prepared, TurnEvent, Usage
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFrame
from schemas.requests import GenerateRequest, ParseContext, TurnRequest
from schemas.token_ids import pack_ids
from tests.kit import events
from tests.kit.conversations import assistant as answer
from tests.kit.conversations import user
from turnwire_tools.inspector.fold import Fold
from turnwire_tools.inspector.turns import InspectedTurn

__all__ = ["TOOLS", "Bus", "answer", "asked", "block_events", "result", "user"]

TOOLS = [ToolSpec("Bash", "Runs a command."), ToolSpec("Read", "Reads a file.")]


class Bus:
    """Sends turns to a fold. A second passes with each message."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.now = 1000.0
        self.count = 0

    def send(self, message: Any, receiver: str = "") -> None:
        self.now += 1
        self.fold.take(message, self.now, receiver)

    def events(self, turn: str, *sent: TurnEvent, attempt: int = 1, tokens: int = 0) -> None:
        self.send(EventFrame("parser-1", 1, [EventEntry(turn, attempt, list(sent), tokens)]))

    def begin(
        self,
        conversation: Conversation,
        prompt: Sequence[int],
        *,
        worker: str = "worker-1",
        **more: Any,
    ) -> str:
        """Everything up to the first token."""
        self.count += 1
        turn = f"turn{self.count:04}"
        context = ParseContext(conversation.model, "qwen3_coder", "frontend-1", len(prompt), 99)
        self.send(TurnRequest(turn, "frontend-1", conversation))
        names = (turn, 1, conversation.model, pack_ids(prompt), "parser-1", "frontend-1")
        more = {"recall": "first", **more}
        encoded = Raw(json.encode(context))
        self.send(GenerateRequest(*names, Sampling(), [], encoded, **more), worker)
        self.events(turn, Prepared(len(prompt), 99, worker, "parser-1"))
        return turn

    def write(
        self,
        turn: str,
        ids: Sequence[int],
        *parts: Part,
        cached: int | None = None,
        expected: int = 0,
    ) -> None:
        """The answer, in one frame of tokens and a frame for each block."""
        entry = TokenEntry(turn, 1, 0, list(ids), cached=cached, expected_cached=expected)
        self.send(TokenFrame("worker-1", 2, [entry]))
        for block, part in enumerate(parts):
            self.events(turn, *block_events(block, part))

    def finish(
        self, turn: str, blocks: int, *, cached: int = 0, output: int = 0, reasoning: int = 0
    ) -> None:
        prompt = self.fold.turns[turn].prompt
        usage = Usage(prompt=prompt, cached=cached, output=output, reasoning=reasoning)
        self.events(turn, Finish(FinishReason.STOP, blocks, usage))

    def turn(
        self,
        conversation: Conversation,
        prompt: Sequence[int],
        output: Sequence[int],
        *parts: Part,
        cached: int = 0,
        reasoning: int = 0,
        **more: Any,
    ) -> InspectedTurn:
        """A whole turn."""
        turn = self.begin(conversation, prompt, **more)
        self.write(turn, output, *parts, cached=cached)
        count = len(output) + 1
        self.finish(turn, len(parts), cached=cached, output=count, reasoning=reasoning)
        return self.fold.turns[turn]


def block_events(block: int, part: Part) -> list[TurnEvent]:
    if isinstance(part, Reasoning):
        return events.reasoning(block, part.text or "", seal=None, pieces=1)
    if isinstance(part, Text):
        return events.text(block, part.text, pieces=1)
    assert isinstance(part, Call)
    return events.call(block, part.name, part.arguments, call_id=part.call_id, pieces=1)


def asked(
    *turns: Message, session: str | None = "s", tools: list[ToolSpec] = TOOLS, **more: Any
) -> Conversation:
    """A request."""
    client = Client(session, "claude-cli/2.1 (x)")
    more = {"system": [Text("You are an agent.")], "client": client, **more}
    return Conversation("m", list(turns), tools=tools, **more)


def result(call: Call, text: str) -> Message:
    return Message("tool", [Result(call.call_id, [Text(text)])])
