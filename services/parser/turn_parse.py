"""Parses the tokens of one attempt at a turn into turn events. Pure.

Tokens become text, and a `BlockReader` makes blocks of it in the log of the turn's stream. In a
plain stretch of a block the turn takes the *fast path* instead (`services.parser.fast_path`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from schemas.control import StreamPosition
from schemas.errors import ENGINE_DIED, STREAM_GONE, EngineFailed, ErrorInfo
from schemas.events import BrokenCall, Failed, Finish, FinishReason, Interrupted, LoggedEvent, Usage
from schemas.frames import TokenEntry, TokenFinish
from schemas.requests import ParseContext
from schemas.token_ids import pack_ids
from services.families import Family, TurnParser, open_parser
from services.families.grammar.scanner import BlockWriter, Scanner
from services.parser.block_reader import BlockReader
from services.parser.checked_calls import FirstCall
from services.parser.event_builder import EventBuilder
from services.parser.fast_path import NO_FAST_PATH, FastPath, PlainPath
from services.parser.trace import ReportedLogprobs, logprobs_of_each, token_logprob
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import FamilyVocabulary

_STOPPED: Final = EngineFailed("the worker stopped before the turn was done").info
"""The error of an early end without one. Another worker may continue the turn."""
_BROKEN: Final = EngineFailed("a call could not be read, and could not be decoded again").info
"""The error where no worker decodes a broken call again."""
_CUT: Final = TokenFinish(FinishReason.STOP_STRING)
"""The end of a turn that its text has cut."""


def parser_of(
    context: ParseContext,
    family: Family,
    scanner: Scanner | None = None,
    blocks: BlockWriter | None = None,
) -> TurnParser:
    """Opens the family's parser for a turn. `scanner`, `blocks`: as for `open_parser`."""
    return open_parser(
        family.name,
        tools=context.tools,
        in_reasoning=context.in_reasoning,
        prefix=context.prefix,
        calls_as_text=context.calls == "none",
        scanner=scanner,
        blocks=blocks,
    )


@dataclass(slots=True)
class ParseTimes:
    """When a turn's tokens arrived, by the observer."""

    opened_ns: int = 0
    """Unix time of the first tokens; 0: not known."""
    ended_at: float = 0.0
    """Time of the last tokens, until their events are sent; 0: before and after."""


