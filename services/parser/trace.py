"""Matches tokens with the characters of blocks, for requests that ask for log probabilities.

A token belongs to the block with its text, at the offset of its first character there. Tokens of
markers, framing white space or the syntax around a call's arguments belong to no block. Tokens with
parts of one character are all placed at that character.

A reasoning or text block is one stretch of the output, so the offset of its start gives that of
every token in it. The reader rewrites arguments: their pieces are searched in the output that it
has just read, as they are or without JSON escapes.
"""

import json
from collections import deque
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from schemas.events import BlockEvent, Delta, TokenLogprob, TopLogprob
from services.families.grammar.scanner import BlockWriter, Scanner, escaped
from services.tokenization.detokenizer import Vocabulary

ReportedLogprobs = Sequence[tuple[int, float]]
"""(token id, log probability), the chosen token first."""


class _ArgumentPiece(NamedTuple):
    """A piece of arguments."""

    block: int
    offset: int
    """Its offset in the block."""
    text: str
    read_to: int
    """How much of the output the reader had passed when it wrote the piece, in characters."""


class TracedBlockWriter(BlockWriter):
    """A `BlockWriter` that records the reader's position for each piece of arguments."""

    def __init__(self, scanner: Scanner) -> None:
        super().__init__()
        self._scanner = scanner
        self._waiting = 0
        self.end = 0
        """Characters of the output that the parser has."""
        self.written: deque[_ArgumentPiece] = deque()
        self.write = self._record

    def _record(self, text: str) -> None:
        if self.kind == "tool_use" and text:
            read_to = self.end - len(self._scanner.text) + self._scanner.position
            offset = self.length + self._waiting
            self.written.append(_ArgumentPiece(self.index, offset, text, read_to))
        self._waiting += len(text)
        self._parts.append(text)

    def _flush(self) -> None:
        super()._flush()
        self._waiting = 0


class _Token(NamedTuple):
    """A token, and the characters of the output to which it contributes."""

    start: int
    end: int
    number: int
    """Its place in the output."""
    logprobs: ReportedLogprobs


class _Run(NamedTuple):
    """A stretch of the output that is in a block."""

    start: int
    """Its offset in the output."""
    offset: int
    """Its offset in the block."""
    text: str
    """The text in the output."""
    escaped: bool
    """Whether the block has the text with JSON escapes."""

    def offset_of(self, at: int) -> int:
        """Returns the offset in the block of the output's character `at`."""
        before = self.text[: at - self.start]
        if self.escaped:
            before = escaped(before)
        return self.offset + len(before)


