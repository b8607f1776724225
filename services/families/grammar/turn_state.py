"""The state of one turn that is being parsed, which the readers of the turn share."""

from collections.abc import Mapping
from re import Pattern, compile
from typing import Final, NamedTuple

from schemas.events import BlockKind
from services.families.grammar.code import Code
from services.families.grammar.mentions import BEFORE_MENTION
from services.families.grammar.scanner import BlockWriter, Scanner
from services.families.grammar.shapes import BLANKS
from services.families.tool_types import Tools

_BREAK: Final = compile(r"[\r\n]").search
_KINDS: Final[Mapping[bool, BlockKind]] = {True: "reasoning", False: "text"}
"""The kind of prose: whether it is reasoning."""


class CallOpener(NamedTuple):
    """The marker that opened a call: its whole text, and the literal text that such markers begin
    with."""

    text: str = ""
    head: str = ""
    name: str | None = None
    call_id: str | None = None


class CallReading(NamedTuple):
    """The result of reading a call: a call, or text that only began like one."""

    is_call: bool
    text: str = ""
    """The passed text, if it is not a call and does not stand in a block yet."""


IS_CALL: Final = CallReading(True)


def not_a_call(text: str) -> CallReading:
    """The result of a reader that has passed `text`, which is not a call."""
    return CallReading(False, text)


class ProseState(NamedTuple):
    """The state of a turn's prose at a place to which the turn may go back."""

    buffered: tuple[str, ...]
    broken: bool
    resumed: BlockKind | None
    code: Code
    reasoning: bool


