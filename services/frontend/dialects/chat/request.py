"""A Chat Completions request as a `Conversation`.

What each field does is the table of `apis.md` C.1 and `docs/chat.md`: honoured, skipped, or refused. Refused is only
what would silently change the answer's meaning (audio output, forms of output that cannot be kept, files).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import get_args

from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.conversation import Client, Conversation, OutputFormat, ToolSpec
from schemas.errors import Invalid
from services.frontend.dialects.base import Collector, Renderer, Reply
from services.frontend.dialects.chat import tools, wire
from services.frontend.dialects.chat.history import History
from services.frontend.dialects.chat.response import ChatCollector
from services.frontend.dialects.chat.shape import ReasoningField, ReasoningPlace, Settings, Shape, answered_tier
from services.frontend.dialects.chat.stream import ChatStream
from services.frontend.dialects.chat.thinking import EFFORTS, thinking
from services.frontend.dialects.decode import decode_body
from services.frontend.dialects.hints import hints
from services.frontend.dialects.known_parts import KnownParts, UnreadBody
from services.frontend.dialects.openai_wording import explainer, missing_parameter, unsupported
from services.frontend.dialects.sampling_fields import output_format, sampling, seed_of_choice

REASONING_FIELD_HEADER = "x-turnwire-reasoning-field"
REASONING_DETAILS_HEADER = "x-turnwire-reasoning-details"

_bodies = UnreadBody(wire.Body, tools=(Raw, wire.NULL))
_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id")
_explain = explainer(
    {
        "role": ("developer", "system", "user", "assistant", "tool", "function"),
        "content.type": tuple(str(part.__struct_config__.tag) for part in get_args(wire.Part)),
        "tool_calls.type": ("function", "custom"),
        "tools.type": ("function", "custom"),
        "tool_choice.type": ("function", "custom", "allowed_tools"),
        "allowed_tools.mode": ("auto", "required"),
        "response_format.type": ("text", "json_object", "json_schema"),
        "format.type": ("text", "grammar"),
        "grammar.syntax": ("lark", "regex"),
        "thinking.type": ("enabled", "disabled", "adaptive", "auto"),
        "reasoning_effort": EFFORTS,
        "verbosity": ("low", "medium", "high"),
    }
)


class ChatAsk(Struct, frozen=True):
    """One understood request."""

    conversation: Conversation
    choices: int
    stream: bool
    notes: list[str]
    shape: Shape

    @property
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice; where a seed is given, each has its own."""
        seed = self.conversation.sampling.seed
        if seed is None or self.choices == 1:
            return (self.conversation,) * self.choices
        return tuple(
            replace(self.conversation, sampling=replace(self.conversation.sampling, seed=seed_of_choice(seed, choice)))
            for choice in range(self.choices)
        )

    def renderer(self, reply: Reply) -> Renderer:
        """The streamed answer."""
        return ChatStream(reply, self.shape, self.choices)

    def collector(self, reply: Reply) -> Collector:
        """The answer in one piece."""
        return ChatCollector(reply, self.shape, self.choices)


def parse(
    body: bytes,
    headers: Mapping[str, str],
    settings: Settings,
    *,
    counting: bool = False,
    known: KnownParts[tools.Tools] | None = None,
) -> ChatAsk:
    """Understands the request. Raises Invalid in the native wording. `known`: tools of earlier requests.

    `counting`: only the prompt is wanted, so that calls and results need not match.
    """
    parts = KnownParts[tools.Tools]() if known is None else known
    request, given_tools = decode_body(
        lambda data: _bodies.read(data, partial(tools.take, known=parts)), body, _explain
    )
    if not request.messages:
        raise Invalid("Invalid 'messages': empty array. Expected at least one message.", param="messages")
    _refuse(request)
    specs = tools.specs(request, given_tools)
    history = History(pairing=not counting)
    history.read(request.messages)
    conversation = Conversation(
        request.model,
        history.turns,
        tools=specs,
        tool_choice=tools.choice(request, specs),
        thinking=thinking(request),
        sampling=sampling(request, max_tokens=_limit(request), logprobs=_logprobs(request)),
        format=output_format(request, _format(request)),
        template_kwargs={**(request.chat_template_args or {}), **(request.chat_template_kwargs or {})},
        client=Client(session=_session(request, headers), user_agent=headers.get("user-agent")),
        verbosity=request.verbosity,
        hints=hints(request.nvext, priority=request.priority, cache_salt=request.cache_salt),
        prefill=_continues(request),
    )
    notes = ["web_search_options"] if bytes(request.web_search_options) != b"null" else []
    shape = _shape(request, specs, headers, settings)
    return ChatAsk(conversation, request.n or 1, bool(request.stream), notes, shape)


def _refuse(request: wire.Body) -> None:
    if "audio" in (request.modalities or ()):
        raise unsupported("modalities", "'audio' is not supported by this server")
    if request.chat_template is not None:
        raise unsupported("chat_template")


def _limit(request: wire.Body) -> int | None:
    given = request.max_completion_tokens
    return request.max_tokens if given is None else given


def _logprobs(request: wire.Body) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
        raise Invalid(message, param="top_logprobs", code="invalid_value")
    return None


def _format(request: wire.Body) -> OutputFormat | None:
    given = request.response_format
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return OutputFormat("json_object")
    if given.json_schema is None:
        raise missing_parameter("response_format.json_schema")
    schema = given.json_schema
    if schema.schema is None:
        return OutputFormat("json_object", name=schema.name, strict=schema.strict)
    return OutputFormat("json_schema", schema.schema, schema.name, schema.strict)


def _continues(request: wire.Body) -> bool:
    last = request.messages[-1]
    return bool(request.continue_final_message or last.prefix or last.partial)


def _session(request: wire.Body, headers: Mapping[str, str]) -> str | None:
    for name in _SESSION_HEADERS:
        if headers.get(name):
            return headers[name]
    key = request.prompt_cache_key
    return key if isinstance(key, str) and key else None


def _shape(request: wire.Body, specs: Sequence[ToolSpec], headers: Mapping[str, str], settings: Settings) -> Shape:
    options = request.stream_options
    return Shape(
        reasoning=_reasoning(request, headers, settings),
        details=_wish(headers.get(REASONING_DETAILS_HEADER), settings.reasoning_details),
        legacy=tools.legacy(request),
        freeform=frozenset(tool.name for tool in specs if tool.kind == "custom"),
        logprobs=bool(request.logprobs),
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        service_tier=answered_tier(request.service_tier),
        fingerprint=settings.fingerprint,
    )


def _reasoning(request: wire.Body, headers: Mapping[str, str], settings: Settings) -> ReasoningPlace:
    if request.include_reasoning is False or (request.reasoning is not None and request.reasoning.exclude):
        return "omitted"
    if request.separate_reasoning is False:
        return "inline"
    given = headers.get(REASONING_FIELD_HEADER)
    return next((field for field in get_args(ReasoningField) if field == given), settings.reasoning_field)


def _wish(given: str | None, default: bool) -> bool:
    return default if given is None else given.lower() in ("1", "true")
