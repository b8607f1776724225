"""An answer as a client receives it: blocks in order, whatever the API. Pure."""

import json
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct, field

from schemas.conversation import Call, Part, Reasoning, Text, rendered_name
from schemas.events import BlockStart, Delta, TurnEvent

Api: TypeAlias = Literal["messages", "responses", "chat"]
APIS: tuple[Api, ...] = get_args(Api)
Kind: TypeAlias = Literal["reasoning", "text", "call", "cut call"]
Story: TypeAlias = list[tuple[Kind, str]]
"""The blocks of an answer, in order. The text of a call is its name, a space and its arguments as
JSON in Python's spelling. `cut call`: a call with arguments that are not a JSON object, since it
was cut off."""
End: TypeAlias = Literal["stop", "calls", "length", "error", "refused"]
BlockKind: TypeAlias = Literal["reasoning", "text", "call"]


class AnswerBlock(Struct):
    """One block."""

    kind: BlockKind
    text: str = ""
    """The text, or the arguments of a call as they arrived."""
    name: str = ""
    call_id: str = ""
    seal: str | None = None
    custom: bool = False
    """A freeform call: `text` is its raw input."""
    namespace: str | None = None
    complete: bool = False
    """The client has received the end of the block and may act on it."""

    @property
    def arguments(self) -> str:
        """The arguments of a call as JSON text."""
        if self.custom:
            return json.dumps({"input": self.text})
        return self.text or "{}"

    @property
    def full_name(self) -> str:
        """The name of a call as the model wrote it."""
        return rendered_name(self.name, self.namespace)

    def as_story(self) -> tuple[Kind, str]:
        """The kind and text of the block in a story."""
        if self.kind != "call":
            return self.kind, self.text
        try:
            arguments = json.loads(self.arguments)
        except ValueError:
            return "cut call", f"{self.full_name} {self.text}"
        kind: Kind = "call" if isinstance(arguments, dict) else "cut call"
        return kind, f"{self.full_name} {json.dumps(arguments, ensure_ascii=False)}"

    def as_part(self) -> Part:
        """The block as a part of the conversation."""
        if self.kind == "reasoning":
            return Reasoning(self.text or None, self.seal)
        if self.kind == "text":
            return Text(self.text)
        kind: Literal["custom", "function"] = "custom" if self.custom else "function"
        return Call(self.call_id, self.name, self.arguments, kind, self.namespace)


class ClientAnswer(Struct):
    """An answer so far."""

    blocks: list[AnswerBlock] = field(default_factory=list)
    dispatched: list[str] = field(default_factory=list)
    """The texts of the calls in dispatch events."""
    end: End | None = None
    problem: str | None = None
    """The message of an error."""
    ends: int = 0
    """Terminal events: good ones and errors."""
    usage: tuple[int, int] | None = None
    """Tokens of prompt and output."""

    @property
    def story(self) -> Story:
        """All blocks, in order."""
        return [block.as_story() for block in self.blocks]

    @property
    def calls(self) -> list[str]:
        """The texts of the calls that a client may run."""
        return [text for kind, text in self.story if kind == "call"]

    @property
    def parts(self) -> list[Part]:
        """What the client sends back as the assistant's turn."""
        return [block.as_part() for block in self.blocks if block.as_story()[0] != "cut call"]

    def add(self, block: AnswerBlock) -> AnswerBlock:
        """Adds a block and returns it."""
        self.blocks.append(block)
        return block

    def fail(self, message: str) -> None:
        """Adds an error event."""
        self.end = "error"
        self.problem = message
        self.ends += 1

    def dispatch(self, call: AnswerBlock) -> None:
        """Adds the call of a dispatch event."""
        self.dispatched.append(call.as_story()[1])


def story_of(events: Iterable[TurnEvent]) -> Story:
    """The blocks of a turn's events."""
    blocks: list[AnswerBlock] = []
    for event in events:
        if isinstance(event, BlockStart):
            kind = event.kind if event.kind in ("reasoning", "text") else "call"
            blocks.append(AnswerBlock(kind, name=event.name or ""))
        elif isinstance(event, Delta):
            blocks[-1].text += event.text
    return [block.as_story() for block in blocks]
