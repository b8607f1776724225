"""One attempt at one turn: tokens in, turn events out. Pure.

Most tokens of a turn are whole characters in a plain stretch of a block: they say the same whoever reads them. There a
turn *cruises*: a token is looked up, its text goes out, and nothing else is touched, neither parser nor log. What they
lack is told them when the turn *lands*: with the first token that is not plain, and before anything else is asked.
"""

from array import array
from collections.abc import Sequence
from itertools import zip_longest

from schemas.control import Standing
from schemas.errors import ENGINE_DIED, STREAM_GONE, EngineFailed, ErrorInfo
from schemas.events import BlockEvent, Delta, Failed, Finish, FinishReason, Interrupted, Prepared, Usage
from schemas.frames import ParseContext, TokenEntry, TokenFinish, pack_ids
from services.parser import TurnParser, family, open_parser
from services.parser.detokenizer import Vocabulary
from services.parser.plain import PlainTexts
from services.parser.tape import escaped
from services.parser.teller import Teller
from services.parser.trace import Logprobs, Trace
from services.runtime.seal import Sealer
from services.runtime.turnlog import Cursor, LoggedEvent, TurnLog

UNREAD = 4096
"""A turn lands when so many characters wait to be read, about: the log joins them at less cost."""


class TurnParse:
    """One attempt at one turn: its tokens so far, and the events that they made."""

    __slots__ = (
        "_able",
        "_counted",
        "_detokenizer",
        "_parser",
        "_teller",
        "_vocabulary",
        "announced",
        "attempt",
        "block",
        "cached",
        "context",
        "cut",
        "end_seq",
        "fresh",
        "frontend",
        "ids",
        "log",
        "offset",
        "plain",
        "reasoning_tokens",
        "sent",
        "trace",
        "turn",
        "worker",
    )

    def __init__(self, turn: str, attempt: int, context: ParseContext, worker: str) -> None:
        """`start` must follow."""
        self.turn = turn
        self.attempt = attempt
        self.worker = worker
        self.context = context
        self.frontend = context.frontend
        self.ids = array("I")
        self.cached: int | None = None
        self.reasoning_tokens = 0
        """Of the first `_counted` tokens."""
        self.log = TurnLog()
        """All events; of a turn that cruises, those up to where that began."""
        self.sent = Cursor()
        """What of them was read."""
        self.announced = False
        """The frontend was told that the turn is prepared."""
        self.end_seq: int | None = None
        """The frame that carried the last event."""
        self.cut: FinishReason | None = None
        """Why this side ended the turn although the engine would go on."""
        self.trace: Trace | None = None
        """Where the tokens of a turn go that is to tell their log probabilities."""
        self.plain: PlainTexts | None = None
        """What tokens say here, while the turn cruises."""
        self.fresh = ""
        """What was said since and not read …"""
        self.block = 0
        self.offset = 0
        """… and its place."""
        self._able = False
        """Text need not pass parser and teller: no stop string, no log probability is looked for."""
        self._counted = 0

    def start(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        """Gets ready to parse. Raises whatever the family has against this context."""
        context = self.context
        self._vocabulary = vocabulary
        self._teller = Teller(self.turn, context, self.log, sealer)
        if context.logprobs is not None:
            self.trace = Trace(vocabulary, context.logprobs)
        kind = family(context.family)
        self._detokenizer = vocabulary.open(vocabulary.hidden(kind.markers))
        self._parser: TurnParser = open_parser(
            context.family,
            tools=context.tools,
            in_reasoning=context.in_reasoning,
            prefix=context.prefix,
            calls_as_text=context.calls == "none",
            trace=self.trace,
        )
        self._able = not self._teller.watches and self.trace is None

    def prepared(self, parser: str) -> Prepared:
        """The turn's first event, which every shard that has it says for itself."""
        return Prepared(self.context.prompt_tokens, self.context.max_tokens, self.worker, parser)

    def rewind(self, standing: Standing) -> None:
        """Says again what the frontend has not; never moves forward."""
        self.land()
        self.sent.rewind(standing)
        self.end_seq = None
        if self.sent.place == (0, 0):
            self.announced = False

    @property
    def ended(self) -> bool:
        """The last event is in the log."""
        return self.log.terminal is not None

    # -- cruising ---------------------------------------------------------------------------------------------------

    def goes_on(self, entry: TokenEntry) -> bool:
        """Takes an entry by which a turn goes on cruising. False for any other, of which nothing was taken.

        Nearly every entry is one. It touches few objects: between two frames the caches are others', so that here a
        turn costs what it takes to fetch it (measured: five times the instructions' own time).
        """
        plain = self.plain
        if plain is None or entry.at != len(self.ids) or entry.attempt != self.attempt:
            return False
        if entry.finish is not None or entry.cached is not None:
            return False
        ids = entry.ids
        one = len(ids) == 1
        text = plain[ids[0]] if one else plain.run(ids)
        if text is None:
            return False
        if one:
            self.ids.append(ids[0])
        else:
            self.ids.extend(ids)
        if not self.fresh:
            self.fresh = text
        else:
            self.fresh += text
            if len(self.fresh) > UNREAD:
                self.land()
        return True

    def cruise(self) -> None:
        """Everything was read: from here the turn cruises, if it stands in a plain stretch."""
        if not self._able or self.ended:
            return
        tape, stretches = self._parser.tape, self._detokenizer.stretches
        if tape.trigger is not None and stretches is not None and not self._detokenizer.pending:
            self._settle()
            self.plain = stretches.of(tape.trigger, tape.escape)
            self.block, self.offset = self.log.end

    def next_delta(self) -> Delta:
        """What a turn that cruises has said since it was read last; counts as read."""
        delta = Delta(self.block, self.offset, self.fresh)
        self.offset += len(self.fresh)
        self.fresh = ""
        return delta

    def land(self) -> None:
        """Brings log and parser up to date, if the turn cruises."""
        if self.plain is None:
            return
        text = self.plain.said(self.ids[self._counted :])
        self.plain = None
        if text:
            self.log.add(text)
            self._parser.passed(len(text))
        self.sent.length = self.offset
        self.fresh = ""
        self._settle()

    def read(self, room: int) -> tuple[list[LoggedEvent], int]:
        """What was not read yet, and the room that is left: see `TurnLog.read`."""
        self.land()
        return self.log.read(self.sent, room)

    # -- tokens -----------------------------------------------------------------------------------------------------

    def feed(self, ids: Sequence[int]) -> None:
        """Further tokens. Those behind a cut are decoded for nothing and not counted."""
        self.land()
        detokenizer, tape, able = self._detokenizer, self._parser.tape, self._able
        for token in ids:
            self.ids.append(token)
            text = detokenizer.step(token)
            if not text:
                continue
            trigger = tape.trigger
            if able and trigger is not None and trigger(text) is None:
                said = escaped(text) if tape.escape else text
                self._parser.passed(len(said))
                self.log.add(said)
                continue
            self._take(self._parsed(text))
            if self.cut is not None:
                return

    def feed_traced(self, trace: Trace, ids: Sequence[int], logprobs: Sequence[Logprobs]) -> None:
        """As `feed`, for a turn that tells log probabilities. Tokens without any are told without."""
        detokenizer = self._detokenizer
        for token, told in zip_longest(ids, logprobs[: len(ids)], fillvalue=()):
            assert isinstance(token, int)
            self.ids.append(token)
            text = detokenizer.step(token)
            trace.token(token, text, detokenizer.pending, told)
            if text:
                self._take(self._parsed(text))
                if self.cut is not None:
                    return

    def finish(self, finish: TokenFinish) -> None:
        """The engine ended the stream."""
        if finish.reason is FinishReason.ERROR or finish.reason is FinishReason.CANCELLED:
            error = finish.error or EngineFailed("the worker stopped before the turn was done").info
            if finish.error is None or finish.error.code in (ENGINE_DIED, STREAM_GONE):
                self.interrupt(error)
            else:
                self.fail(error)
            return
        self.land()
        self._settle()
        self._say(self._detokenizer.flush())
        if finish.stop_id is not None and self.context.include_stop and not self._vocabulary.is_special(finish.stop_id):
            self._say(self._detokenizer.step(finish.stop_id) + self._detokenizer.flush())
        if self.cut is None:
            self._take(self._parser.finish(finish.reason))
        reason = finish.reason
        if reason is FinishReason.LENGTH and self.context.window_limited:
            reason = FinishReason.CONTEXT
        if self.cut is None:
            self._end(reason, ended_by_token=finish.stop_id is not None)

    def interrupt(self, error: ErrorInfo) -> None:
        """The worker is gone: what was decoded so far goes back to the frontend, which finds another."""
        self.land()
        self.log.append(Interrupted(self.worker, pack_ids(self.ids), error, *self.log.end))

    def fail(self, error: ErrorInfo) -> None:
        """The turn cannot go on, here or elsewhere."""
        self.land()
        self.log.append(Failed(error))

    def _end(self, reason: FinishReason, *, ended_by_token: bool = False, stop_string: str | None = None) -> None:
        usage = Usage(
            prompt=self.context.prompt_tokens,
            # An engine may have found tokens of an earlier attempt, too.
            cached=min(self.cached or 0, self.context.prompt_tokens),
            output=len(self.ids) + ended_by_token,
            reasoning=self.reasoning_tokens,
        )
        self.log.append(Finish(reason, self.log.blocks, usage, stop_string))

    def _parsed(self, text: str) -> list[BlockEvent]:
        """What the parser says to text that it must see."""
        self._settle()
        return self._parser.feed(text)

    def _settle(self) -> None:
        """Counts what was decoded inside reasoning: tokens that the parser does not see change nothing about that."""
        self.reasoning_tokens += (len(self.ids) - self._counted) * self._parser.in_reasoning
        self._counted = len(self.ids)

    def _say(self, text: str) -> None:
        """Text that is no token's."""
        if text and self.cut is None:
            if self.trace is not None:
                self.trace.flushed(text)
            self._take(self._parsed(text))

    def _take(self, events: list[BlockEvent]) -> None:
        teller = self._teller
        if self.trace is None:
            teller.take(events)
        else:
            teller.take_traced(self.trace, events)
        if teller.cut is not None:
            self.cut = teller.cut
            self._end(teller.cut, stop_string=teller.stop_string)
