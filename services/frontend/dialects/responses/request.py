"""The body of a Responses request: read, checked, and kept raw where it is stored or echoed.

`decode` needs no store and no key: whoever has them looks at `previous_response_id`, `references`, `store` and
`background`, fetches what they name, and hands it to `ask.understand`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.errors import Invalid
from services.frontend.dialects.decode import decode_body
from services.frontend.dialects.known_parts import KnownParts
from services.frontend.dialects.responses import wire
from services.frontend.dialects.responses.wording import convert, explain, missing_parameter, refuse

REASONING_SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
REFERENCE = "item_reference"
MESSAGE = "message"

_body = msgspec.json.Decoder(wire.Body)
_kind = msgspec.json.Decoder(wire.Kind)
_tool = msgspec.json.Decoder(dict[str, Raw])
_reasoning = msgspec.json.Decoder(wire.Reasoning | None)
_text = msgspec.json.Decoder(wire.TextConfig | None)
_cache = msgspec.json.Decoder(wire.CacheOptions | None)
_TOOL_DEFAULTS = {"description": wire.NULL, "parameters": wire.NULL, "strict": wire.NULL}
_MAX_LOGPROBS = 20


class ResponsesRequest(Struct, frozen=True):
    """A request as the client sent it, checked as far as that goes without its history."""

    body: wire.Body
    items: list[Raw]
    """The input as items, each as the client spelled it; a string is one user message."""
    kinds: list[wire.Kind]
    """What each item is."""
    reasoning: wire.Reasoning
    text: wire.TextConfig
    echo: dict[str, Any]
    """The members of a Response object that repeat the request."""
    prefill: bool
    """The prompt is to be computed and nothing to be written (`generate: false`, `prompt_cache_options.prewarm`)."""

    @property
    def model(self) -> str:
        """As the client spelled it, "" if it named none."""
        return self.body.model or ""

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return bool(self.body.stream)

    @property
    def store(self) -> bool:
        """Whether the response is to be kept; natively it is unless the client says no."""
        return self.body.store is not False

    @property
    def background(self) -> bool:
        """Whether the client does not wait for the answer."""
        return bool(self.body.background)

    @property
    def previous_response_id(self) -> str | None:
        """The response whose input and output come before this input."""
        return self.body.previous_response_id

    @property
    def stream_id(self) -> str | None:
        """The lane of a WebSocket that this belongs to."""
        return self.body.stream_id

    @property
    def references(self) -> list[str]:
        """The ids of stored items that the input names, in order."""
        return [kind.id for kind in self.kinds if is_reference(kind) and kind.id is not None]

    def answering(self) -> "ResponsesRequest":
        """The same without its input, which would keep the bytes of the whole request: all that an answer needs which
        is not stored."""
        asked = self.body
        body = wire.Body(model=asked.model, stream=asked.stream, store=asked.store, include=asked.include)
        return msgspec.structs.replace(self, body=body, items=[], kinds=[])

    def includes(self, what: str) -> bool:
        """Whether `include` names this."""
        return what in (self.body.include or ())


def decode(body: bytes, *, counting: bool = False, known: KnownParts[Raw] | None = None) -> ResponsesRequest:
    """Reads a request. Raises Invalid in the native words. `known`: echoes of earlier requests' tools.

    `counting`: for input_tokens and compact, where what this server cannot do with an answer need not be done.
    """
    return of_body(decode_body(_body.decode, body, explain), counting=counting, known=known)


def of_body(body: wire.Body, *, counting: bool = False, known: KnownParts[Raw] | None = None) -> ResponsesRequest:
    """The same for a body that is decoded already (a WebSocket's `response.create`)."""
    if not counting:
        _refuse(body)
    _check_ranges(body)
    items = _items(body)
    reasoning = convert(_reasoning, body.reasoning, "reasoning") or wire.Reasoning()
    text = convert(_text, body.text, "text") or wire.TextConfig()
    cache = convert(_cache, body.prompt_cache_options, "prompt_cache_options") or wire.CacheOptions()
    return ResponsesRequest(
        body=body,
        items=items,
        kinds=kinds(items, "input"),
        reasoning=reasoning,
        text=text,
        echo=_echo(body, reasoning, text, KnownParts() if known is None else known),
        prefill=body.generate is False or bool(cache.prewarm),
    )


def kinds(items: Sequence[Raw], place: str) -> list[wire.Kind]:
    """What each item is. Raises Invalid for one that is no object, and for a reference to nothing."""
    found = [convert(_kind, item, f"{place}[{index}]") for index, item in enumerate(items)]
    for index, kind in enumerate(found):
        if kind.type == REFERENCE and kind.id is None:
            raise missing_parameter(f"{place}[{index}].id")
    return found


def is_reference(kind: wire.Kind) -> bool:
    """An item that names a stored one: natively its type may be left out or null."""
    return kind.type == REFERENCE or (kind.type is None and kind.role is None and kind.id is not None)


def user_message(text: str) -> Raw:
    """A string input as the item that it stands for."""
    content = [{"type": "input_text", "text": text}]
    return Raw(msgspec.json.encode({"type": MESSAGE, "role": "user", "content": content}))


def given(raw: Raw) -> bool:
    """Whether a raw field holds anything."""
    return bytes(raw) != b"null"


def one_line(raw: Raw) -> Raw:
    """The same JSON without line breaks between its tokens: a client may have sent it indented. A copy: a part of the
    body would keep all of it for as long as the answer takes."""
    text = bytes(raw)
    return Raw(msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text)


def _items(body: wire.Body) -> list[Raw]:
    if body.input is None:
        return []
    return [user_message(body.input)] if isinstance(body.input, str) else body.input


def _refuse(body: wire.Body) -> None:
    if given(body.conversation):
        if body.previous_response_id is not None:
            raise Invalid(
                "Mutually exclusive parameters: 'conversation' and 'previous_response_id'.",
                param="conversation",
                code="mutually_exclusive_parameters",
            )
        refuse("conversation")
    if given(body.prompt):
        refuse("prompt", "names a stored prompt, which this server does not have; send its text")
    if body.background and body.store is False:
        raise Invalid("Background responses need 'store' to be true.", param="background", code="invalid_value")


def _check_ranges(body: wire.Body) -> None:
    _within(body.temperature, "temperature", 0, 2)
    _within(body.top_p, "top_p", 0, 1)
    _within(body.top_logprobs, "top_logprobs", 0, _MAX_LOGPROBS)
    _within(body.max_output_tokens, "max_output_tokens", 1, None)


def _within(value: float | None, name: str, low: int, high: int | None) -> None:
    if value is None:
        return
    kind = "integer" if isinstance(value, int) else "decimal"
    if value < low:
        raise Invalid(
            f"Invalid '{name}': {kind} below minimum value. Expected a value >= {low}, but got {value} instead.",
            param=name,
            code=f"{kind}_below_min_value",
        )
    if high is not None and value > high:
        raise Invalid(
            f"Invalid '{name}': {kind} above maximum value. Expected a value <= {high}, but got {value} instead.",
            param=name,
            code=f"{kind}_above_max_value",
        )


def _echo(body: wire.Body, reasoning: wire.Reasoning, text: wire.TextConfig, known: KnownParts[Raw]) -> dict[str, Any]:
    """Null where nothing holds, else what the client sent or the native default. On one line, as a stream needs it."""
    summary = reasoning.summary or reasoning.generate_summary
    shown: dict[str, str | None] = {"effort": reasoning.effort, "summary": None if summary == "none" else summary}
    if reasoning.context is not None:
        shown["context"] = reasoning.context
    shown_text: Any = one_line(body.text)
    if text.format is None:
        shown_text = {"format": {"type": "text"}, **({"verbosity": text.verbosity} if text.verbosity else {})}
    echo: dict[str, Any] = {
        "instructions": None if body.instructions is None else Raw(msgspec.json.encode(body.instructions)),
        "previous_response_id": body.previous_response_id,
        "tools": _echoed_tools(body.tools or [], known),
        "tool_choice": one_line(body.tool_choice) if given(body.tool_choice) else "auto",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": shown,
        "text": shown_text,
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
    if given(body.prompt_cache_options):
        echo["prompt_cache_options"] = one_line(body.prompt_cache_options)
    return echo


def _echoed_tools(tools: list[Raw], known: KnownParts[Raw]) -> Raw:
    def read(_: bytes) -> Raw:
        return Raw(msgspec.json.encode([_echoed_tool(raw, f"tools[{index}]") for index, raw in enumerate(tools)]))

    return known.get(b",".join(tools), read)


def _echoed_tool(raw: Raw, place: str) -> Raw | dict[str, Raw]:
    """A function with all the members that Open Responses requires; any other as it came."""
    raw = one_line(raw)
    tool = convert(_tool, raw, place)
    if bytes(tool.get("type", b"")) != b'"function"' or _TOOL_DEFAULTS.keys() <= tool.keys():
        return raw
    return {**tool, **{key: value for key, value in _TOOL_DEFAULTS.items() if key not in tool}}
