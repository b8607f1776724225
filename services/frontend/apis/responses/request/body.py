"""Decodes and checks the body of a Responses request. Members that are stored or echoed stay raw.

This needs neither store nor key: the caller fetches the objects that `previous_response_id` and
`references` name.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from schemas.errors import Invalid
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import convert, explain, not_found
from services.frontend.apis.shared.decode import body_decoder, decode_body, is_set
from services.frontend.apis.shared.openai.wording import missing_parameter, unsupported
from services.runtime.memo import Memo

REASONING_SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
SOURCES = "web_search_call.action.sources"
MESSAGE = "message"
TRIGGER = "compaction_trigger"
_REFERENCE = "item_reference"
_MOVED = {
    "messages": "input",
    "system": "instructions",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""Fields of other APIs, and their names here."""
S = TypeVar("S", wire.Reasoning, wire.TextConfig, wire.CacheOptions)

_TOOL_DEFAULTS = dict.fromkeys(("description", "parameters", "strict"), Raw(b"null"))


class ResponsesRequest(Struct, frozen=True):
    """A request as the client sent it, with every check that needs no history."""

    body: wire.Body
    items: list[Raw]
    """The input items, as the client spelled them; a string becomes one user message."""
    kinds: list[wire.ItemKind]
    """The kind of each item."""
    reasoning: wire.Reasoning
    text: wire.TextConfig
    echo: dict[str, Any]
    """The members of a Response object that repeat the request."""
    prefill: bool
    """Only compute the prompt, generate nothing (`generate: false`,
    `prompt_cache_options.prewarm`)."""
    cache_ttl: str | None = None
    """How long the client expects to use the prompt's prefix; a key of `CACHE_TTLS`."""
    comparison: str | None = None
    """Id of the response that the prompt is compared with."""
    earlier: int = 0
    """The number of items before the request's own, from the responses that it continues."""

    @property
    def model(self) -> str:
        """The model as the client spelled it; "" if missing."""
        return self.body.model or ""

    @property
    def store(self) -> bool:
        """Whether to store the response, which is the native default."""
        return self.body.store is not False

    @property
    def references(self) -> list[str]:
        """The ids of the stored items that the input names, in order."""
        return [
            kind.id
            for kind in self.kinds[self.earlier :]
            if is_reference(kind) and kind.id is not None
        ]

    def place(self, index: int) -> str:
        """The place of an item for error messages: in the request's own input, or in the history
        before it."""
        return f"history[{index}]" if index < self.earlier else f"input[{index - self.earlier}]"

    def with_items(self, items: list[Raw]) -> "ResponsesRequest":
        """Returns the request with other input items. Raises Invalid."""
        return replace(self, items=items, kinds=item_kinds(items, "input"), earlier=0)

    def with_history(self, items: Sequence[Raw]) -> "ResponsesRequest":
        """Returns the request with these items before its own. Raises Invalid."""
        kinds = item_kinds(items, "history")
        return replace(
            self, items=[*items, *self.items], kinds=[*kinds, *self.kinds], earlier=len(items)
        )

    def with_references(self, stored: Mapping[str, Raw]) -> "ResponsesRequest":
        """Returns the request with stored items in place of the references to them. Raises
        NotFound."""
        items = [*self.items]
        for index, kind in enumerate(self.kinds):
            if is_reference(kind) and kind.id is not None:
                if kind.id not in stored:
                    raise not_found("Item", kind.id, "input")
                items[index] = stored[kind.id]
        return self.with_items(items)

    def own(self) -> "ResponsesRequest":
        """Returns the request without the items before its own."""
        return replace(
            self, items=self.items[self.earlier :], kinds=self.kinds[self.earlier :], earlier=0
        )

    def without_input(self) -> "ResponsesRequest":
        """Returns the part that rendering the answer needs: the items would keep the bytes of the
        whole request in memory."""
        body = wire.Body(model=self.body.model, stream=self.body.stream, store=self.body.store)
        return replace(self, body=body, items=[], kinds=[], earlier=0)


