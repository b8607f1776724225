"""The interface between an API and the HTTP application: `Api` describes one, `Mount` takes its
routes and answers requests."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from aiohttp import web
from msgspec import Raw, Struct
from prometheus_client import CollectorRegistry

from services.frontend.apis.shared.client import header_flag
from services.frontend.http.bodies import is_large, read_body, run_in_thread_if
from services.frontend.http.errors import ErrorFormat
from services.frontend.http.middleware import REQUEST_CONTEXT, RequestContext
from services.frontend.http.sse import EventStream, SseWriter
from services.frontend.turns.answer import OnEnd, OpenAnswer, Shorten
from services.frontend.turns.interfaces import (
    Admitted,
    AnswerInfo,
    Dialect,
    ParsedRequest,
    Pipeline,
    Renderer,
)
from services.frontend.turns.sinks import DocumentSink, StreamSink
from services.frontend.turns.turn_runner import TurnRunner
from services.runtime.config import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger
from services.runtime.requests import after_sending

DISPATCH_HEADER = "x-turnwire-tool-dispatch"
REASONING_DISPATCH_HEADER = "x-turnwire-reasoning-dispatch"


class Query(Struct, frozen=True):
    """A parameter of the query string."""

    name: str
    schema: dict[str, object]
    description: str


class Operation(Struct, frozen=True):
    """One method of one path, for the OpenAPI document."""

    path: str
    summary: str
    method: Literal["get", "post", "delete"] = "post"
    answer: object = None
    """The type of the JSON answer."""
    body: object = None
    """The type of the request's body."""
    required: tuple[str, ...] = ()
    """Members of the body that are optional in its type and required by this operation."""
    example: object = None
    """A request body to start with."""
    events: object = ""
    """The answer may also be a stream of events: the union of their types, or a pattern of their
    names ("message" for events without one)."""
    text: bool = False
    """The answer is text instead of JSON."""
    query: tuple[Query, ...] = ()
    id: str = ""
    """Description of `{id}` in the path."""
    unavailable: bool = False
    """The answer may also have status 503, while the server cannot serve turns."""
    cached: bool = False
    """The answer has an ETag and may be 304."""
    upgrade: bool = False
    """Opens a WebSocket; other requests get 426."""
    public: bool = False
    """Needs no key and returns no errors of its own."""


class Api(Struct, frozen=True, kw_only=True):
    """One HTTP API. A module or package under `apis/` exports one as `API`; `app.APIS` lists them."""

    name: str
    """Prefix of its types in the OpenAPI document."""
    title: str
    """Its group in the OpenAPI document."""
    errors: ErrorFormat
    paths: tuple[str, ...] = ()
    """Errors under these paths have its format, even on unknown paths; errors elsewhere have the
    shared format."""
    operations: tuple[Operation, ...]
    parts: tuple[type, ...] = ()
    """Types of parts of answers that the types of answers and events do not contain, but name."""
    mount: "Callable[[Mount], None]"
    """Adds the handlers of its operations."""
    enabled: Callable[[FrontendConfig], bool] = lambda _: True


A = TypeVar("A", bound=ParsedRequest)
Prepare: TypeAlias = Callable[[Any, RequestContext], Awaitable[Any]]
"""Returns the request that replaces a parsed one. Raises TurnwireError."""
Read: TypeAlias = Callable[[], Awaitable[ParsedRequest]]
"""Reads and parses the request. Raises TurnwireError."""


def json_response(body: bytes | Raw, status: int = 200) -> web.Response:
    """An answer that is a JSON document."""
    return web.Response(status=status, body=bytes(body), content_type="application/json")