class TurnState:
    """The state that the readers of a turn share: input, output, tools, and whether the block is
    reasoning."""

    __slots__ = (
        "_broken",
        "_buffered",
        "_prompt",
        "_resumed",
        "after_thought",
        "blocks",
        "calls",
        "code",
        "damaged",
        "in_call",
        "quotes",
        "reasoning",
        "scanner",
        "tools",
    )

    def __init__(
        self,
        tools: Tools,
        reasoning: bool,
        calls: bool,
        scanner: Scanner | None = None,
        blocks: BlockWriter | None = None,
    ) -> None:
        self.scanner = scanner or Scanner()
        self.blocks = blocks or BlockWriter()
        self.tools = tools
        self.calls = calls
        """Whether call markers count; otherwise they are text."""
        self.reasoning = reasoning
        """Whether the open or the next block is reasoning."""
        self.after_thought: int | None = None
        """The input after the last thought's own closer when that was read, in characters; None:
        another marker ended the thought."""
        self.in_call = False
        """A call is being read after its opener, or the header of a message."""
        self.quotes = False
        """The open block mentions a marker without what must follow it, so a closer may be text,
        too."""
        self.damaged = False
        """The call before the open block, or in it, could not be read."""
        self.code = Code()
        """The code in the open block."""
        self._buffered: list[str] = []
        """Text that the open block gets if more text follows."""
        self._broken = False
        """The buffered text has a line break."""
        self._resumed: BlockKind | None = None
        """The kind of the block that the prompt started, until text is generated for it."""
        self._prompt = ""
        """The end of the prompt, if it may turn out to be text that the model did not write."""

    def add_prose(self, text: str) -> None:
        """Adds text that the scanner has just passed to the reasoning or text block. The first
        character that is not blank opens it.

        A line break, and blanks after it, are buffered until more text arrives: they may precede a
        marker or the end. Other blanks are written at once, because many tokenizers have a separate
        token for the blank before a number. Blank lines at the start of a block are framing.
        """
        if self._prompt:
            text = self._without_prompt(text)
        self.code.add(text)
        solid, wait = _parted(text)
        if not solid or not (solid.strip(BLANKS) or self.flowing):
            self.buffer(text)
            return
        self._broken = False
        if self._buffered:
            solid = "".join([*self._buffered, solid])
            self._buffered.clear()
        if self.blocks.kind != _KINDS[self.reasoning]:
            solid = self._open_prose(solid, waiting=len(wait))
        self.blocks.write(solid)
        if wait:
            self.buffer(wait)

    def _without_prompt(self, text: str) -> str:
        """A passed text without what it has of the prompt."""
        prompt = self._prompt
        if not prompt or not text:
            return text
        if prompt.startswith(text):
            self._prompt = prompt[len(text) :]
            return ""
        self._prompt = ""
        ends = (prompt[start:] for start in range(len(prompt)))
        return text.removeprefix(next(filter(text.startswith, ends), ""))

    def _open_prose(self, text: str, *, waiting: int) -> str:
        """Opens the block that begins with `text`, which the scanner has just passed with `waiting`
        more characters; returns the text without blank lines before it."""
        kind = _KINDS[self.reasoning]
        if self._resumed != kind:
            blanks = len(text) - len(text.lstrip(BLANKS))
            framing = text.rfind("\n", 0, blanks) + 1
            text = text[framing:]
        self._resumed = None
        ahead = len(self.scanner.text) - self.scanner.position
        self.blocks.open(kind, chars_to_end=len(text) + waiting + ahead)
        return text

    def quote(self, text: str) -> None:
        """Adds a passed marker to the open block, which only mentions it."""
        self.add_prose(text)
        self.quotes = True

    @property
    def in_code(self) -> bool:
        """Whether a marker here is code, and so text. After a call that could not be read, none is:
        the format may have fences of its own."""
        return not self.damaged and (self.code.fenced or self.code.last == "`")

    @property
    def mentions_markers(self) -> bool:
        """Whether a marker here is text: in code, as a word of a sentence, or in a text that
        mentions others."""
        if self.damaged or (self.line_start and not self.quotes):
            return self.in_code
        return self.quotes or self.code.fenced or self.code.last in BEFORE_MENTION + " "

    def pass_token(self, text: str) -> None:
        """Passes a control token of calls that has no meaning here: it is dropped, and those after
        it, unless the text mentions it."""
        if self.mentions_markers:
            self.quote(text)
        else:
            self.damaged = True
            self.blocks.broken_calls += 1
            self.drop(text)

    def drop(self, text: str) -> None:
        """Passes over a marker that no block gets."""
        self._without_prompt(text)
        self.blocks.note_passed(text)

    def add_without(self, tokens: Pattern[str], text: str) -> None:
        """Adds passed text to the open block, without `tokens`."""
        start = 0
        for token in tokens.finditer(text):
            self.add_prose(text[start : token.start()])
            self.drop(token[0])
            start = token.end()
        self.add_prose(text[start:])

    def buffer(self, text: str) -> None:
        """Buffers `text` like trailing blanks, for example a stop token that came as text."""
        text = self._without_prompt(text)
        if text:
            self._buffered.append(text)
            self._broken = self._broken or "\n" in text

    @property
    def flowing(self) -> bool:
        """A block of the current kind is open, and nothing is buffered: prose goes into it as it
        comes."""
        return not self._buffered and self.blocks.kind == _KINDS[self.reasoning]

    @property
    def started(self) -> bool:
        """A block of the current kind is open, or the prompt started it."""
        return (self.blocks.kind or self._resumed) == _KINDS[self.reasoning]

    @property
    def line_start(self) -> bool:
        """The next character is at the start of a line or block."""
        return self._broken or not self.started

    def end_prose(self) -> None:
        """Ends the open reasoning or text; buffered text is dropped."""
        self.blocks.note_passed("".join(self._buffered))
        self._buffered.clear()
        self._broken = False
        self.quotes = False
        self._resumed = None
        self.code = Code()
        if self.blocks.kind != "tool_use":
            self.blocks.close()

    def open_call(self, name: str | None, call_id: str | None = None) -> None:
        """Starts the block of a call, which ends open reasoning, and drops the recorded text, which
        belongs to the call."""
        self.scanner.stop_recording()
        self.end_prose()
        self.reasoning = False
        self.after_thought = None
        self.damaged = False
        self._prompt = ""
        self.blocks.open("tool_use", name, call_id)

    def resume(self, prompt: str) -> None:
        """Treats everything parsed so far, `prompt`, as part of the prompt: only an open call keeps
        its block."""
        self._resumed = self.blocks.discard()
        self._buffered.clear()
        self._prompt = self.scanner.rest()
        if self.scanner.is_recording:  # a reader has passed a marker, and may return it
            self._prompt = prompt

    def prose_state(self) -> ProseState:
        """The state of the prose here, for `go_back`."""
        return ProseState(
            tuple(self._buffered), self._broken, self._resumed, self.code, self.reasoning
        )

    def go_back(self, state: ProseState, passed: str) -> None:
        """Goes back to `state` and adds the text that was passed since, which is only a mention of
        calls. A fence in it belongs to the calls, and not to the open block."""
        self._buffered[:] = state.buffered
        self._broken = state.broken
        self._resumed = state.resumed
        self.reasoning = state.reasoning
        self.code = Code()
        self.quote(passed)
        state.code.end = self.code.end
        self.code = state.code


def _parted(text: str) -> tuple[str, str]:
    """Splits text at the first line break that only blanks follow."""
    bare = text.rstrip(BLANKS)
    line_break = _BREAK(text, len(bare))
    if line_break is None:
        return text, ""
    return text[: line_break.start()], text[line_break.start() :]
