"""Makes the ledger entries of a turn that has ended. Pure."""

from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from schemas.events import Finish, FinishReason, Interrupted
from schemas.ledger import LedgerContext, LedgerEntry
from schemas.token_ids import pack_ids
from services.ledger.turns.evidence import id_digests, reasoning_digests
from services.ledger.turns.keys import key_arguments, turn_key
from services.parser.turn_parse import TurnParse
from services.parser.turn_stream import TurnStream
from services.runtime.streams.turn_log import LogBlock
from services.tokenization.detokenizer import tokens_within

MAX_BEGINNINGS_TOKENS = 65_536
"""Limit of the tokens in all entries of a turn's beginnings."""


def entries_of(parse: TurnParse) -> list[LedgerEntry]:
    """Makes the unsigned entries of a turn that has ended: the turn's own, then those of its
    beginnings. Empty if no later request could find one: the turn has no ledger context or no
    output, or another attempt continues it.

    Beginnings end with a call; in a turn that was broken off, with any block. Of such a turn its
    own entry is a beginning, too: its client may have received less. An incomplete call, which
    clients do not send back, ends a turn.
    """
    stream = parse.stream
    context = stream.context.ledger
    end = stream.log.terminal
    if context is None or isinstance(end, Interrupted):
        return []

    broken_off = not isinstance(end, Finish)
    content = _TurnContent()
    beginnings = content.add_blocks(parse, context, any_block=broken_off)
    if content.is_empty and not context.started:
        return []

    tokens = len(stream.ids)
    tail = ""
    if isinstance(end, Finish) and end.reason is FinishReason.STOP_STRING:
        tokens, tail = _before_stop(parse, end.stop_string or "")
    closed = _is_closed(parse) and not content.incomplete
    turn_entry = replace(
        content.entry(stream, context, tokens), closed=closed, tail=tail, beginning=broken_off
    )
    others = [
        entry
        for calls, entry in beginnings
        if entry.key != turn_entry.key or calls < len(content.calls)  # equal calls have one key
    ]
    return [turn_entry, *others]


def _is_closed(parse: TurnParse) -> bool:
    """Returns whether the model itself has ended the turn."""
    end = parse.stream.log.terminal
    return isinstance(end, Finish) and end.reason is FinishReason.STOP and parse.blocks.cut is None


class _TurnContent(Struct):
    """The blocks of a turn so far."""

    text: str = ""
    calls: list[tuple[str, str]] = []
    """(name, `key_arguments`)."""
    call_ids: list[str] = []
    thoughts: list[str] = []
    seals: list[str] = []
    incomplete: bool = False
    """An incomplete call follows the blocks."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to find the turn by."""
        return not (self.text or self.calls or self.thoughts)

    def add_blocks(
        self, parse: TurnParse, context: LedgerContext, *, any_block: bool
    ) -> list[tuple[int, LedgerEntry]]:
        """Adds all blocks of a turn up to an incomplete call. Returns the entries of its
        beginnings, each with the number of its calls: after each call, or after `any_block`."""
        stream = parse.stream
        beginnings: list[tuple[int, LedgerEntry]] = []
        room = MAX_BEGINNINGS_TOKENS
        for number, block in enumerate(stream.log.blocks):
            self._add(block)
            if self.incomplete:
                break
            if block.stop is None or (block.start.kind != "tool_use" and not any_block):
                continue
            tokens = parse.blocks.ends[number]
            room -= tokens
            if room >= 0:
                entry = self.entry(stream, context, tokens)
                beginning = replace(entry, closed=False, beginning=True)
                beginnings.append((len(self.calls), beginning))
        return beginnings

    def _add(self, block: LogBlock) -> None:
        start = block.start
        stop = block.stop
        text = block.text()
        if start.kind == "text":
            self.text += text
        elif start.kind == "reasoning":
            self.thoughts.append(text)
            if stop is not None and stop.seal is not None:
                self.seals.append(stop.seal)
        elif stop is None or not stop.complete:
            self.incomplete = True
        else:
            name = start.name or ""
            self.calls.append((name, key_arguments(name, text)))
            self.call_ids.append(start.call_id or "")

    def entry(self, stream: TurnStream, context: LedgerContext, tokens: int) -> LedgerEntry:
        """The entry of these blocks, which take the turn's first `tokens` tokens."""
        return LedgerEntry(
            model=stream.context.model,
            key=turn_key(context.state, context.started + self.text, self.calls),
            context=context,
            ids=pack_ids(stream.ids[:tokens]),
            in_reasoning=stream.context.in_reasoning,
            prefix=stream.context.prefix,
            calls_as_text=stream.context.calls == "none",
            id_digests=id_digests(stream.turn, self.call_ids, self.seals),
            reasoning_digests=reasoning_digests(self.thoughts),
        )


def _before_stop(parse: TurnParse, stop: str) -> tuple[int, str]:
    """Returns how many tokens end before the stop string (its end, if it is shown), and the
    characters up to there."""
    detokenizer = parse.vocabulary.open()
    stream = parse.stream
    pieces = [detokenizer.step(token) for token in stream.ids]
    text = "".join(pieces)
    lengths = [*accumulate(map(len, pieces), initial=0)]

    # The last token completed it; it may occur earlier, too, for example in reasoning.
    before_last_token = lengths[-2]
    earliest = max(before_last_token - len(stop) + 1, 0)
    chars = max(text.find(stop, earliest), 0)
    if stream.context.include_stop:
        chars += len(stop)
    tokens = tokens_within(lengths, chars)
    return tokens, text[lengths[tokens] : chars]
