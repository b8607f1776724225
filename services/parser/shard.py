"""What a parser shard knows of its turns: token entries in, turn events out. Pure; `service` gives it the bus.

A turn is parsed from its first token by whoever has its tokens: nothing but the stream itself is needed, and the same
tokens give the same blocks, ids and seals in every shard. So a shard may die, or a stream may come twice, and the
frontend sees one turn.
"""

import msgspec

from schemas.control import Standing
from schemas.errors import STREAM_GONE
from schemas.frames import ABSENT, ParseContext, TokenEntry
from services.parser.contexts import Contexts
from services.parser.detokenizer import Vocabulary
from services.parser.turn_parse import TurnParse
from services.parser.verbatim import VERBATIM
from services.runtime.seal import Sealer


class _Addressed(msgspec.Struct):
    """What must be readable of a parse context, so that somebody hears that the rest is not."""

    frontend: str


_decode_addressed = msgspec.json.Decoder(_Addressed).decode


class Shard:
    """All turns of one parser process."""

    def __init__(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        self._vocabulary = vocabulary
        self._sealer = sealer
        self._contexts = Contexts()
        self.turns: dict[str, TurnParse] = {}

    def take(self, entry: TokenEntry, worker: str) -> TurnParse | Standing | None:
        """Parses an entry. Returns the turn if it has something new to say, a `Standing` to replay from where tokens
        are missing, or None where the entry brought nothing. Raises what a turn's own parse raises."""
        parse = self.turns.get(entry.turn)
        opened = parse is None or entry.attempt > parse.attempt
        if parse is None or opened:
            if entry.context == ABSENT:
                # Asked for again, a stream that is gone would only be told to be gone again.
                return None if _is_gone(entry) else Standing(entry.turn, entry.attempt)
            context = self._contexts.read(entry.context)
            parse = self.turns[entry.turn] = TurnParse(entry.turn, entry.attempt, context, worker)
            parse.start(self._vocabulary, self._sealer)
        elif entry.attempt < parse.attempt or parse.ended:
            return None
        have = len(parse.ids)
        if entry.at > have and not _is_gone(entry):
            return Standing(entry.turn, entry.attempt, have)
        before = parse.log.size
        if entry.cached is not None:
            parse.cached = entry.cached
        fresh = entry.ids if entry.at == have else entry.ids[have - entry.at :]
        if fresh:
            if parse.trace is None:
                parse.feed(fresh)
            else:
                parse.feed_traced(parse.trace, fresh, (entry.logprobs or [])[have - entry.at :])
        if entry.finish is not None and not parse.ended:
            parse.finish(entry.finish)
        return parse if opened or parse.log.size != before else None

    def unreadable(self, entry: TokenEntry, worker: str) -> TurnParse | None:
        """A turn that can be nothing but failed, for an entry whose context is no parse context. None where not even
        the frontend is told in it."""
        try:
            frontend = _decode_addressed(entry.context).frontend
        except msgspec.DecodeError:
            return None
        context = ParseContext(model="", family=VERBATIM.name, frontend=frontend, prompt_tokens=0)
        parse = self.turns[entry.turn] = TurnParse(entry.turn, entry.attempt, context, worker)
        return parse

    def standings(self, worker: str) -> list[Standing]:
        """Where this shard stands in every stream of a worker."""
        return [
            Standing(parse.turn, parse.attempt, len(parse.ids))
            for parse in self.turns.values()
            if parse.worker == worker and not parse.ended
        ]


def _is_gone(entry: TokenEntry) -> bool:
    """The worker has this stream no more."""
    return entry.finish is not None and entry.finish.error is not None and entry.finish.error.code == STREAM_GONE
