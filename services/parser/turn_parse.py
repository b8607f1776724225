"""One attempt at one turn: tokens in, turn events out, into a log. Pure."""

from array import array
from collections.abc import Sequence
from itertools import zip_longest

from schemas.control import Standing
from schemas.errors import ENGINE_DIED, STREAM_GONE, EngineFailed, ErrorInfo
from schemas.events import (
    BlockEvent,
    BlockStart,
    BlockStop,
    Delta,
    Failed,
    Finish,
    FinishReason,
    Interrupted,
    Prepared,
    TokenLogprob,
    Usage,
)
from schemas.frames import ParseContext, TokenEntry, TokenFinish, pack_ids
from services.parser import TurnParser, family, open_parser
from services.parser.callids import call_id
from services.parser.detokenizer import Vocabulary
from services.parser.plain import PlainTexts
from services.parser.seal import Sealer
from services.parser.stop import StopStrings
from services.parser.tape import Trigger, escaped
from services.parser.trace import Logprobs, Trace
from services.parser.verbatim import VERBATIM
from services.runtime.turnlog import Cursor, TurnLog


class TurnParse:
    """One attempt at one turn: its tokens so far, and the events that they made."""

    __slots__ = (
        "_able",
        "_ahead",
        "_allowed",
        "_barred",
        "_counted",
        "_detokenizer",
        "_direct",
        "_hold",
        "_lead",
        "_parser",
        "_plain",
        "_sealer",
        "_shown",
        "_stop",
        "_tape",
        "_trigger",
        "_untold",
        "_vocabulary",
        "announced",
        "attempt",
        "cached",
        "context",
        "cut",
        "end_seq",
        "ids",
        "log",
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
        self.ids = array("I")
        self.cached: int | None = None
        self.reasoning_tokens = 0
        """Of the first `_counted` tokens."""
        self.log = TurnLog()
        self.sent = Cursor()
        self.announced = False
        """The frontend was told that the turn is prepared."""
        self.end_seq: int | None = None
        """The frame that carried the last event."""
        self.cut: FinishReason | None = None
        """Why this side ended the turn although the engine would go on."""
        self._hold: BlockStart | None = None
        """A text block of which nothing can be shown yet."""
        self._lead = ""
        """The blanks that it begins with: shown with the first character that is none."""
        self._shown = 0
        """Characters of the open text block that passed the stop strings."""
        self._untold: list[TokenLogprob] = []
        """Log probabilities of that block's tokens."""
        self._barred = ""
        """What ends the text that a call has become which may not be made."""
        self.trace: Trace | None = None
        """Where the tokens of a turn go that is to tell their log probabilities."""
        self._able = False
        """Plain text may go into the log past the parser: no stop string, no log probability is looked for."""
        self._direct = False
        """… and no character is held in halves, so that it can be looked up by its tokens."""
        self._trigger: Trigger | None = None
        self._plain: PlainTexts
        """Of the last plain stretch, whose trigger this was."""
        self._ahead = 0
        """Characters that went so, and that the parser has not been told of."""
        self._counted = 0

    def start(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        """Gets ready to parse. Raises whatever the family has against this context."""
        context = self.context
        self._sealer = sealer
        self._vocabulary = vocabulary
        self._allowed = frozenset(context.allowed)
        self._stop = StopStrings(context.stop) if context.stop else None
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
        self._tape = self._parser.tape
        self._able = self._direct = self._stop is None and self.trace is None

    def prepared(self, parser: str) -> Prepared:
        """The turn's first event, which every shard that has it says for itself."""
        return Prepared(self.context.prompt_tokens, self.context.max_tokens, self.worker, parser)

    def rewind(self, standing: Standing) -> None:
        """Says again what the frontend has not; never moves forward."""
        self.sent.rewind(standing)
        self.end_seq = None
        if self.sent.place == (0, 0):
            self.announced = False

    @property
    def ended(self) -> bool:
        """The last event is in the log."""
        return self.log.terminal is not None

    def goes_on(self, entry: TokenEntry) -> bool:
        """Takes an ordinary entry: the next tokens, whole characters in a plain stretch of the open block. False for
        any other, of which nothing was taken.

        Nearly every entry is one; it touches few objects, for between two frames the caches are others'.
        """
        if not self._direct or entry.at != len(self.ids) or entry.attempt != self.attempt:
            return False
        if entry.finish is not None or entry.cached is not None:
            return False
        trigger = self._tape.trigger
        if trigger is None or (trigger is not self._trigger and not self._enter(trigger)):
            return False
        ids, plain = entry.ids, self._plain
        one = len(ids) == 1
        text = plain[ids[0]] if one else plain.run(ids)
        if text is None:
            return False
        if one:
            self.ids.append(ids[0])
        else:
            self.ids.extend(ids)
        if text:
            self._ahead += len(text)
            self.log.add(text)
        return True

    def _enter(self, trigger: Trigger) -> bool:
        """Another plain stretch has begun. False where tokens have no text of their own."""
        stretches = self._detokenizer.stretches
        if stretches is None:
            return False
        self._trigger = trigger
        self._plain = stretches.of(trigger, self._tape.escape)
        return True

    def feed(self, ids: list[int]) -> None:
        """Further tokens. Those behind a cut are decoded for nothing and not counted."""
        detokenizer, tape, able = self._detokenizer, self._tape, self._able
        for token in ids:
            self.ids.append(token)
            text = detokenizer.step(token)
            if not text:
                continue
            trigger = tape.trigger
            if able and trigger is not None and trigger(text) is None:
                said = escaped(text) if tape.escape else text
                self._ahead += len(said)
                self.log.add(said)
                continue
            self._take(self._parsed(text))
            if self.cut is not None:
                return
        self._direct = able and not detokenizer.pending

    def feed_traced(self, trace: Trace, ids: Sequence[int], logprobs: Sequence[Logprobs]) -> None:
        """As `feed`, for a turn that tells log probabilities. Tokens without any are told without."""
        detokenizer = self._detokenizer
        for token, told in zip_longest(ids, logprobs[: len(ids)], fillvalue=()):
            assert isinstance(token, int)
            self.ids.append(token)
            text = detokenizer.step(token)
            trace.token(token, text, detokenizer.pending, told)
            if text:
                self._take_traced(trace, self._parsed(text))
                if self.cut is not None:
                    return

    def _parsed(self, text: str) -> list[BlockEvent]:
        """What the parser says to text that it must see."""
        self._settle()
        return self._parser.feed(text)

    def _settle(self) -> None:
        """Tells the parser what went past it. What it says of itself has not changed meanwhile."""
        self.reasoning_tokens += (len(self.ids) - self._counted) * self._parser.in_reasoning
        self._counted = len(self.ids)
        self._parser.passed(self._ahead)
        self._ahead = 0

    def finish(self, finish: TokenFinish) -> None:
        """The engine ended the stream."""
        if finish.reason is FinishReason.ERROR or finish.reason is FinishReason.CANCELLED:
            error = finish.error or EngineFailed("the worker stopped before the turn was done").info
            if finish.error is None or finish.error.code in (ENGINE_DIED, STREAM_GONE):
                self.interrupt(error)
            else:
                self.fail(error)
            return
        self._settle()
        self._say(self._detokenizer.flush())
        if finish.stop_id is not None and self.context.include_stop and not self._vocabulary.is_special(finish.stop_id):
            self._say(self._detokenizer.step(finish.stop_id) + self._detokenizer.flush())
        if self.cut is None:
            self._take_any(self._parser.finish(finish.reason))
        reason = finish.reason
        if reason is FinishReason.LENGTH and self.context.window_limited:
            reason = FinishReason.CONTEXT
        if self.cut is None:
            self._end(reason, ended_by_token=finish.stop_id is not None)

    def interrupt(self, error: ErrorInfo) -> None:
        """The worker is gone: what was decoded so far goes back to the frontend, which finds another."""
        self._conclude(Interrupted(self.worker, pack_ids(self.ids), error, *self.log.end))

    def fail(self, error: ErrorInfo) -> None:
        """The turn cannot go on, here or elsewhere."""
        self._conclude(Failed(error))

    def _end(self, reason: FinishReason, *, ended_by_token: bool = False, stop_string: str | None = None) -> None:
        usage = Usage(
            prompt=self.context.prompt_tokens,
            # An engine may have found tokens of an earlier attempt, too.
            cached=min(self.cached or 0, self.context.prompt_tokens),
            output=len(self.ids) + ended_by_token,
            reasoning=self.reasoning_tokens,
        )
        self._conclude(Finish(reason, self.log.blocks, usage, stop_string))

    def _conclude(self, end: Finish | Failed | Interrupted) -> None:
        self._able = self._direct = False
        self.log.append(end)

    def _say(self, text: str) -> None:
        """Text that is no token's."""
        if text and self.cut is None:
            if self.trace is not None:
                self.trace.flushed(text)
            self._take_any(self._parsed(text))

    def _take_any(self, events: list[BlockEvent]) -> None:
        if self.trace is None:
            self._take(events)
        else:
            self._take_traced(self.trace, events)

    def _take_traced(self, trace: Trace, events: list[BlockEvent]) -> None:
        for event, told in zip(events, trace.spoken(events), strict=True):
            if self._hold is not None:
                self._untold += told
            elif told and not self._barred:
                self.log.tell(told)
            self._take([event])
            if self.cut is not None:
                return

    def _take(self, events: list[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, Delta):
                if self._stop is None or not self._in_text():
                    self.log.add(event.text)
                else:
                    self._take_text(event)
            elif isinstance(event, BlockStart):
                self._start(event)
            else:
                self._close(event)
            if self.cut is not None:
                return

    def _in_text(self) -> bool:
        return self._hold is not None or (self.log.open_kind == "text" and not self._barred)

    def _start(self, event: BlockStart) -> None:
        if event.kind == "tool_use" and self._allowed and event.name not in self._allowed:
            self.log.append(BlockStart(event.block, "text"))
            self.log.add(f"{event.name}(")
            self._barred = ")"
            return
        if event.kind == "tool_use" and event.call_id is None:
            event = BlockStart(event.block, event.kind, event.name, call_id(self.turn, event.block))
        if event.kind == "text" and self._stop is not None:
            self._hold, self._lead, self._shown, self._untold = event, "", 0, []
            return
        self.log.append(event)

    def _take_text(self, event: Delta) -> None:
        assert self._stop is not None
        shown, stop = self._stop.feed(event.text)
        if stop is not None and self.context.include_stop:
            shown += stop
        self._show(event.block, shown)
        if stop is not None:
            if self._hold is None:
                self.log.append(BlockStop(event.block, True, self._shown))
            self._hold = None
            self.cut = FinishReason.STOP_STRING
            self._end(FinishReason.STOP_STRING, stop_string=stop)

    def _show(self, block: int, text: str, *, blank: bool = False) -> None:
        """Shows text of a text block; with `blank` also such as has nothing to see in it."""
        if self._hold is not None:
            self._lead += text
            if not (self._lead if blank or self.context.family == VERBATIM.name else self._lead.strip()):
                return
            self.log.append(self._hold)
            self.log.tell(self._untold)
            self._hold, text = None, self._lead
        if not text:
            return
        self.log.append(Delta(block, self._shown, text))
        self._shown += len(text)

    def _close(self, event: BlockStop) -> None:
        if self._barred:
            self.log.add(self._barred)
            self._barred = ""
            self.log.append(BlockStop(event.block, True, self.log.end[1]))
            return
        kind = self.log.open_kind if self._hold is None else "text"
        if kind == "text" and self._stop is not None:
            self._show(event.block, self._stop.flush(), blank=True)
            event = BlockStop(event.block, event.complete, self._shown)
        elif kind == "reasoning":
            seal = self._sealer.seal(self.log.text(event.block))
            event = BlockStop(event.block, event.complete, event.length, seal)
        self.log.append(event)
        if kind == "tool_use" and event.complete and self.context.calls == "single":
            self.cut = FinishReason.STOP
            self._end(FinishReason.STOP)