class Trace:
    """Matches the tokens of one turn with its events."""

    def __init__(self, vocabulary: Vocabulary, top: int) -> None:
        """`top`: how many alternatives each token gets."""
        self._vocabulary = vocabulary
        self.scanner = Scanner()
        """The parser's input."""
        self.blocks = TracedBlockWriter(self.scanner)
        """The parser's output."""
        self._top = top
        self._tokens: deque[_Token] = deque()
        self._added = 0
        """The number of tokens so far."""
        self._starts: dict[int, int] = {}
        """Reasoning or text block → the offset of its first character in the output."""
        self._raw: list[str] = []
        """The output from `_base` on."""
        self._base = 0
        self._passed = 0
        """The output before this offset needs no more matching."""
        self._inside = b""
        """The first bytes of an incomplete character."""
        self._flowing = False
        """Whether the last piece of arguments was found: the next one probably follows it."""

    @property
    def _end(self) -> int:
        return self._base + sum(map(len, self._raw))

    def add_token(self, token: int, text: str, pending: bytes, logprobs: ReportedLogprobs) -> None:
        """Adds the next token.

        `text`: the text that it completed, which is fed to the parser next; `pending`: the bytes of
        an incomplete character. Without `logprobs` only the text counts.
        """
        end = self._end
        start = end
        if self._inside and text and not _continues(self._vocabulary.bytes_of(token)):
            replaced = self._inside.decode("utf-8", "replace")  # those bytes were not a character
            start += len(replaced)
        stop = end + len(text) + bool(pending)
        if logprobs and stop > start:
            self._tokens.append(_Token(start, stop, self._added, logprobs))
        self._added += 1
        self._inside = pending
        if text:
            self.add_flushed(text)

    def add_flushed(self, text: str) -> None:
        """Adds the text of an incomplete character at the end."""
        self._raw.append(text)
        self.blocks.end += len(text)

    def match(self, events: Sequence[BlockEvent]) -> list[list[TokenLogprob]]:
        """Returns the tokens of each event that the parser returned for the last text. No events:
        the parser's prefix."""
        end = self._end
        for block, chars in self.blocks.chars_to_end.items():
            self._starts[block] = end - chars
        self.blocks.chars_to_end.clear()

        tokens = [self._tokens_of(event) if isinstance(event, Delta) else [] for event in events]
        if self._passed > self._base:
            raw = "".join(self._raw)[self._passed - self._base :]
            self._raw = [raw]
            self._base = self._passed
        return tokens

    def _tokens_of(self, delta: Delta) -> list[TokenLogprob]:
        start = self._starts.get(delta.block)
        if start is not None:
            return self._take_tokens(_Run(start + delta.offset, delta.offset, delta.text, False))

        tokens: list[TokenLogprob] = []
        for run in self._runs_of_arguments(delta):
            tokens += self._take_tokens(run)
        return tokens

    def _runs_of_arguments(self, delta: Delta) -> list[_Run]:
        """Finds the pieces of arguments in a delta."""
        written = self.blocks.written
        end = delta.offset + len(delta.text)
        runs: list[_Run] = []
        while written and (written[0].block, written[0].offset) < (delta.block, end):
            run = self._find_run(written.popleft())
            if run is not None:
                runs.append(run)
        return runs

    def _find_run(self, piece: _ArgumentPiece) -> _Run | None:
        """Finds a piece of arguments in the output; None if it is not there."""
        raw = "".join(self._raw)
        reader_at = piece.read_to - self._base
        low = max(self._passed - self._base, 0)
        for text, quote, is_escaped in _spellings(piece.text):
            start = _find(raw, text, reader_at, low, self._flowing)
            if start is not None:
                self._flowing = True
                self._passed = self._base + start + len(text)
                return _Run(self._base + start, piece.offset + quote, text, is_escaped)
        self._flowing = False
        return None

    def _take_tokens(self, run: _Run) -> list[TokenLogprob]:
        """Takes the tokens that begin in the run or reach into it."""
        tokens = self._tokens
        stop = run.start + len(run.text)
        logprobs: list[TokenLogprob] = []
        while tokens and tokens[0].start < stop:
            token = tokens.popleft()
            if token.end > run.start:
                at = run.offset_of(max(token.start, run.start))
                logprobs.append(self._token_logprob(token, at))
        self._passed = max(self._passed, stop)
        return logprobs

    def _token_logprob(self, token: _Token, at: int) -> TokenLogprob:
        return token_logprob(self._vocabulary, token.logprobs, self._top, index=token.number, at=at)


def token_logprob(
    vocabulary: Vocabulary, logprobs: ReportedLogprobs, top: int, *, index: int, at: int = 0
) -> TokenLogprob:
    """Makes a token of the output, with its `top` likeliest alternatives. `logprobs`: not empty;
    `index`: its place in the output; `at`: its offset in the block."""
    token, logprob = logprobs[0]
    data = vocabulary.bytes_of(token)
    alternatives: list[TopLogprob] = []
    for other, value in sorted(logprobs, key=itemgetter(1), reverse=True)[:top]:
        other_data = vocabulary.bytes_of(other)
        alternatives.append(TopLogprob(_decoded(other_data), value, other_data))
    return TokenLogprob(_decoded(data), logprob, at, data, alternatives, index)


def logprobs_of_each(
    ids: Sequence[int], logprobs: Sequence[ReportedLogprobs]
) -> list[ReportedLogprobs]:
    """Returns the log probabilities of each id; empty where an engine has reported none."""
    reported = logprobs[: len(ids)]
    missing = len(ids) - len(reported)
    return [*reported, *[()] * missing]


def _spellings(text: str) -> list[tuple[str, int, bool]]:
    """Returns the forms that a piece of JSON may have in the output: as it is, or decoded, with or
    without its quotes.

    Each has the length of the quote before it (0 or 1), and whether the block has it with escapes.
    """
    insides = [(text, 0)]
    if len(text) > 1 and text[0] == text[-1] == '"':
        insides.append((text[1:-1], 1))

    forms = [(text, 0, False)]
    for inside, quote in insides:
        try:
            decoded = str(json.loads(f'"{inside}"', strict=False))
        except ValueError:
            continue
        if decoded and decoded != text:
            forms.append((decoded, quote, decoded != inside))
    return forms


def _find(raw: str, text: str, at: int, low: int, flowing: bool) -> int | None:
    """Finds `text` in the output: before or at the reader's offset `at`, and not before `low`."""
    if flowing and raw.startswith(text, low):
        return low
    if at >= low and raw.startswith(text, at):
        return at
    before = at - len(text)
    if before >= low and raw.startswith(text, before):
        return before
    if any(map(str.isalnum, text)):
        start = raw.rfind(text, low, max(at, low))
        return start if start >= 0 else None
    return None


def _continues(data: bytes) -> bool:
    """Returns whether the bytes continue an incomplete character."""
    return bool(data) and data[0] & 0xC0 == 0x80


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
