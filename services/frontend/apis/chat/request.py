"""Parses a Chat Completions request into a `Conversation`.

`docs/chat.md` lists what each field does. Fields that would silently change the meaning of the
answer are refused (audio output, unsupported output formats, files); unknown fields are ignored.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Conversation, Message, OutputFormat, Thinking, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.chat import tools, wire
from services.frontend.apis.chat.content import without_unknown_parts
from services.frontend.apis.chat.history import ChatHistoryReader
from services.frontend.apis.chat.render import (
    ChatCollector,
    ChatSettings,
    ChatShape,
    ReasoningField,
    ReasoningPlace,
    chat_stream,
)
from services.frontend.apis.shared.client import Headers, header_flag, with_client
from services.frontend.apis.shared.decode import BodyDecoder, ToolList, share_texts
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.openai.chunks import PING
from services.frontend.apis.shared.openai.wording import (
    Explainer,
    empty_array,
    invalid_value,
    missing_parameter,
    unknown_parameter,
    unsupported,
)
from services.frontend.apis.shared.sampling_fields import (
    for_choice,
    guided_format,
    openai_hints,
    openai_sampling,
)
from services.frontend.apis.shared.unknown_parts import UnknownParts
from services.frontend.turns.interfaces import (
    ApiDialect,
    Collector,
    ParsedRequest,
    Renderer,
    RenderInfo,
)

DIALECT = ApiDialect("chat", PING)

REASONING_FIELD_HEADER = "x-turnwire-reasoning-field"
REASONING_DETAILS_HEADER = "x-turnwire-reasoning-details"

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TIERS = ("default", "flex", "scale", "priority")
_UNSPECIFIED = ("auto", "default")
_explainer = Explainer(
    {
        "role": ("developer", "system", "user", "assistant", "tool", "function"),
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

Mode: TypeAlias = Literal["default", "enabled", "adaptive", "disabled"]


class ChatRequest(ParsedRequest, frozen=True, kw_only=True):
    """A parsed request."""

    shape: ChatShape

    @property
    @override
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice; a `seed` is varied by choice."""
        return [for_choice(self.conversation, choice) for choice in range(self.choices)]

    @override
    def renderer(self, answer: RenderInfo) -> Renderer:
        return chat_stream(answer, self.shape, self.choices)

    @override
    def collector(self, answer: RenderInfo) -> Collector:
        answer = replace(answer, dispatch=False, dispatch_reasoning=False)
        return ChatCollector(chat_stream(answer, self.shape.for_document(), self.choices))


def _check(request: wire.ChatBody) -> None:
    """Refuses what this server lacks. Raises Invalid."""
    if not request.messages:
        raise empty_array("messages")
    if "audio" in (request.modalities or ()):
        raise unsupported("modalities", "'audio' is not supported by this server")


def _conversation(
    request: wire.ChatBody, offered: tools.OfferedTools, messages: list[Message]
) -> Conversation:
    limit = request.max_completion_tokens
    if limit is None:
        limit = request.max_tokens
    last = request.messages[-1]
    return Conversation(
        request.model,
        messages,
        system=offered.missing,
        tools=offered.specs,
        tool_choice=tools.choice(request, offered.specs),
        thinking=thinking(request),
        sampling=openai_sampling(request, max_tokens=limit, logprobs=_logprobs(request)),
        format=_format(request) or guided_format(request),
        template_kwargs={
            **(request.chat_template_args or {}),
            **(request.chat_template_kwargs or {}),
        },
        verbosity=request.verbosity,
        hints=openai_hints(request),
        continues_answer=bool(request.continue_final_message or last.prefix or last.partial),
    )


def _ignored(request: wire.ChatBody) -> list[str]:
    """The fields that ask for what this server lacks."""
    fields: list[str] = []
    if request.store:
        fields.append("store")
    if is_set(request.moderation):
        fields.append("moderation")
    return fields


def _logprobs(request: wire.ChatBody) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
        raise Invalid(message, param="top_logprobs", code="invalid_value")
    return None


def _format(request: wire.ChatBody) -> OutputFormat | None:
    response_format = request.response_format
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return OutputFormat("json_object")
    if response_format.json_schema is None:
        raise missing_parameter("response_format.json_schema")
    schema = response_format.json_schema
    if schema.schema is None:
        return OutputFormat("json_object", name=schema.name, strict=schema.strict)
    return OutputFormat("json_schema", schema.schema, schema.name, schema.strict)


def _shape(
    request: wire.ChatBody,
    specs: Sequence[ToolSpec],
    headers: Headers,
    settings: ChatSettings,
) -> ChatShape:
    return ChatShape(
        reasoning=_reasoning(request, headers, settings),
        details=header_flag(headers, REASONING_DETAILS_HEADER, settings.reasoning_details),
        legacy=tools.legacy(request),
        freeform=frozenset(tool.name for tool in specs if tool.kind == "custom"),
        logprobs=bool(request.logprobs) and not request.return_token_ids,
        include_usage=request.includes_usage,
        continuous_usage=request.continuous_usage,
        service_tier=_tier(request.service_tier),
        fingerprint=settings.fingerprint,
    )


