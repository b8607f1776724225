"""Builds the `Conversation` of a Responses request."""

from typing import Any

from msgspec.structs import replace

from schemas.conversation import (
    Conversation,
    Message,
    OutputFormat,
    Sampling,
    Text,
    Thinking,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.body import LOGPROBS, DecodedRequest
from services.frontend.apis.responses.parse.items.reader import ItemReader
from services.frontend.apis.responses.parse.members import convert
from services.frontend.apis.responses.parse.tools.choice import choice_of
from services.frontend.apis.responses.parse.tools.request_tools import RequestTools
from services.frontend.apis.shared.client import Headers, with_client
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.openai.wording import missing_parameter
from services.frontend.apis.shared.sampling_fields import hints, sampling_of
from services.frontend.content.hosted_tools import missing_tools

_HISTORY: dict[str | None, Any] = {"all_turns": "keep", "current_turn": "drop"}


def build(
    decoded: DecodedRequest, headers: Headers, tools: RequestTools, items: ItemReader
) -> Conversation:
    """Builds the conversation from the items that `items` has read. Raises Invalid."""
    body = decoded.body
    if not items.messages and not body.instructions and decoded.model and body.input is None:
        raise missing_parameter("input")
    reasoning = _reasoning(decoded, items)
    text = _text(decoded, items)
    conversation = Conversation(
        decoded.model,
        items.messages or [Message("user", [])],
        system=_system(decoded, tools),
        tools=_specs(decoded, tools),
        tool_choice=choice_of(decoded, tools),
        thinking=_thinking(reasoning),
        sampling=_sampling(decoded),
        format=_format(text),
        template_kwargs=body.chat_template_kwargs or {},
        verbosity=text.verbosity,
        hints=hints(
            body.nvext, priority=body.priority, cache_salt=body.cache_salt, ttl=decoded.cache_ttl
        ),
        continues_answer=False,
    )
    compare = _compared_turn(decoded)
    return with_client(conversation, headers, body.prompt_cache_key, compare=compare)


def _system(decoded: DecodedRequest, tools: RequestTools) -> list[Text]:
    texts = missing_tools(tools.dropped)
    if decoded.body.instructions:
        return [Text(decoded.body.instructions), *texts]
    return texts


def _specs(decoded: DecodedRequest, tools: RequestTools) -> list[ToolSpec]:
    """The tools; `max_tool_calls` limits those that this server runs."""
    specs = tools.final_specs()
    limit = decoded.body.max_tool_calls
    if limit is None:
        return specs
    return [_limited(spec, limit) for spec in specs]


def _limited(spec: ToolSpec, calls: int) -> ToolSpec:
    if not spec.hosted:
        return spec
    return replace(spec, hosted=replace(spec.hosted, max_uses=calls))


def _compared_turn(decoded: DecodedRequest) -> str:
    """The id of the turn that the prompt is compared with; "" for none."""
    if decoded.comparison is None:
        return ""
    # An empty id would mean that there is nothing to compare with; no turn has the id `resp_`.
    return decoded.comparison.removeprefix("resp_") or "resp_"


def _reasoning(decoded: DecodedRequest, items: ItemReader) -> wire.ResponsesReasoning:
    """The reasoning settings, with the changes of a configuration update."""
    settings = decoded.reasoning
    if not is_set(items.reasoning):
        return settings
    update = convert(wire.ResponsesReasoning, items.reasoning, "input.reasoning")
    limit = settings.max_tokens if update.max_tokens is None else update.max_tokens
    return replace(settings, effort=update.effort or settings.effort, max_tokens=limit)


def _text(decoded: DecodedRequest, items: ItemReader) -> wire.TextConfig:
    """The text settings, with the changes of a configuration update."""
    settings = decoded.text
    if not is_set(items.text):
        return settings
    update = convert(wire.TextConfig, items.text, "input.text")
    return wire.TextConfig(update.format or settings.format, update.verbosity or settings.verbosity)


def _thinking(settings: wire.ResponsesReasoning) -> Thinking:
    history = _HISTORY.get(settings.context, "default")
    effort = settings.effort
    budget = settings.max_tokens
    if effort is None and budget is None:
        return Thinking(history=history)
    if effort == "none" or budget == 0:
        return Thinking("disabled", budget, effort, history=history)
    return Thinking("enabled", budget, effort, history=history)


def _sampling(decoded: DecodedRequest) -> Sampling:
    body = decoded.body
    stop = body.stop
    return sampling_of(
        body,
        max_tokens=0 if decoded.prompt_only else body.max_output_tokens,
        logprobs=_logprobs(body),
        stop=[stop] if isinstance(stop, str) else stop,
        stop_token_ids=body.stop_token_ids,
        include_stop=body.include_stop_str_in_output,
        logit_bias=_logit_bias(body),
    )


def _logprobs(body: wire.ResponsesBody) -> int | None:
    if LOGPROBS not in (body.include or ()):
        return None
    return body.top_logprobs or 0


def _logit_bias(body: wire.ResponsesBody) -> dict[int, float]:
    try:
        return {int(token): value for token, value in (body.logit_bias or {}).items()}
    except ValueError:
        message = "Invalid key in 'logit_bias': keys must be token ids."
        raise Invalid(message, param="logit_bias", code="invalid_value") from None


def _format(settings: wire.TextConfig) -> OutputFormat | None:
    form = settings.format
    if not form or form.type == "text":
        return None
    if form.type == "json_object":
        return OutputFormat("json_object")
    if form.schema is None:
        raise missing_parameter("text.format.schema")
    if not form.name:
        raise missing_parameter("text.format.name")
    return OutputFormat("json_schema", schema=form.schema, name=form.name, strict=form.strict)
