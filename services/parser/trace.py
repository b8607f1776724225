"""Which token each character of a block came from: log probabilities on their way through detokenizer and parser.

Only turns that asked for log probabilities are traced. A token belongs to the block in which its text is said, at the
place of its first character there; one whose text was a marker, framing white space or the spelling of a call around
its arguments belongs to none. Tokens that hold parts of one character all stand at that character.

Reasoning and text are one stretch of the output each, so that a block's own start tells the place of every token in it.
Arguments are written anew: what is said of them is found again in the output that the reader has just passed, as it
stands or without its JSON escapes.
"""

import json
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from schemas.events import BlockEvent, Delta, TokenLogprob, TopLogprob
from services.parser.detokenizer import Vocabulary
from services.parser.tape import Blocks, Tape, escaped

Logprobs = Sequence[tuple[int, float]]
"""(token id, log probability), the chosen token first."""


class _Said(NamedTuple):
    """A piece of arguments: where in its block, and how far the reader stood before the end of the input."""

    block: int
    offset: int
    text: str
    behind: int


class TracedBlocks(Blocks):
    """Blocks that remember where the reader stood when a piece of arguments was said."""

    __slots__ = ("_tape", "_waiting", "said")

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._waiting = 0
        self.said: list[_Said] = []
        self.say = self._note

    def _note(self, text: str) -> None:
        if self.kind == "tool_use" and text:
            behind = len(self._tape.text) - self._tape.position
            self.said.append(_Said(self.index, self.length + self._waiting, text, behind))
        self._waiting += len(text)
        self._parts.append(text)

    def _flush(self) -> None:
        super()._flush()
        self._waiting = 0


class _Token(NamedTuple):
    """A token and the characters of the output that it has a part in."""

    start: int
    end: int
    logprobs: Logprobs


class _Run(NamedTuple):
    """A stretch of the output that was said: where it begins there and in its block, and as what."""

    source: int
    offset: int
    text: str
    """As it stands in the output."""
    escaped: bool
    """It was said with JSON escapes."""

    def place(self, at: int) -> int:
        """The place in the block of the output's character `at`."""
        front = self.text[: at - self.source]
        return self.offset + len(escaped(front) if self.escaped else front)


