"""Parses the tokens of one attempt at a turn into turn events. Pure.

Most tokens are whole characters in a plain stretch of a block, where the text depends on the token
alone. There a turn takes the *fast path*: the token's text is looked up and sent, without parser
and log. They are brought up to date when the turn leaves the fast path: at the first token that is
not plain, and before anything else is read or done.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from sys import intern

from schemas.control import StreamPosition
from schemas.errors import ENGINE_DIED, STREAM_GONE, EngineFailed, ErrorInfo
from schemas.events import (
    BlockEvent,
    BlockStop,
    Delta,
    Failed,
    Finish,
    FinishReason,
    Interrupted,
    Usage,
)
from schemas.frames import ParseContext, TokenEntry, TokenFinish, pack_ids
from services.families import TurnParser, family, open_parser
from services.families.grammar.scanner import escaped
from services.parser.event_builder import EventBuilder
from services.parser.trace import Logprobs, Trace, token_logprob
from services.runtime.storage.seal import Sealer
from services.runtime.streams.turn_log import Cursor, LoggedEvent, TurnLog
from services.tokenization.detokenizer import Detokenizer, Vocabulary
from services.tokenization.plain_tokens import PlainTexts

UNREAD = 4096
"""Unread characters with which a turn leaves the fast path: the log joins them at less cost."""


@dataclass(slots=True, eq=False)
class TurnParse:
    """One attempt at one turn: its tokens so far, and their events. `start` must be called first."""

    turn: str
    attempt: int
    context: ParseContext
    worker: str
    frontend: str = field(init=False)
    ids: "array[int]" = field(default_factory=lambda: array("I"))
    cached: int | None = None
    held: int = 0
    """Prompt tokens that the worker expects in its KV cache."""
    reasoning_tokens: int = 0
    """The reasoning tokens among the first `_counted` tokens."""
    block_ends: list[int] = field(default_factory=list)
    """The number of tokens with which each block was complete."""
    log: TurnLog = field(default_factory=TurnLog)
    """All events, except those of the fast path while the turn is there."""
    sent: Cursor = field(default_factory=Cursor)
    """Position up to which the events were read."""
    announced: bool = False
    """Whether `Prepared` was sent to the frontend."""
    ended_at: float = 0.0
    """Time of the end, until the end is sent."""
    end_seq: int | None = None
    """The frame that carried the last event."""
    opened_ns: int = 0
    """Unix time at which the stream opened, where the turn is traced."""
    cut: FinishReason | None = None
    """Why the parser ended the turn before the engine's end."""
    trace: Trace | None = None
    """Matches tokens with events, if the request asked for log probabilities."""
    plain: PlainTexts | None = None
    """The texts of tokens, on the fast path."""
    fresh: str = ""
    """Unread text of the fast path …"""
    block: int = 0
    offset: int = 0
    """… and its place."""
    _may_skip: bool = False
    """Whether plain text may skip parser and builder: no stop strings, log probabilities or ids are
    requested."""
    _counted: int = 0
    _vocabulary: Vocabulary = field(init=False)
    _builder: EventBuilder = field(init=False)
    _detokenizer: Detokenizer = field(init=False)
    _parser: TurnParser = field(init=False)

    def __post_init__(self) -> None:
        # One object for all turns of a frontend, which is probably in the CPU's caches when names
        # are compared.
        self.frontend = intern(self.context.frontend)

    def start(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        """Opens the family's parser; propagates its errors."""
        context = self.context
        self._vocabulary = vocabulary
        self._builder = EventBuilder(self.turn, context, self.log, sealer.of(context.tenant))
        trace = self.trace = (
            Trace(vocabulary, context.logprobs) if context.logprobs is not None else None
        )
        kind = family(context.family)
        self._detokenizer = vocabulary.open(vocabulary.hidden(kind.markers))
        self._parser = open_parser(
            context.family,
            tools=context.tools,
            in_reasoning=context.in_reasoning,
            prefix=context.prefix,
            calls_as_text=context.calls == "none",
            scanner=trace.scanner if trace is not None else None,
            blocks=trace.blocks if trace is not None else None,
        )
        if trace is not None:
            trace.match([])  # the blocks of the prefix
        self._may_skip = not (self._builder.searches or self.trace or context.prompt_ids)

    def rewind(self, position: StreamPosition) -> None:
        """Moves back to the frontend's position; never moves forward."""
        self.leave_fast_path()
        self.sent.rewind(position)
        self.end_seq = None
        self.announced = False

    @property
    def ended(self) -> bool:
        """Whether the last event is in the log."""
        return self.log.terminal is not None

    # -- fast path
    # ---------------------------------------------------------------------------------------------------

    def take_fast(self, entry: TokenEntry) -> bool:
        """Takes an entry on the fast path. Returns False, and changes nothing, if the entry cannot
        be taken there.

        Most entries can. The code touches few objects, because between two frames the CPU's caches
        hold other data: memory accesses take five times as long as the instructions (measured).
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
                self.leave_fast_path()
        return True

    def enter_fast_path(self) -> None:
        """Enters the fast path if the turn is in a plain stretch. To be called when all events were
        read."""
        if not self._may_skip or self.ended:
            return
        scanner, stretches = self._parser.scanner, self._detokenizer.stretches
        if scanner.trigger is not None and stretches is not None and not self._detokenizer.pending:
            self._count_reasoning()
            self.plain = stretches.of(scanner.trigger, scanner.escape)
            self.block, self.offset = self.log.end

    def next_delta(self) -> Delta:
        """Returns the unread text of the fast path."""
        delta = Delta(self.block, self.offset, self.fresh)
        self.offset += len(self.fresh)
        self.fresh = ""
        return delta

    def leave_fast_path(self) -> None:
        """Leaves the fast path and brings log and parser up to date."""
        if self.plain is None:
            return
        text = self.plain.text(self.ids[self._counted :])
        self.plain = None
        if text:
            self.log.add(text)
            self._parser.passed(text)
        self.sent.length = self.offset
        self.fresh = ""
        self._count_reasoning()

    def read(self, room: int) -> tuple[list[LoggedEvent], int]:
        """Returns the unread events and the room that is left, as `TurnLog.read`."""
        self.leave_fast_path()
        return self.log.read(self.sent, room)

    # -- tokens
    # -----------------------------------------------------------------------------------------------------

    def feed(self, ids: Sequence[int]) -> None:
        """Takes further tokens. Those after a cut are not counted."""
        self.leave_fast_path()
        detokenizer, scanner, may_skip = self._detokenizer, self._parser.scanner, self._may_skip
        for token in ids:
            self.ids.append(token)
            text = detokenizer.step(token)
            if not text:
                continue
            trigger = scanner.trigger
            if may_skip and trigger is not None and trigger(text) is None:
                if scanner.escape:
                    text = escaped(text)
                self._parser.passed(text)
                self.log.add(text)
                continue
            self._take(self._parsed(text))
            if self.cut is not None:
                return

    def feed_traced(self, trace: Trace, ids: Sequence[int], logprobs: Sequence[Logprobs]) -> None:
        """As `feed`, with the tokens' log probabilities, if there are any."""
        detokenizer = self._detokenizer
        for token, logprob in zip_longest(ids, logprobs[: len(ids)], fillvalue=()):
            assert isinstance(token, int)
            self.ids.append(token)
            text = detokenizer.step(token)
            trace.token(token, text, detokenizer.pending, logprob)
            if text:
                self._take(self._parsed(text))
                if self.cut is not None:
                    return

    def report(self, ids: Sequence[int], logprobs: Sequence[Logprobs]) -> None:
        """Logs the ids of tokens, with their log probabilities, for a request that asked for ids."""
        top, vocabulary = self.context.logprobs, self._vocabulary
        traced = None
        if top is not None:
            missing = [()] * (len(ids) - len(logprobs))
            each = [*logprobs[: len(ids)], *missing]
            traced = [token_logprob(vocabulary, pairs, top) if pairs else None for pairs in each]
        self.log.add_tokens(ids, traced)

    def finish(self, finish: TokenFinish) -> None:
        """Ends the turn with the engine's end of the stream."""
        if finish.reason is FinishReason.ERROR or finish.reason is FinishReason.CANCELLED:
            error = finish.error or EngineFailed("the worker stopped before the turn was done").info
            if finish.error is None or finish.error.code in (ENGINE_DIED, STREAM_GONE):
                self.interrupt(error)
            else:
                self.fail(error)
            return
        self.leave_fast_path()
        self._count_reasoning()
        self._write(self._detokenizer.flush())
        if (
            finish.stop_id is not None
            and self.context.include_stop
            and not self._vocabulary.is_special(finish.stop_id)
        ):
            self._write(self._detokenizer.step(finish.stop_id) + self._detokenizer.flush())
        if self.cut is None:
            self._take(self._parser.finish(finish.reason))
        reason = finish.reason
        if reason is FinishReason.LENGTH and self.context.window_limited:
            reason = FinishReason.CONTEXT
        if self.cut is None:
            if finish.stop_id is not None and self.context.prompt_ids:
                self.report([finish.stop_id], [finish.logprobs or ()])
            self._end(reason, ended_by_token=finish.stop_id is not None)

    def interrupt(self, error: ErrorInfo) -> None:
        """Ends this attempt after the loss of its worker; the frontend gets the tokens so far for
        another worker."""
        self.leave_fast_path()
        self.log.append(Interrupted(self.worker, pack_ids(self.ids), error, *self.log.end))

    def fail(self, error: ErrorInfo) -> None:
        """Ends a turn that no process can continue."""
        self.leave_fast_path()
        self.log.append(Failed(error))

    def _end(
        self, reason: FinishReason, *, ended_by_token: bool = False, stop_string: str | None = None
    ) -> None:
        usage = Usage(
            prompt=self.context.prompt_tokens,
            # An engine may have found tokens of an earlier attempt in its cache, too.
            cached=min(self.cached or 0, self.context.prompt_tokens),
            output=len(self.ids) + ended_by_token,
            reasoning=self.reasoning_tokens,
        )
        tokens = usage.output if self.context.prompt_ids else 0
        self.log.append(Finish(reason, self.log.blocks, usage, stop_string, tokens))

    def _parsed(self, text: str) -> list[BlockEvent]:
        """Returns the parser's events for a text. In a thought, tokens without an event are counted
        when it is certain to what they belong: its own closer is the thought's, the marker of the
        next block is not."""
        parser = self._parser
        thinks = parser.in_reasoning
        if parser.scanner.trigger is not None:  # also the tokens that skipped the parser
            self._count(len(self.ids) - 1, thinks)
        events = parser.feed(text)
        if not parser.in_reasoning:
            after = parser.after_thought if thinks else None
            self._count(
                len(self.ids) - (after is not None and after >= len(text)), after is not None
            )
            self._count(len(self.ids), False)
        elif not thinks or events:
            self._count(len(self.ids), bool(events) and not isinstance(events[-1], BlockStop))
        return events

    def _count_reasoning(self) -> None:
        """Counts all tokens so far. Those that skipped the parser cannot have changed the block."""
        self._count(len(self.ids), self._parser.in_reasoning)

    def _count(self, tokens: int, thinks: bool) -> None:
        self.reasoning_tokens += max(tokens - self._counted, 0) * thinks
        self._counted = max(tokens, self._counted)

    def _write(self, text: str) -> None:
        """Adds text without a token."""
        if text and self.cut is None:
            if self.trace is not None:
                self.trace.flushed(text)
            self._take(self._parsed(text))

    def _take(self, events: list[BlockEvent]) -> None:
        builder = self._builder
        builder.reasoning_tokens = self.reasoning_tokens
        for event in events:
            if isinstance(event, BlockStop):
                self.block_ends.append(len(self.ids))
        if self.trace is None:
            builder.add(events)
        else:
            builder.add_traced(self.trace, events)
        if builder.cut is not None:
            self.cut = builder.cut
            self._end(builder.cut, stop_string=builder.stop_string)