@dataclass
class Mount:
    """The application as its APIs see it."""

    app: web.Application
    config: FrontendConfig
    pipeline: Pipeline
    """For its state; requests go through `runner`."""
    runner: TurnRunner
    registry: CollectorRegistry
    log: FilteringBoundLogger
    apis: tuple[Api, ...]
    """All mounted APIs."""

    def add_turns(self, path: str, dialect: Dialect, prepare: Prepare | None = None) -> None:
        """Adds a POST route that creates turns. `prepare` changes a parsed request with the help of
        the pipeline."""

        async def create(request: web.Request) -> web.StreamResponse:
            async def read() -> Any:
                body = await read_body(request, self.config.max_body_bytes)
                ask = await run_in_thread_if(
                    is_large(body), lambda: dialect.parse(body, request.headers)
                )
                return ask if prepare is None else await prepare(ask, request[REQUEST_CONTEXT])

            return await self.serve(request, dialect, read)

        self.app.router.add_post(path, create)

    def add_count(
        self,
        path: str,
        parse: Callable[[bytes, Mapping[str, str]], A],
        answer: Callable[[A, int], bytes],
        prepare: Prepare | None = None,
    ) -> None:
        """Adds a POST route that returns the exact size of a request's prompt."""

        async def count(request: web.Request) -> web.Response:
            body = await read_body(request, self.config.max_body_bytes)
            ask = await run_in_thread_if(is_large(body), lambda: parse(body, request.headers))
            context = request[REQUEST_CONTEXT]
            if prepare is not None:
                ask = await prepare(ask, context)
            conversation = ask.conversations[0]
            tokens = await self.runner.count(conversation, context)
            context.fields |= {"model": conversation.model, "prompt_tokens": tokens}
            return json_response(answer(ask, tokens))

        self.app.router.add_post(path, count)

    async def serve(
        self,
        request: web.Request,
        dialect: Dialect,
        read: Read,
        *,
        on_end: OnEnd | None = None,
        shorten: Shorten | None = None,
        wrap: Callable[[Any], Renderer] | None = None,
    ) -> web.StreamResponse:
        """Answers one HTTP request with turns. Raises TurnwireError before the first byte of the
        response is sent.

        `wrap`: makes the renderer of a stream from the request's own.
        """
        context, runner = request[REQUEST_CONTEXT], self.runner
        answer = runner.answer(
            context, dialect.name, started=context.started, on_end=on_end, shorten=shorten
        )
        with ExitStack() as stack:

            async def begin() -> tuple[Sequence[Admitted], StreamSink[SseWriter] | DocumentSink]:
                stack.enter_context(context.open_request())
                ask = await read()
                answer.record.stream = ask.stream
                admitted = await runner.admit(ask, answer)
                return admitted, self._sink(request, dialect, ask, answer, wrap)

            try:
                sink = await runner.run(answer, begin)
            finally:
                context.outcome = answer.record.outcome
                context.fields |= answer.record.fields()
        if isinstance(sink, StreamSink):
            return sink.get_ready()[1].response
        return web.Response(body=sink.body, content_type="application/json")

    def _sink(
        self,
        request: web.Request,
        dialect: Dialect,
        ask: ParsedRequest,
        answer: OpenAnswer,
        wrap: Callable[[Any], Renderer] | None,
    ) -> StreamSink[SseWriter] | DocumentSink:
        """Makes the sink of an HTTP answer."""
        choices, runner = len(ask.conversations), self.runner

        def reply() -> AnswerInfo:
            config, headers = self.config, request.headers
            return runner.reply(
                answer.context,
                ask.conversations[0],
                dispatch=header_flag(
                    headers, DISPATCH_HEADER, config.enable_streaming_tool_dispatch
                ),
                dispatch_reasoning=header_flag(
                    headers, REASONING_DISPATCH_HEADER, config.enable_streaming_reasoning_dispatch
                ),
            )

        def stream() -> tuple[Renderer, SseWriter]:
            writer = SseWriter(
                request, EventStream(request), self.config, dialect.keepalive, on_slow=on_slow
            )
            renderer = ask.renderer(reply())
            return renderer if wrap is None else wrap(renderer), writer

        def on_slow() -> None:
            answer.record.outcome = "slow_reader"
            answer.cancel("slow_reader")

        if not ask.stream:
            return DocumentSink(answer, lambda: ask.collector(reply()), choices)
        sink = StreamSink(answer, runner.flusher, stream, choices)
        after_sending(sink.get_ready)  # the preprocessor gets the request first
        return sink