class Trace:
    """One turn's tokens that are not yet said, and the matching of what is said with them."""

    __slots__ = (
        "_base",
        "_flowing",
        "_inside",
        "_passed",
        "_raw",
        "_starts",
        "_tokens",
        "_top",
        "_vocabulary",
        "blocks",
        "tape",
    )

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """`top`: how many alternatives each token is to have."""
        self._vocabulary = vocabulary
        self.tape = Tape()
        """For the parser to read …"""
        self.blocks = TracedBlocks(self.tape)
        """… and to write."""
        self._top = top
        self._tokens: deque[_Token] = deque()
        self._starts: dict[int, int] = {}
        """For each reasoning or text block: its first character's place in the output."""
        self._raw: list[str] = []
        """The output from `_base` on: what may still be said."""
        self._base = 0
        self._passed = 0
        """Everything before this place in the output is said, or never will be."""
        self._inside = b""
        """The first bytes of a character."""
        self._flowing = False
        """The last piece of arguments was found: the next one most likely follows it."""

    @property
    def _end(self) -> int:
        return self._base + sum(map(len, self._raw))

    def token(self, token: int, text: str, pending: bytes, logprobs: Logprobs) -> None:
        """The next token, the text that it completed (it is fed to the parser next) and the bytes that are still held
        of a character. Without `logprobs` it only takes its place."""
        end = self._end
        start = end
        data = self._vocabulary.bytes_of(token)
        if self._inside and text and not _continues(data):
            start += len(self._inside.decode("utf-8", "replace"))  # what was held was no character
        stop = end + len(text) + bool(pending)
        if logprobs and stop > start:
            self._tokens.append(_Token(start, stop, logprobs))
        self._inside = pending
        if text:
            self._raw.append(text)

    def flushed(self, text: str) -> None:
        """What was held of a character is out, broken as it is."""
        self._raw.append(text)

    def spoken(self, events: Sequence[BlockEvent]) -> list[list[TokenLogprob]]:
        """What the parser made of the last text: the tokens of each event. Without events: of what stood before."""
        blocks, end = self.blocks, self._end
        for block, behind in blocks.behind.items():
            self._starts[block] = end - behind
        blocks.behind.clear()
        said, blocks.said = deque(blocks.said), []
        told = [self._of(event, said, end) if isinstance(event, Delta) else [] for event in events]
        self._forget()
        return told

    def _of(self, delta: Delta, said: deque[_Said], end: int) -> list[TokenLogprob]:
        start = self._starts.get(delta.block)
        if start is not None:
            return self._take(_Run(start + delta.offset, delta.offset, delta.text, False))
        runs = []
        whole = delta.offset + len(delta.text)
        while said and (said[0].block, said[0].offset) < (delta.block, whole):
            runs.append(self._found(said.popleft(), end))
        if not runs:  # it did not pass the reader: the last text as it stands, escaped where it must be
            text = self._raw[-1]
            runs.append(_Run(end - len(text), delta.offset, text, len(text) != len(delta.text)))
            self._flowing = True
        return [told for run in runs if run is not None for told in self._take(run)]

    def _found(self, piece: _Said, end: int) -> _Run | None:
        """Where in the output a piece of arguments stands; None where it was not written there."""
        raw = "".join(self._raw)
        at, low = end - piece.behind - self._base, max(self._passed - self._base, 0)
        for text, quote, is_escaped in _spellings(piece.text):
            start = _find(raw, text, at, low, self._flowing)
            if start is not None:
                self._flowing = True
                self._passed = self._base + start + len(text)
                return _Run(self._base + start, piece.offset + quote, text, is_escaped)
        self._flowing = False
        return None

    def _take(self, run: _Run) -> list[TokenLogprob]:
        """The tokens that have a part in the run and in none before."""
        tokens, stop = self._tokens, run.source + len(run.text)
        found = []
        while tokens and tokens[0].start < stop:
            token = tokens.popleft()
            if token.end > run.source:
                found.append(self._told(token.logprobs, run.place(max(token.start, run.source))))
        self._passed = max(self._passed, stop)
        return found

    def _told(self, logprobs: Logprobs, at: int) -> TokenLogprob:
        token, logprob = logprobs[0]
        ranked = sorted(logprobs, key=lambda pair: -pair[1])[: self._top]
        data = self._vocabulary.bytes_of(token)
        return TokenLogprob(_text(data), logprob, at, data, [self._alternative(*pair) for pair in ranked])

    def _alternative(self, token: int, logprob: float) -> TopLogprob:
        data = self._vocabulary.bytes_of(token)
        return TopLogprob(_text(data), logprob, data)

    def _forget(self) -> None:
        if self._passed > self._base:
            raw = "".join(self._raw)[self._passed - self._base :]
            self._base, self._raw = self._passed, [raw] if raw else []


def _spellings(text: str) -> list[tuple[str, int, bool]]:
    """How a piece of JSON may stand in the output, the quote before it (0 or 1), and whether it was escaped since: as
    it is, or as what it means, with or without quotes around it."""
    found = [(text, 0, False)]
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    for inner, quote in [(text, 0), (text[1:-1], 1)][: 1 + quoted]:
        try:
            meant = str(json.loads(f'"{inner}"', strict=False))
        except ValueError:
            continue
        if meant and meant != text:
            found.append((meant, quote, meant != inner))
    return found


def _find(raw: str, text: str, at: int, low: int, flowing: bool) -> int | None:
    """Where `text` stands in the output before or at the place `at` where the reader stood, not before `low`."""
    if flowing and raw.startswith(text, low):
        return low
    if at >= low and raw.startswith(text, at):
        return at
    if at - len(text) >= low and raw.startswith(text, at - len(text)):
        return at - len(text)
    if any(map(str.isalnum, text)):
        found = raw.rfind(text, low, max(at, low))
        return found if found >= 0 else None
    return None


def _continues(data: bytes) -> bool:
    """The bytes go on with a character that was begun."""
    return bool(data) and data[0] & 0xC0 == 0x80


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
