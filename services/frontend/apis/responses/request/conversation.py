"""Builds the `Conversation` of a Responses request."""

from collections.abc import Mapping
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
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.request import tools
from services.frontend.apis.responses.request.body import LOGPROBS, TRIGGER, ResponsesRequest
from services.frontend.apis.responses.request.items import ItemReader
from services.frontend.apis.responses.request.tools import RequestTools
from services.frontend.apis.shared.client import with_client
from services.frontend.apis.shared.decode import is_set
from services.frontend.apis.shared.openai.wording import missing_parameter
from services.frontend.apis.shared.sampling_fields import hints, sampling_of
from services.frontend.hosted.tools import missing_tools

_HISTORY: dict[str | None, Any] = {"all_turns": "keep", "current_turn": "drop"}


def build(
    request: ResponsesRequest, headers: Mapping[str, str], offered: RequestTools, items: ItemReader
) -> Conversation:
    """Builds the conversation from the items that `items` has read. Raises Invalid."""
    body = request.body
    if not items.messages and not body.instructions and request.model and body.input is None:
        raise missing_parameter("input")
    reasoning, text = _settings(request, items)
    compared = ""
    if request.comparison is not None:
        compared = (
            request.comparison.removeprefix("resp_") or "resp_"
        )  # an empty id is none that a turn has
    specs = offered.final_specs()
    if body.max_tool_calls is not None:
        specs = [_limit_uses(spec, body.max_tool_calls) for spec in specs]
    conversation = Conversation(
        request.model,
        items.messages or [Message("user", [])],
        system=[
            *([Text(body.instructions)] if body.instructions else []),
            *missing_tools(offered.dropped),
        ],
        tools=specs,
        tool_choice=tools.choice(request, offered),
        thinking=_thinking(reasoning),
        sampling=_sampling(request),
        format=_format(text),
        template_kwargs=body.chat_template_kwargs or {},
        verbosity=text.verbosity,
        hints=hints(
            body.nvext, priority=body.priority, cache_salt=body.cache_salt, ttl=request.cache_ttl
        ),
        prefill=False,
    )
    return with_client(conversation, headers, body.prompt_cache_key, compare=compared)


def _limit_uses(spec: ToolSpec, calls: int) -> ToolSpec:
    return (
        spec if spec.hosted is None else replace(spec, hosted=replace(spec.hosted, max_uses=calls))
    )


def ends_in_trigger(request: ResponsesRequest) -> bool:
    """Whether the last item is a compaction trigger. Raises Invalid for one in another place."""
    kinds = request.kinds[request.earlier :]
    for index, kind in enumerate(kinds[:-1]):
        if kind.type == TRIGGER:
            raise Invalid(
                "A compaction_trigger must be the last item.",
                param=f"input[{index}]",
                code="invalid_value",
            )
    return bool(kinds) and kinds[-1].type == TRIGGER


def _settings(
    request: ResponsesRequest, items: ItemReader
) -> tuple[wire.Reasoning, wire.TextConfig]:
    """The request's reasoning and text settings, with the changes of a configuration update."""
    reasoning, text = request.reasoning, request.text
    if is_set(items.reasoning):
        update = convert(wire.Reasoning, items.reasoning, "input.reasoning")
        limit = reasoning.max_tokens if update.max_tokens is None else update.max_tokens
        reasoning = replace(reasoning, effort=update.effort or reasoning.effort, max_tokens=limit)
    if is_set(items.text):
        changed = convert(wire.TextConfig, items.text, "input.text")
        text = wire.TextConfig(changed.format or text.format, changed.verbosity or text.verbosity)
    return reasoning, text


def _thinking(reasoning: wire.Reasoning) -> Thinking:
    history = _HISTORY.get(reasoning.context, "default")
    effort, budget = reasoning.effort, reasoning.max_tokens
    if effort is None and budget is None:
        return Thinking(history=history)
    mode: Any = "disabled" if effort == "none" or budget == 0 else "enabled"
    return Thinking(mode, budget, effort, history=history)


def _sampling(request: ResponsesRequest) -> Sampling:
    body = request.body
    try:
        bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    except ValueError:
        message = "Invalid key in 'logit_bias': keys must be token ids."
        raise Invalid(message, param="logit_bias", code="invalid_value") from None
    return sampling_of(
        body,
        max_tokens=0 if request.prefill else body.max_output_tokens,
        logprobs=(body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
        stop_token_ids=body.stop_token_ids,
        include_stop=body.include_stop_str_in_output,
        logit_bias=bias,
    )


def _format(text: wire.TextConfig) -> OutputFormat | None:
    form = text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return OutputFormat("json_object")
    if form.schema is None or not form.name:
        raise missing_parameter(
            "text.format.name" if form.schema is not None else "text.format.schema"
        )
    return OutputFormat("json_schema", schema=form.schema, name=form.name, strict=form.strict)
