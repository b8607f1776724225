"""Parses the turns of one parser process: token entries in, turn events out. Pure; `service` connects it to the bus.

A turn is parsed from its first token, and the stream itself has all that is needed: the same tokens give the same
blocks, ids and seals in every shard. So a shard may die, or a stream may come twice, and the frontend sees one turn.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from schemas.control import StreamPosition
from schemas.conversation import ToolSpec
from schemas.errors import STREAM_GONE
from schemas.frames import ABSENT, ParseContext, TokenEntry
from services.families.verbatim import VERBATIM
from services.parser.turn_parse import TurnParse
from services.runtime.memo import Memo
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import Vocabulary

MIN_BYTES: Final = 1024
"""A smaller context is decoded faster than its tools are looked up."""
TOOLS_BYTES: Final = 2 * 1024 * 1024
"""JSON of the lists of tools that are kept: those of some 70 agents."""


class _ContextTools(msgspec.Struct):
    tools: msgspec.Raw = ABSENT


class _ContextFrontend(msgspec.Struct):
    frontend: str


_decode = msgspec.json.Decoder(ParseContext).decode
_decode_tools = msgspec.json.Decoder(_ContextTools).decode
_decode_tool_list = msgspec.json.Decoder(list[ToolSpec]).decode
_decode_frontend = msgspec.json.Decoder(_ContextFrontend).decode


class ContextDecoder:
    """Decodes parse contexts.

    The tools of a session are the same in all its turns. They are decoded once and shared by all open turns: decoded,
    25 tools take 130 KB, and half of the time that a context takes.
    """

    def __init__(self) -> None:
        self._tools = Memo[list[ToolSpec]](TOOLS_BYTES)

    def decode(self, raw: msgspec.Raw) -> ParseContext:
        """The context; its tools must not be changed. Raises msgspec.DecodeError."""
        data = bytes(raw)
        if len(data) < MIN_BYTES:
            return _decode(data)
        tools = bytes(_decode_tools(data).tools)
        # Outside of strings, where quotes are bare, no other field has this name.
        head, found, tail = data.partition(b'"tools":' + tools)
        if not found:
            return _decode(data)
        return replace(_decode(head + b'"tools":[]' + tail), tools=self._tools.get(tools, _decode_tool_list))


class Shard:
    """All turns of one parser process."""

    def __init__(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        self._vocabulary = vocabulary
        self._sealer = sealer
        self._contexts = ContextDecoder()
        self.turns: dict[str, TurnParse] = {}

    def take(self, entry: TokenEntry, worker: str) -> TurnParse | StreamPosition | None:
        """Parses an entry.

        Returns the turn if there are new events, the `StreamPosition` to replay from if tokens are missing, or None if
        the entry brought nothing. Propagates errors of the parse."""
        parse = self.turns.get(entry.turn)
        opened = parse is None or entry.attempt > parse.attempt
        if parse is None or opened:
            if entry.context == ABSENT:
                # A replay of a stream that is gone would only report again that it is gone.
                return None if _is_gone(entry) else StreamPosition(entry.turn, entry.attempt)
            context = self._contexts.decode(entry.context)
            parse = self.turns[entry.turn] = TurnParse(entry.turn, entry.attempt, context, worker, held=entry.held)
            parse.start(self._vocabulary, self._sealer)
        elif entry.attempt < parse.attempt or parse.ended:
            return None
        have = len(parse.ids)
        if entry.at > have and not _is_gone(entry):
            return StreamPosition(entry.turn, entry.attempt, have)
        before = parse.log.size
        if entry.cached is not None:
            parse.cached = entry.cached
        fresh = entry.ids if entry.at == have else entry.ids[have - entry.at :]
        if fresh:
            logprobs = entry.logprobs[have - entry.at :] if entry.logprobs else ()
            if parse.trace is None:
                parse.feed(fresh)
            else:
                parse.feed_traced(parse.trace, fresh, logprobs)
            if parse.context.prompt_ids:
                parse.report(parse.ids[have:], logprobs)
        if entry.finish is not None and not parse.ended:
            parse.finish(entry.finish)
        return parse if opened or parse.log.size != before else None

    def unreadable(self, entry: TokenEntry, worker: str) -> TurnParse | None:
        """A turn that can only fail, for an entry with an invalid parse context. None if not even its frontend can be
        read."""
        try:
            frontend = _decode_frontend(entry.context).frontend
        except msgspec.DecodeError:
            return None
        context = ParseContext(model="", family=VERBATIM.name, frontend=frontend, prompt_tokens=0)
        parse = self.turns[entry.turn] = TurnParse(entry.turn, entry.attempt, context, worker)
        return parse

    def positions(self, worker: str) -> list[StreamPosition]:
        """Up to where this shard has each open stream of a worker."""
        return [
            StreamPosition(parse.turn, parse.attempt, len(parse.ids))
            for parse in self.turns.values()
            if parse.worker == worker and not parse.ended
        ]


def _is_gone(entry: TokenEntry) -> bool:
    """The worker no longer has this stream."""
    return entry.finish is not None and entry.finish.error is not None and entry.finish.error.code == STREAM_GONE
