"""What a client has seen of an answer: blocks in order, whichever API they came over. Pure."""

import json
from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct, field

from schemas.conversation import Call, Part, Reasoning, Text
from schemas.events import BlockStart, Delta, TurnEvent
from services.cli.replay.script import End, Kind, Story

BlockKind: TypeAlias = Literal["reasoning", "text", "call"]


class Block(Struct):
    """One block."""

    kind: BlockKind
    text: str = ""
    """A call's arguments as they came."""
    name: str = ""
    call_id: str = ""
    seal: str | None = None
    custom: bool = False
    """A freeform call: `text` is its raw input."""
    namespace: str | None = None
    complete: bool = False
    """The API has said that nothing more of it comes, so that a client may act on it."""

    @property
    def arguments(self) -> str:
        """A call's arguments as JSON text."""
        return json.dumps({"input": self.text}) if self.custom else self.text or "{}"

    @property
    def told(self) -> str:
        """The name that the model wrote."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name

    def shown(self) -> tuple[str, str]:
        """As a story has it."""
        if self.kind != "call":
            return self.kind, self.text
        kind: Kind = "call"
        try:
            arguments = json.loads(self.arguments)
            spelled = json.dumps(arguments, ensure_ascii=False)
        except ValueError:
            return "cut call", f"{self.told} {self.text}"
        if not isinstance(arguments, dict):
            kind = "cut call"
        return kind, f"{self.told} {spelled}"


class Answer(Struct):
    """An answer so far."""

    blocks: list[Block] = field(default_factory=list)
    dispatched: list[str] = field(default_factory=list)
    """Calls that were told of in an event of their own, as a story's text."""
    end: End | None = None
    problem: str | None = None
    """The message of an error."""
    usage: tuple[int, int] | None = None
    """Tokens of prompt and output."""
    after_end: list[str] = field(default_factory=list)
    """What came behind the reason to stop, but for the token counts."""
    marks: list[tuple[str, float]] = field(default_factory=list)
    """When each block was complete, in the clock of whoever reads; kept by the player."""

    @property
    def story(self) -> Story:
        """All blocks, in order."""
        return [block.shown() for block in self.blocks]

    @property
    def calls(self) -> list[str]:
        """Calls that a client may run."""
        return [text for kind, text in self.story if kind == "call"]

    def add(self, block: Block) -> Block:
        """A block that begins."""
        self.blocks.append(block)
        return block

    def dispatch(self, name: str, arguments: str) -> None:
        """A call that was told of as a whole."""
        self.dispatched.append(Block("call", arguments, name).shown()[1])

    def parts(self) -> list[Part]:
        """What the client sends back: its own record of the assistant's turn."""
        return [part_of(block) for block in self.blocks if block.shown()[0] != "cut call"]


def part_of(block: Block) -> Part:
    """A block as a part of the conversation."""
    if block.kind == "reasoning":
        return Reasoning(block.text or None, block.seal)
    if block.kind == "text":
        return Text(block.text)
    kind: Literal["function", "custom"] = "custom" if block.custom else "function"
    return Call(block.call_id, block.name, block.arguments, kind, block.namespace)


def story_of(events: Iterable[TurnEvent]) -> Story:
    """What a turn's events say."""
    blocks: list[Block] = []
    for event in events:
        if isinstance(event, BlockStart):
            blocks.append(Block("call" if event.kind == "tool_use" else event.kind, name=event.name or ""))
        elif isinstance(event, Delta):
            blocks[-1].text += event.text
    return [block.shown() for block in blocks]


class Reader(Protocol):
    """Reads answers of one API."""

    answer: Answer

    def event(self, name: str, data: Any) -> None:
        """The next event of a stream; `name` as its `event:` line has it, `data` decoded, None for `[DONE]`."""
        ...

    def document(self, data: Any) -> None:
        """An answer in one piece."""
        ...


class Events:
    """Splits a stream into its events, whatever the chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[tuple[str, Any]]:
        """The events that this chunk completes: name and decoded data. Comments are left out."""
        *whole, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        found = []
        for frame in whole:
            name, data = "", []
            for line in frame.decode().split("\n"):
                key, _, value = line.partition(":")
                if key == "event":
                    name = value.strip()
                elif key == "data":
                    data.append(value.removeprefix(" "))
            if data:
                text = "\n".join(data)
                found.append((name, None if text == "[DONE]" else json.loads(text)))
        return found
