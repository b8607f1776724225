"""Makes the ledger entries of a turn that has ended. Pure."""

from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from schemas.events import Finish, FinishReason, Interrupted
from schemas.frames import pack_ids
from schemas.ledger import LedgerContext, LedgerEntry
from services.ledger.evidence import reasoning_digests, turn_marks
from services.ledger.keys import key_arguments, turn_key
from services.parser.turn_parse import TurnParse
from services.tokenization.detokenizer import Detokenizer, tokens_within

MAX_BEGINNINGS_TOKENS = 65_536
"""Limit of the tokens in all entries of a turn's beginnings."""


def entries_of(parse: TurnParse, detokenizer: Detokenizer) -> list[LedgerEntry]:
    """Makes the unsigned entries of a turn that has ended: the turn's own, then those of its
    beginnings. Empty if no later request could find one: the turn has no ledger context or no
    output, or another attempt continues it.

    Beginnings end with a call; in a turn that was broken off, with any block. Of such a turn its
    own entry is a beginning, too: its client may have received less. An incomplete call, which
    clients do not send back, ends a turn.

    `detokenizer`: a new one for the turn's tokens, for turns that a stop string has cut.
    """
    context, end = parse.context.ledger, parse.log.terminal
    if context is None or isinstance(end, Interrupted):
        return []
    content, beginnings, left = _Content(), list[LedgerEntry](), MAX_BEGINNINGS_TOKENS
    finish = end if isinstance(end, Finish) else None
    closed = finish is not None and finish.reason is FinishReason.STOP and parse.cut is None
    for block in range(parse.log.blocks):
        if not content.add(parse, block):
            closed = False
            break
        start, stop = parse.log.ends(block)
        if stop is not None and (start.kind == "tool_use" or finish is None):
            tokens = parse.block_ends[block]
            left -= tokens
            if left >= 0:
                beginnings.append(
                    replace(content.entry(parse, context, tokens), closed=False, beginning=True)
                )
    if not (content.text or content.calls or content.thoughts or context.started):
        return []
    kept, tail = len(parse.ids), ""
    if finish is not None and finish.reason is FinishReason.STOP_STRING:
        kept, tail = _before_stop(parse, finish.stop_string or "", detokenizer)
    whole = replace(
        content.entry(parse, context, kept), closed=closed, tail=tail, beginning=finish is None
    )
    return [whole, *(beginning for beginning in beginnings if beginning.key != whole.key)]


class _Content(Struct):
    """The blocks of a turn so far."""

    text: str = ""
    calls: list[tuple[str, str]] = []
    """(name, `key_arguments`)."""
    call_ids: list[str] = []
    thoughts: list[str] = []
    seals: list[str] = []

    def add(self, parse: TurnParse, block: int) -> bool:
        """Adds a block. False: it is an incomplete call."""
        (start, stop), text = parse.log.ends(block), parse.log.text(block)
        if start.kind == "text":
            self.text += text
        elif start.kind == "reasoning":
            self.thoughts.append(text)
            if stop is not None and stop.seal is not None:
                self.seals.append(stop.seal)
        elif stop is None or not stop.complete:
            return False
        else:
            self.calls.append((start.name or "", key_arguments(text)))
            self.call_ids.append(start.call_id or "")
        return True

    def entry(self, parse: TurnParse, context: LedgerContext, tokens: int) -> LedgerEntry:
        """The entry of these blocks, which take the turn's first `tokens` tokens."""
        return LedgerEntry(
            model=parse.context.model,
            key=turn_key(context.state, context.started + self.text, self.calls),
            context=context,
            ids=pack_ids(parse.ids[:tokens]),
            in_reasoning=parse.context.in_reasoning,
            prefix=parse.context.prefix,
            calls_as_text=parse.context.calls == "none",
            marks=turn_marks(parse.turn, self.call_ids, self.seals),
            thoughts=reasoning_digests(self.thoughts),
        )


def _before_stop(parse: TurnParse, stop: str, detokenizer: Detokenizer) -> tuple[int, str]:
    """Returns how many tokens end before the stop string (its end, if it is shown), and the
    characters up to there."""
    pieces = [detokenizer.step(token) for token in parse.ids]
    text, lengths = "".join(pieces), [*accumulate(map(len, pieces), initial=0)]
    # The last token completed it; it may occur earlier, too, for example in reasoning.
    at = text.find(stop, max(lengths[-2] - len(stop) + 1, 0))
    shown = max(at, 0) + (len(stop) if parse.context.include_stop else 0)
    kept = tokens_within(lengths, shown)
    return kept, text[lengths[kept] : shown]
