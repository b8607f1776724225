"""One turn being parsed: its input, its blocks, its tools, and the public machine around them."""

from collections.abc import Callable
from re import compile
from typing import Final, NamedTuple, TypeAlias

from schemas.events import BlockEvent, BlockKind, Delta, FinishReason
from services.parser.coercion import Tools
from services.parser.shapes import BLANKS
from services.parser.tape import Blocks, Reading, Tape, escaped

_BREAK: Final = compile(r"[\r\n]").search


class Opener(NamedTuple):
    """The marker that opened a call."""

    text: str = ""
    """All of it, as it was written."""
    head: str = ""
    """The literal that such markers begin with."""
    name: str | None = None
    call_id: str | None = None


class Turn:
    """What the readers of one turn share."""

    __slots__ = ("_broken", "_held", "_resumed", "blocks", "calls", "reasoning", "tape", "tools")

    def __init__(
        self, tools: Tools, reasoning: bool, calls: bool, tape: Tape | None = None, blocks: Blocks | None = None
    ) -> None:
        self.tape = tape or Tape()
        self.blocks = blocks or Blocks()
        self.tools = tools
        self.calls = calls
        """Whether call markers mean anything."""
        self.reasoning = reasoning
        """Whether the open or the next block is reasoning."""
        self._held: list[str] = []
        self._broken = False
        self._resumed: BlockKind | None = None
        """The kind of the block that the prompt has begun, while nothing of it was generated."""

    def prose(self, text: str) -> None:
        """Adds text that the tape has just passed to the reasoning or text block, opening it at the first character
        that is not blank.

        A line break, and blanks behind it, wait until more comes: they may turn out to stand before a marker or the
        end. Blanks before it are out at once: many tokenizers write a blank of its own before each number. Blank lines
        at the front of a block are framing.
        """
        held, blocks = self._held, self.blocks
        solid, wait = _parted(text)
        kind: BlockKind = "reasoning" if self.reasoning else "text"
        if not solid or not (blocks.kind == kind or solid.strip(BLANKS)) or (held and not solid.strip(BLANKS)):
            self.hold(text)
            return
        self._broken = False
        if blocks.kind != kind:
            solid = "".join(held) + solid
            held.clear()
            if self._resumed != kind:
                solid = solid[solid.rfind("\n", 0, len(solid) - len(solid.lstrip(BLANKS))) + 1 :]
            self._resumed = None
            tape = self.tape
            blocks.open(kind, behind=len(tape.text) - tape.position + len(wait) + len(solid))
        elif held:
            for piece in held:
                blocks.say(piece)
            held.clear()
        blocks.say(solid)
        self.hold(wait)

    def hold(self, text: str) -> None:
        """Lets `text` wait like trailing blanks: a stop token that was handed over as text, say."""
        if text:
            self._held.append(text)
            self._broken = self._broken or "\n" in text

    @property
    def holding(self) -> bool:
        """Something waits for more prose to come."""
        return bool(self._held)

    @property
    def open(self) -> bool:
        """The block of the present kind is open."""
        return self.blocks.kind == ("reasoning" if self.reasoning else "text")

    @property
    def begun(self) -> bool:
        """It is open, or the prompt has begun it."""
        return (self.blocks.kind or self._resumed) == ("reasoning" if self.reasoning else "text")

    @property
    def line_start(self) -> bool:
        """What comes next stands at the start of a line or block."""
        return self._broken or not self.begun

    def end_prose(self) -> None:
        """Ends the open reasoning or text; what waited is dropped."""
        self._held.clear()
        self._broken = False
        self._resumed = None
        if self.blocks.kind != "tool_use":
            self.blocks.close()

    def resume(self) -> None:
        """Takes what was parsed so far as said by the prompt: only an open call remains of it."""
        self._resumed = self.blocks.forget()
        self._held.clear()


def _parted(text: str) -> tuple[str, str]:
    """Text up to the line break after which only blanks come, and the rest."""
    bare = text.rstrip(BLANKS)
    found = _BREAK(text, len(bare))
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])


Program: TypeAlias = Callable[[Turn], Reading[None]]


class TurnParser:
    """Splits one generation into reasoning, text and tool_use blocks, in order, while it comes in.

    The blocks do not depend on how the text is cut into `feed`s; what was returned is never taken back; it never raises
    on what a model wrote. Use: `feed` any number of times, then `finish` once.
    """

    __slots__ = ("_blocks", "_program", "_turn", "tape")

    def __init__(self, program: Program, turn: Turn, prefix: str = "") -> None:
        self._turn = turn
        self.tape = turn.tape
        """Its `trigger` tells which text need not be fed; see `passed`."""
        self._blocks = turn.blocks
        self._program = program(turn)
        next(self._program, None)
        if prefix:
            self._read(prefix)
            turn.resume()
        self.tape.trigger = None  # what is written so far leaves with the first feed

    @property
    def in_reasoning(self) -> bool:
        """The open block, or the next one, is reasoning."""
        return self._turn.reasoning and self._blocks.kind != "tool_use"

    def feed(self, text: str) -> list[BlockEvent]:
        """Takes the next piece of the generation and returns what became certain."""
        tape = self.tape
        trigger = tape.trigger
        if trigger is not None and text and trigger(text) is None:
            if tape.escape:
                text = escaped(text)
            blocks = self._blocks
            length = blocks.length
            blocks.length = length + len(text)
            return [Delta(blocks.index, length, text)]
        if not text:
            return []
        self._read(text)
        return self._blocks.drain()

    def passed(self, length: int) -> None:
        """So many characters went into the open block past this parser: the tape's `trigger` had found them to be
        plain. To be told before the next `feed` or `finish`."""
        self._blocks.length += length

    def finish(self, reason: FinishReason) -> list[BlockEvent]:
        """Ends the generation: what was held back is decided, every block is closed.

        With `FinishReason.STOP` a call whose body is whole counts as complete even if its closing marker is missing;
        with any other reason it does not.
        """
        self.tape.final, self.tape.reason = True, reason
        self._read("")
        turn = self._turn
        turn.end_prose()
        return self._blocks.drain()

    def _read(self, text: str) -> None:
        self.tape.extend(text)
        next(self._program, None)
