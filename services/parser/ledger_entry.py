"""Makes the ledger entry of a turn that has ended. Pure."""

from msgspec import Struct

from schemas.events import Finish, FinishReason
from schemas.frames import pack_ids
from schemas.ledger import LedgerEntry
from services.ledger.evidence import reasoning_digests, turn_marks
from services.ledger.keys import key_arguments, turn_key
from services.parser.turn_parse import TurnParse
from services.tokenization.detokenizer import Detokenizer


def entry_of(parse: TurnParse, detokenizer: Detokenizer) -> LedgerEntry | None:
    """Makes the unsigned entry of an ended turn. Returns None if no later request could find it: the turn has no ledger
    context, failed, has no output, or its last call is incomplete, which clients do not send back.

    `detokenizer`: a new one for the turn's tokens, for turns that a stop string has cut.
    """
    ledger, finish = parse.context.ledger, parse.log.terminal
    if ledger is None or not isinstance(finish, Finish):
        return None
    content = _content(parse)
    if content is None:
        return None
    text, calls = "".join(content.texts), content.calls
    if not (text or calls or ledger.started):
        return None
    kept, tail = len(parse.ids), ""
    if finish.reason is FinishReason.STOP_STRING:
        kept, tail = _before_stop(parse, finish.stop_string or "", detokenizer)
    return LedgerEntry(
        model=parse.context.model,
        key=turn_key(ledger.state, ledger.started + text, calls),
        context=ledger,
        ids=pack_ids(parse.ids[:kept]),
        closed=finish.reason is FinishReason.STOP and parse.cut is None,
        tail=tail,
        in_reasoning=parse.context.in_reasoning,
        prefix=parse.context.prefix,
        calls_as_text=parse.context.calls == "none",
        marks=turn_marks(parse.turn, content.call_ids, content.seals),
        thoughts=reasoning_digests(content.thoughts),
    )


class _Content(Struct):
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    """(name, `key_arguments`)."""
    call_ids: list[str] = []
    thoughts: list[str] = []
    seals: list[str] = []


def _content(parse: TurnParse) -> _Content | None:
    """Collects the blocks of a turn; None if a call is incomplete."""
    log, content = parse.log, _Content()
    for block in range(log.blocks):
        start, stop = log.ends(block)
        if start.kind == "text":
            content.texts.append(log.text(block))
        elif start.kind == "reasoning":
            content.thoughts.append(log.text(block))
            if stop is not None and stop.seal is not None:
                content.seals.append(stop.seal)
        elif stop is None or not stop.complete:
            return None
        else:
            content.calls.append((start.name or "", key_arguments(log.text(block))))
            content.call_ids.append(start.call_id or "")
    return content


def _before_stop(parse: TurnParse, stop: str, detokenizer: Detokenizer) -> tuple[int, str]:
    """Returns how many tokens end before the stop string (its end, if it is shown), and the characters up to there."""
    text, lengths = "", [0]
    for token in parse.ids:
        text += detokenizer.step(token)
        lengths.append(len(text))
    # The last token completed it; it may occur earlier, too, for example in reasoning.
    at = text.find(stop, max(lengths[-2] - len(stop) + 1, 0))
    shown = max(at, 0) + (len(stop) if parse.context.include_stop else 0)
    kept = max(index for index, length in enumerate(lengths) if length <= shown)
    while kept and lengths[kept] == lengths[kept - 1]:  # drop tokens that hold the first bytes of a character
        kept -= 1
    return kept, text[lengths[kept] : shown]