def decode(data: bytes, memo: Memo[Raw] | None = None) -> ResponsesRequest:
    """Decodes a request. Raises Invalid in the native wording. `memo` remembers the echo of tools."""
    body = decode_body(_decode, data, explain)
    if is_set(body.conversation):
        raise unsupported(
            "conversation",
            "names a stored conversation, which this server does not keep; send its items",
        )
    if is_set(body.prompt):
        raise unsupported(
            "prompt", "names a stored prompt, which this server does not have; send its text"
        )
    if body.background and body.store is False:
        raise Invalid(
            "Background responses need 'store' to be true.",
            param="background",
            code="invalid_value",
        )
    items = body.input or []
    if isinstance(items, str):
        content = [{"type": "input_text", "text": body.input}]
        items = [Raw(msgspec.json.encode({"type": MESSAGE, "role": "user", "content": content}))]
    reasoning = _settings(wire.Reasoning, body.reasoning, "reasoning")
    reasoning.summary = reasoning.summary or reasoning.generate_summary
    text = _settings(wire.TextConfig, body.text, "text")
    cache = _settings(wire.CacheOptions, body.prompt_cache_options, "prompt_cache_options")
    return ResponsesRequest(
        body=body,
        items=items,
        kinds=item_kinds(items, "input"),
        reasoning=reasoning,
        text=text,
        echo=_echo(body, reasoning, text, Memo() if memo is None else memo),
        prefill=body.generate is False or bool(cache.prewarm),
        cache_ttl=cache.ttl,
        comparison=cache.comparison_response_id,
    )


def _foreign(name: str) -> Invalid:
    if (place := _MOVED.get(name)) is None:
        return Invalid(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    message = f"Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to '{place}'."
    return Invalid(message, param=name, code="unsupported_parameter")


_decode = body_decoder(wire.Body, _foreign)


def _settings(kind: type[S], raw: Raw, place: str) -> S:
    return convert(kind, raw, place) if is_set(raw) else kind()


def item_kinds(items: Sequence[Raw], place: str) -> list[wire.ItemKind]:
    """The kind of each item. Raises Invalid for one that is not an object, and for a reference
    without an id."""
    kinds = [convert(wire.ItemKind, item, f"{place}[{index}]") for index, item in enumerate(items)]
    for index, kind in enumerate(kinds):
        if kind.type == _REFERENCE and kind.id is None:
            raise missing_parameter(f"{place}[{index}].id")
    return kinds


def is_reference(kind: wire.ItemKind) -> bool:
    """Whether the item names a stored one; natively the type of such an item may be missing or
    null."""
    return kind.type == _REFERENCE or (
        kind.type is None and kind.role is None and kind.id is not None
    )


def _one_line(raw: Raw) -> Raw:
    """A copy of the JSON without line breaks between its tokens, which an indented request has. A
    copy, because a part of the body would keep the whole body in memory while the answer is
    rendered."""
    text = bytes(raw)
    return Raw(msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text)


def _echo(
    body: wire.Body, reasoning: wire.Reasoning, text: wire.TextConfig, memo: Memo[Raw]
) -> dict[str, Any]:
    """The members of a Response that repeat the request: its values, or the native defaults. On one
    line, as events must be."""
    summary = None if reasoning.summary == "none" else reasoning.summary
    reasoning_settings: dict[str, str | None] = {"effort": reasoning.effort, "summary": summary}
    if reasoning.context is not None:
        reasoning_settings["context"] = reasoning.context
    text_settings: Any = _one_line(body.text)
    if text.format is None:
        text_settings = {
            "format": {"type": "text"},
            **({"verbosity": text.verbosity} if text.verbosity else {}),
        }
    echo: dict[str, Any] = {
        "instructions": None
        if body.instructions is None
        else Raw(msgspec.json.encode(body.instructions)),
        "previous_response_id": body.previous_response_id,
        "tools": _echoed_tools(body.tools or [], memo),
        "tool_choice": _one_line(body.tool_choice) if is_set(body.tool_choice) else "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": reasoning_settings,
        "text": text_settings,
        "truncation": body.truncation or "disabled",
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": body.store is not False,
        "background": bool(body.background),
        "service_tier": "default",
        "metadata": body.metadata or {},
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "safety_identifier": body.safety_identifier,
        "user": body.user,
    }
    if is_set(body.prompt_cache_options):
        echo["prompt_cache_options"] = _one_line(body.prompt_cache_options)
    return echo


def _echoed_tools(tools: list[Raw], memo: Memo[Raw]) -> Raw:
    def read(_: bytes) -> Raw:
        return Raw(
            msgspec.json.encode(
                [_echoed_tool(raw, f"tools[{index}]") for index, raw in enumerate(tools)]
            )
        )

    return memo.get(b",".join(tools), read)


def _echoed_tool(raw: Raw, place: str) -> Raw | dict[str, Raw]:
    """A function with all the members that Open Responses requires; any other tool as it came."""
    raw = _one_line(raw)
    tool = convert(dict[str, Raw], raw, place)
    if bytes(tool.get("type", b"")) != b'"function"' or _TOOL_DEFAULTS.keys() <= tool.keys():
        return raw
    return tool | {key: value for key, value in _TOOL_DEFAULTS.items() if key not in tool}
