"""The parse of a turn with log probabilities: each token is matched with the text that it wrote.
Pure."""

from collections.abc import Sequence

from typing_extensions import override

from schemas.events import BlockEvent
from schemas.requests import ParseContext
from services.parser.block_reader import BlockReader
from services.parser.event_builder import EventBuilder
from services.parser.trace import ReportedLogprobs, Trace, logprobs_of_each
from services.parser.turn_parse import TurnParse, parser_of
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer, TenantSealer
from services.runtime.streams.turn_log import TurnLog
from services.tokenization.detokenizer import FamilyVocabulary


class TracedParse(TurnParse):
    """A parse for a request with `ParseContext.logprobs`. All its text passes the parser."""

    __slots__ = ("_trace",)

    def __init__(
        self, stream: TurnStream, vocabulary: FamilyVocabulary, blocks: BlockReader, trace: Trace
    ) -> None:
        super().__init__(stream, vocabulary, blocks)
        self._trace = trace

    @override
    @staticmethod
    def open(stream: TurnStream, vocabulary: FamilyVocabulary, sealer: Sealer) -> "TracedParse":
        context = stream.context
        trace = Trace(vocabulary.tokens, context.logprobs or 0)
        parser = parser_of(context, vocabulary.family, trace.scanner, trace.blocks)
        trace.match([])  # the blocks of the prefix
        tenant_sealer = sealer.of(context.tenant)
        builder = TracedEventBuilder(stream.turn, context, stream.log, tenant_sealer, trace)
        blocks = BlockReader(stream, parser, builder)
        return TracedParse(stream, vocabulary, blocks, trace)

    @override
    def feed(self, ids: Sequence[int], logprobs: Sequence[ReportedLogprobs] = ()) -> None:
        detokenizer = self._detokenizer
        for token, pairs in zip(ids, logprobs_of_each(ids, logprobs), strict=True):
            self.stream.ids.append(token)
            text = detokenizer.step(token)
            self._trace.add_token(token, text, detokenizer.pending, pairs)
            if not text:
                continue
            self.blocks.read(text)
            if self._end_if_cut():
                return

    @override
    def _read_rest(self, text: str) -> None:
        if text and not self.ended:
            self._trace.add_flushed(text)
        super()._read_rest(text)


class TracedEventBuilder(EventBuilder):
    """Adds the log probabilities of each event's tokens to the log."""

    def __init__(
        self, turn: str, context: ParseContext, log: TurnLog, sealer: TenantSealer, trace: Trace
    ) -> None:
        super().__init__(turn, context, log, sealer)
        self._trace = trace

    @override
    def add(self, events: Sequence[BlockEvent], reasoning_tokens: int) -> None:
        for event, logprobs in zip(events, self._trace.match(events), strict=True):
            if self._text.is_buffering:
                self._text.buffer_logprobs(logprobs)
            elif logprobs and not self._suffix:
                self._log.add_logprobs(logprobs)
            super().add([event], reasoning_tokens)
            if self.cut is not None:
                return
