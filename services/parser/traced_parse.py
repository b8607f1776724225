"""The parse of a turn with log probabilities: each token is matched with the text that it wrote.
Pure."""

from collections.abc import Sequence

from typing_extensions import override

from schemas.events import BlockEvent
from services.families import TurnParser
from services.parser.block_reader import BlockReader
from services.parser.event_builder import EventBuilder
from services.parser.trace import Logprobs, Trace, one_for_each
from services.parser.turn_parse import TurnParse, parser_of
from services.parser.turn_stream import TurnStream
from services.runtime.storage.seal import Sealer
from services.tokenization.detokenizer import Vocabulary


class TracedParse(TurnParse):
    """A parse for a request with `ParseContext.logprobs`. All its text passes the parser."""

    __slots__ = ("_trace",)

    @override
    def start(self, vocabulary: Vocabulary, sealer: Sealer) -> None:
        self._trace = Trace(vocabulary, self.stream.context.logprobs or 0)
        super().start(vocabulary, sealer)
        self._may_skip = False

    @override
    def _open_blocks(self, builder: EventBuilder) -> BlockReader:
        trace = self._trace
        parser = parser_of(self.stream.context, trace.scanner, trace.blocks)
        trace.match([])  # the blocks of the prefix
        return TracedBlockReader(self.stream, parser, builder, trace)

    @override
    def feed(self, ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> None:
        detokenizer = self._detokenizer
        for token, pairs in zip(ids, one_for_each(ids, logprobs), strict=True):
            self.stream.ids.append(token)
            text = detokenizer.step(token)
            self._trace.token(token, text, detokenizer.pending, pairs)
            if not text:
                continue
            self.blocks.read(text)
            if self._ends_by_cut():
                return


class TracedBlockReader(BlockReader):
    """A reader that adds the log probabilities of each event's tokens to the log."""

    __slots__ = ("_trace",)

    def __init__(
        self, stream: TurnStream, parser: TurnParser, builder: EventBuilder, trace: Trace
    ) -> None:
        super().__init__(stream, parser, builder)
        self._trace = trace

    @override
    def read_rest(self, text: str) -> None:
        self._trace.flushed(text)
        self.read(text)

    @override
    def _build(self, events: list[BlockEvent]) -> None:
        self._builder.add_traced(self._trace, events)