class TurnParse:
    """The parse of one attempt at one turn, in the format of a family."""

    __slots__ = ("_detokenizer", "_may_skip", "blocks", "fast", "stream", "times", "vocabulary")

    def __init__(
        self, stream: TurnStream, vocabulary: FamilyVocabulary, blocks: BlockReader
    ) -> None:
        self.stream = stream
        self.blocks = blocks
        self.times = ParseTimes()
        self.fast: FastPath = NO_FAST_PATH
        """Takes the turn's tokens while it is in a plain stretch."""
        context = stream.context
        has_logprobs = context.logprobs is not None
        self._may_skip = not (context.stop or context.prompt_ids or has_logprobs)
        """Whether plain text may skip parser and builder."""
        self.vocabulary = vocabulary
        self._detokenizer = vocabulary.open()

    @staticmethod
    def open(stream: TurnStream, vocabulary: FamilyVocabulary, sealer: Sealer) -> "TurnParse":
        """Opens the parse of a stream that has no tokens yet."""
        context = stream.context
        builder = EventBuilder(stream.turn, context, stream.log, sealer.of(context.tenant))
        blocks = BlockReader(stream, parser_of(context, vocabulary.family), builder)
        return TurnParse(stream, vocabulary, blocks)

    def __repr__(self) -> str:
        return f"{self.stream}, {self.fast}"

    @property
    def ended(self) -> bool:
        """Whether the last event is in the log."""
        return self.stream.log.terminal is not None

    # -- reading and the fast path

    def read(self, room: int) -> tuple[list[LoggedEvent], int]:
        """Returns the unread events and the room that is left, as `TurnLog.read`."""
        self.leave_fast_path()
        return self.stream.log.read(self.stream.sent, room)

    def rewind(self, position: StreamPosition) -> None:
        """Moves back to the frontend's position; never moves forward."""
        self.leave_fast_path()
        self.stream.rewind(position)

    def enter_fast_path(self) -> None:
        """Enters the fast path if the turn is in a plain stretch. To be called when all events were
        read."""
        if not self._may_skip or self.ended or self.stream.log.withheld_after is not None:
            return
        stretch = self.blocks.parser.stretch
        stretches = self._detokenizer.stretches
        if stretch is None or stretches is None or self._detokenizer.pending:
            return
        self.blocks.count_reasoning()
        self.fast = PlainPath(self.stream, stretches[stretch])

    def leave_fast_path(self) -> None:
        """Leaves the fast path and brings log and parser up to date."""
        fast = self.fast
        self.fast = NO_FAST_PATH
        fast.leave(self.stream, self.blocks)

    # -- tokens

    def add(self, entry: TokenEntry) -> bool:
        """Takes the new tokens of an entry, and the turn's end. Returns whether there are new
        events.

        Tokens are logged once their text was read, which shows where the turn is cut, and how many
        tokens stay if its call is decoded again. Then comes the end, which a turn that was cut or
        has a broken call already has.
        """
        stream = self.stream
        events_before = stream.log.size
        if entry.cached is not None:
            stream.cached = entry.cached

        have = len(stream.ids)
        ids = entry.ids[have - entry.at :]
        logprobs = entry.logprobs[have - entry.at :] if entry.logprobs else []
        if entry.weights and stream.context.prompt_ids:
            stream.log.tokens.add_weights(span for span in entry.weights if span.at >= have)
        if ids:
            self.feed(ids, logprobs)
            if stream.context.prompt_ids:
                self._report(stream.ids[have:], logprobs)
                call = self.blocks.first_call
                if call is not None and not self.ended:
                    stream.log.tokens.readable = call.kept

        if entry.finish is not None and not (self.ended or self.blocks.broken_call):
            self.finish(entry.finish)
        if self.blocks.broken_call is not None:
            self._interrupt_call(self.blocks.broken_call)
        return stream.log.size != events_before

    def feed(self, ids: Sequence[int], logprobs: Sequence[ReportedLogprobs] = ()) -> None:
        """Takes further tokens. Those after a cut are not counted. `logprobs`: of each token, if
        the request asked for them."""
        self.leave_fast_path()
        detokenizer = self._detokenizer
        blocks = self.blocks
        may_skip = self._may_skip
        for token in ids:
            self.stream.ids.append(token)
            text = detokenizer.step(token)
            if not text or (may_skip and blocks.skip(text)):
                continue
            blocks.read(text)
            if self._end_if_cut():
                return

    def _report(self, ids: Sequence[int], logprobs: Sequence[ReportedLogprobs]) -> None:
        """Logs tokens for a request that asked for ids, with their log probabilities."""
        top = self.stream.context.logprobs
        if top is None:
            self.stream.log.add_tokens(ids, None)
            return
        log = self.stream.log
        reported = [
            token_logprob(self.vocabulary.tokens, pairs, top, index=index) if pairs else None
            for index, pairs in enumerate(logprobs_of_each(ids, logprobs), len(log.tokens.ids))
        ]
        log.add_tokens(ids, reported)

    # -- the end

    def finish(self, finish: TokenFinish) -> None:
        """Ends the turn with the engine's end of the stream."""
        if finish.reason in (FinishReason.ERROR, FinishReason.CANCELLED):
            self._break_off(finish.error or _STOPPED)
            return
        self.leave_fast_path()
        self.blocks.count_reasoning()
        self._read_rest(self._detokenizer.flush())
        if finish.stop_id is not None and self._shows(finish.stop_id):
            self._read_rest(self._detokenizer.step(finish.stop_id) + self._detokenizer.flush())
        if self.ended:
            return
        self.blocks.finish(finish.reason)
        self._end_if_cut()
        if self.ended:
            return

        context = self.stream.context
        if finish.stop_id is not None and context.prompt_ids:
            self._report([finish.stop_id], [finish.logprobs or ()])
        reason = finish.reason
        if reason is FinishReason.LENGTH and context.window_limited:
            reason = FinishReason.CONTEXT
        self._end(reason, finish)

    def _break_off(self, error: ErrorInfo) -> None:
        if error is _STOPPED or error.code in (ENGINE_DIED, STREAM_GONE):
            self.interrupt(error)
        else:
            self.fail(error)

    def interrupt(self, error: ErrorInfo) -> None:
        """Ends this attempt after the loss of its worker; the frontend gets the tokens so far for
        another worker."""
        self.leave_fast_path()
        stream = self.stream
        stream.log.append(Interrupted(stream.worker, pack_ids(stream.ids), error, *stream.log.end))

    def _interrupt_call(self, call: FirstCall) -> None:
        """Ends this attempt after a broken call. The frontend gets the tokens before it, and the
        rest of the turn, for the case that no worker decodes the call again."""
        stream = self.stream
        if not self.ended:
            self.blocks.close()
            self._end(FinishReason.STOP)
        end = stream.log.terminal
        assert isinstance(end, Finish)
        broken = BrokenCall(call.cause, end.usage.output - call.kept, end.usage.cached)
        rest = stream.log.drop_withheld(call.kept)
        kept = pack_ids(stream.ids[: call.kept])
        place = stream.log.end
        stream.log.append(Interrupted(stream.worker, kept, _BROKEN, *place, broken, rest))

    def fail(self, error: ErrorInfo) -> None:
        """Ends a turn that no process can continue."""
        self.leave_fast_path()
        self.stream.log.append(Failed(error))

    def _shows(self, stop_id: int) -> bool:
        return self.stream.context.include_stop and not self.vocabulary.tokens.is_special(stop_id)

    def _read_rest(self, text: str) -> None:
        """Reads text without a token."""
        if text and not self.ended:
            self.blocks.read(text)
            self._end_if_cut()

    def _end_if_cut(self) -> bool:
        """Ends the turn if its text has cut it. Returns whether no more tokens are read; none are
        after a broken call, either."""
        if self.blocks.cut is None:
            return self.blocks.broken_call is not None
        self._end(self.blocks.cut, stop_string=self.blocks.stop_string)
        return True

    def _end(
        self, reason: FinishReason, end: TokenFinish = _CUT, stop_string: str | None = None
    ) -> None:
        stream = self.stream
        if self.blocks.broken_call is None:
            stream.log.release()
        output = len(stream.ids)
        if end.stop_id is not None:
            output += 1
        usage = _usage(stream, output, self.blocks.reasoning_tokens)
        finish = Finish(reason, len(stream.log.blocks), usage, stop_string)
        if stream.context.prompt_ids:
            finish = structs.replace(
                finish,
                tokens=output,
                stop_id=end.stop_id,
                weights=end.weights,
                experts=end.experts,
            )
        stream.log.append(finish)


def _usage(stream: TurnStream, output: int, reasoning: int) -> Usage:
    """The tokens of a turn: `output` of this attempt, `reasoning` among them, and those of a broken
    call that were decoded again."""
    context = stream.context
    # The engine may have found tokens of an earlier attempt in its cache, too.
    cached = min(stream.cached or 0, context.prompt_tokens)
    discarded = 0
    broken = context.broken_call
    if broken is not None:
        cached = min(cached, broken.cached)  # the rest was computed for that call
        discarded = broken.tokens
    return Usage(
        prompt=context.prompt_tokens,
        cached=cached,
        output=output + discarded,
        reasoning=reasoning,
        discarded=discarded,
    )