def _reasoning(request: wire.ChatBody, headers: Headers, settings: ChatSettings) -> ReasoningPlace:
    excluded = request.reasoning is not None and request.reasoning.exclude
    if excluded or request.include_reasoning is False:
        return "omitted"
    if request.separate_reasoning is False:
        return "inline"
    name = headers.get(REASONING_FIELD_HEADER)
    field: ReasoningField
    for field in get_args(ReasoningField):
        if field == name:
            return field
    return settings.reasoning_field


def thinking(body: wire.ChatBody) -> Thinking:
    """The request's thinking settings, from any of the ecosystem's fields. Raises Invalid for an
    unknown effort.

    In order of precedence: `thinking` (DeepSeek, GLM, Kimi; Dynamo's boolean), `reasoning`
    (OpenRouter), `enable_thinking` (Qwen's API), `reasoning_effort`. The client's
    `chat_template_kwargs` are applied later, over all of them. An effort or a budget without a
    switch turns reasoning on; the effort `none` and a budget of 0 turn it off.
    """
    options = body.reasoning or wire.ReasoningOptions()
    effort = _effort(body.reasoning_effort, "reasoning_effort")
    if effort is None:
        effort = _effort(options.effort, "reasoning.effort")
    budget = _budget(body, options)
    mode = _mode(body, options)
    if mode is not None:
        return Thinking(mode, budget, effort)
    if effort == "none" or budget == 0:
        return Thinking("disabled", budget, effort)
    is_set_at_all = effort is not None or budget is not None
    return Thinking("adaptive" if is_set_at_all else "default", budget, effort)


def _budget(body: wire.ChatBody, options: wire.ReasoningOptions) -> int | None:
    """The limit of reasoning tokens in the first field that has one."""
    switch = body.thinking
    budgets = [options.max_tokens, body.thinking_budget, body.thinking_token_budget]
    if isinstance(switch, wire.ChatThinking):
        budgets.insert(0, switch.budget_tokens)
    for budget in budgets:
        if budget is not None:
            return budget
    return None


def _mode(body: wire.ChatBody, options: wire.ReasoningOptions) -> Mode | None:
    setting = body.thinking
    if isinstance(setting, wire.ChatThinking):
        return "adaptive" if setting.type == "auto" else setting.type
    for switch in (setting, options.enabled, body.enable_thinking):
        if switch is not None:
            return "enabled" if switch else "disabled"
    return None


def _effort(effort: str | None, field_path: str) -> str | None:
    if effort is None or effort in _UNSPECIFIED:
        return None
    if effort not in EFFORTS:
        raise invalid_value(effort, field_path, EFFORTS)
    return effort


def _tier(requested: object) -> str | None:
    """`service_tier` of the answer, if the request names one."""
    if not isinstance(requested, str):
        return None
    return requested if requested in _TIERS else "default"


class ChatBodies(BodyDecoder[wire.ChatBody, ToolList]):
    """Decodes the bodies of Chat Completions."""

    def __init__(self) -> None:
        super().__init__(wire.ChatBody)

    @override
    def _read_tools(self, data: bytes) -> ToolList:
        return tools.read_tools(data)

    @override
    def _without_unknown(self, data: bytes, unknown: UnknownParts) -> bytes:
        return without_unknown_parts(data, unknown)

    @override
    def _explain(self, body: bytes, message: str) -> Invalid:
        return _explainer(body, message)

    @override
    def _refuse(self, name: str) -> Invalid:
        return unknown_parameter(name)


class Chat:
    """Reads requests of Chat Completions. Pure, except for its memo of tools. One instance serves
    every request."""

    def __init__(self, settings: ChatSettings = ChatSettings()) -> None:  # noqa: B008 (frozen)
        self._settings = settings
        self._bodies = ChatBodies()

    def parse(self, body: bytes, headers: Headers) -> ChatRequest:
        """Parses POST /v1/chat/completions. Raises Invalid in the native wording."""
        request = self._parse(body, headers, counting=False)
        share_texts(request.conversation, self._bodies.memo)
        return request

    def parse_prompt(self, body: bytes, headers: Headers) -> ChatRequest:
        """Parses a request for its prompt only; calls and results may be unmatched. Raises
        Invalid."""
        return self._parse(body, headers, counting=True)

    def _parse(self, body: bytes, headers: Headers, *, counting: bool) -> ChatRequest:
        request, request_tools, unknown = self._bodies.decode(body)
        _check(request)
        offered = tools.offered(request, request_tools, self._settings.served)

        history = ChatHistoryReader(pairing=not counting)
        history.read(request.messages)

        conversation = _conversation(request, offered, history.messages)
        conversation = with_client(conversation, headers, request.session)
        notes = [*_ignored(request), *offered.dropped, *unknown]
        shape = _shape(request, offered.specs, headers, self._settings)
        return ChatRequest(
            conversation=conversation,
            choices=request.n or 1,
            stream=bool(request.stream),
            notes=notes,
            shape=shape,
        )
