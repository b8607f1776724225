"""Converts a request of the Responses API to a conversation and the renderer of its answer. Pure,
except for a memo of tools."""

from collections.abc import Collection, Sequence

from msgspec import Raw
from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Conversation
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import not_found
from services.frontend.apis.responses.parse import conversation
from services.frontend.apis.responses.parse.body import (
    REASONING_SEALED,
    SOURCES,
    DecodedRequest,
    decode,
)
from services.frontend.apis.responses.parse.compaction import (
    TRIGGER,
    TextSealer,
    ends_in_trigger,
)
from services.frontend.apis.responses.parse.items.reader import ItemReader
from services.frontend.apis.responses.parse.tools.reader import read_tools
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools
from services.frontend.apis.responses.render.events import KEEPALIVE
from services.frontend.apis.responses.render.items.open_item import ResponsesShape
from services.frontend.apis.responses.render.response_renderer import (
    ResponseRenderer,
    ResponsesCollector,
)
from services.frontend.apis.responses.render.stream import ResponsesStream
from services.frontend.apis.responses.render.summary_stream import SummaryStream
from services.frontend.apis.shared.client import Headers
from services.frontend.apis.shared.field_types import is_set
from services.frontend.turns.compaction import request_summary
from services.frontend.turns.interfaces import ApiDialect, ParsedRequest, RenderInfo
from services.runtime.caches.memo import Memo

DIALECT = ApiDialect("responses", KEEPALIVE)


class ResponsesRequest(ParsedRequest, frozen=True, kw_only=True):
    """A request with its conversation; it makes the renderer of its answer."""

    decoded: DecodedRequest
    shape: ResponsesShape
    sealer: TextSealer | None = None
    """Set where the answer is a compaction item: seals the model's summary."""
    user_messages: Sequence[Raw] | None = None
    """Set for POST /v1/responses/compact: the messages that its document repeats."""

    def without_input(self) -> "ResponsesRequest":
        """Returns the request of a response that is not stored."""
        return replace(self, decoded=self.decoded.without_input())

    @override
    def renderer(self, answer: RenderInfo) -> ResponseRenderer:
        if self.sealer is not None:
            return SummaryStream(answer, self.shape, self.sealer)
        return ResponsesStream(answer, self.shape)

    @override
    def collector(self, answer: RenderInfo) -> ResponsesCollector:
        return ResponsesCollector(self.renderer(answer), self.user_messages)


class Responses:
    """Reads requests of the Responses API. One instance serves all requests."""

    def __init__(self, served: Collection[str] = ()) -> None:
        """`served`: the kinds of hosted tools that this server runs."""
        self._served = frozenset(served)
        self._tools: Memo[RequestTools] = Memo()
        self._echoes: Memo[Raw] = Memo()

    def decode(self, data: bytes) -> DecodedRequest:
        """Decodes a request and remembers the echo of its tools. Raises Invalid."""
        return decode(data, self._echoes)

    def convert(
        self,
        decoded: DecodedRequest,
        headers: Headers,
        history: Sequence[Raw] = (),
        *,
        sealer: TextSealer | None = None,
        counting: bool = False,
        compacting: bool = False,
    ) -> ResponsesRequest:
        """Converts a request to a conversation. Raises Invalid; NotFound for a reference that was
        not resolved.

        Args:
            history: the items of the responses that it continues.
            sealer: opens compaction items, and seals a new one where the input ends in a
                `compaction_trigger` or `compacting` is set.
            counting: only the size of the prompt is needed.
        """
        body = decoded.body
        tools = read_tools(body.tools or [], self._tools, self._served)
        if decoded.references:
            raise not_found("Item", decoded.references[0], "input")
        compacting = ends_in_trigger(decoded) or compacting
        if compacting and sealer is None and not counting:
            raise Invalid(
                "This server cannot compact: it has no key to seal with.",
                param="input",
                code=TRIGGER,
            )

        items = ItemReader(tools, sealer, pairing=not counting)
        items.read(decoded, history)
        built = conversation.build(decoded, headers, tools, items)
        if compacting:
            built = request_summary(built)

        notes = [*tools.dropped, *items.notes, *_ignored(body)]
        return ResponsesRequest(
            decoded=decoded,
            conversation=built,
            stream=bool(body.stream),
            notes=notes,
            shape=_shape(decoded, tools, built, compacted=items.compacted),
            may_shorten=body.truncation == "auto",
            sealer=sealer if compacting else None,
        )


def _ignored(body: wire.ResponsesBody) -> list[str]:
    """The fields of the request that this server has nothing for."""
    fields = []
    if is_set(body.moderation):
        fields.append("moderation")
    if body.multi_agent is not None and body.multi_agent.enabled:
        fields.append("multi_agent")
    return fields


def _shape(
    decoded: DecodedRequest, tools: RequestTools, built: Conversation, *, compacted: bool
) -> ResponsesShape:
    include = decoded.body.include or ()
    return ResponsesShape(
        names=tools.names,
        namespaces=tools.namespaces,
        echo=decoded.echo,
        sealed=REASONING_SEALED in include,
        summary=decoded.reasoning.summary not in (None, "none"),
        sources=SOURCES in include,
        logprobs=built.sampling.logprobs is not None,
        prompt_only=decoded.prompt_only,
        compared=decoded.comparison is not None,
        compacted=compacted,
    )
