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
from services.frontend.apis.responses.errors import not_found
from services.frontend.apis.responses.parse.echo import echo_of
from services.frontend.apis.responses.parse.members import convert, explain
from services.frontend.apis.shared.decode import body_decoder, decode_body
from services.frontend.apis.shared.field_types import is_set
from services.frontend.apis.shared.openai.wording import missing_parameter, unsupported
from services.runtime.caches.memo import Memo

REASONING_SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
SOURCES = "web_search_call.action.sources"
MESSAGE = "message"
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
S = TypeVar("S", wire.ResponsesReasoning, wire.TextConfig, wire.CacheOptions)


class DecodedRequest(Struct, frozen=True):
    """A decoded request, with every check that needs no history."""

    body: wire.ResponsesBody
    items: list[Raw]
    """The input items, as the client spelled them; a string becomes one user message."""
    kinds: list[wire.ItemKind]
    """The kind of each item."""
    reasoning: wire.ResponsesReasoning
    text: wire.TextConfig
    echo: dict[str, Any]
    """The members of a Response object that repeat the request."""
    prompt_only: bool
    """Only compute the prompt, generate nothing (`generate: false`,
    `prompt_cache_options.prewarm`)."""
    cache_ttl: str | None = None
    """How long the client expects to use the prompt's prefix; a key of `CACHE_TTLS`."""
    comparison: str | None = None
    """Id of the response that the prompt is compared with."""

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
        ids = [reference_of(kind) for kind in self.kinds]
        return [id for id in ids if id is not None]

    def with_items(self, items: list[Raw]) -> "DecodedRequest":
        """Returns the request with other input items. Raises Invalid."""
        return replace(self, items=items, kinds=item_kinds(items, "input"))

    def with_references(self, stored: Mapping[str, Raw]) -> "DecodedRequest":
        """Returns the request with stored items in place of the references to them. Raises
        NotFound."""
        items = [*self.items]
        for index, kind in enumerate(self.kinds):
            id = reference_of(kind)
            if id is None:
                continue
            if id not in stored:
                raise not_found("Item", id, "input")
            items[index] = stored[id]
        return self.with_items(items)

    def without_input(self) -> "DecodedRequest":
        """Returns the part that rendering the answer needs: the items would keep the bytes of the
        whole request in memory."""
        body = wire.ResponsesBody(
            model=self.body.model, stream=self.body.stream, store=self.body.store
        )
        return replace(self, body=body, items=[], kinds=[])


def decode(data: bytes, memo: Memo[Raw] | None = None) -> DecodedRequest:
    """Decodes a request. Raises Invalid in the native wording. `memo` remembers the echo of
    tools."""
    body = decode_body(_decode, data, explain)
    _check(body)
    items = _items(body)
    reasoning = _settings(wire.ResponsesReasoning, body.reasoning, "reasoning")
    reasoning.summary = reasoning.summary or reasoning.generate_summary
    text = _settings(wire.TextConfig, body.text, "text")
    cache = _settings(wire.CacheOptions, body.prompt_cache_options, "prompt_cache_options")
    return DecodedRequest(
        body=body,
        items=items,
        kinds=item_kinds(items, "input"),
        reasoning=reasoning,
        text=text,
        echo=echo_of(body, reasoning, text, Memo() if memo is None else memo),
        prompt_only=body.generate is False or bool(cache.prewarm),
        cache_ttl=cache.ttl,
        comparison=cache.comparison_response_id,
    )


def _check(body: wire.ResponsesBody) -> None:
    """Refuses what this server lacks. Raises Invalid."""
    if is_set(body.conversation):
        raise unsupported(
            "conversation",
            "names a stored conversation, which this server does not keep; send its items",
        )
    if is_set(body.prompt):
        raise unsupported(
            "prompt", "names a stored prompt, which this server does not have; send its text"
        )


def _items(body: wire.ResponsesBody) -> list[Raw]:
    if isinstance(body.input, list):
        return body.input
    if not body.input:
        return []
    content = [{"type": "input_text", "text": body.input}]
    return [Raw(msgspec.json.encode({"type": MESSAGE, "role": "user", "content": content}))]


def _foreign(name: str) -> Invalid:
    """The error for a field that this API lacks."""
    new_name = _MOVED.get(name)
    if new_name is None:
        return Invalid(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    return Invalid(
        f"Unsupported parameter: '{name}'. "
        f"In the Responses API, this parameter has moved to '{new_name}'.",
        param=name,
        code="unsupported_parameter",
    )


_decode = body_decoder(wire.ResponsesBody, _foreign)


def _settings(kind: type[S], raw: Raw, field_path: str) -> S:
    return convert(kind, raw, field_path) if is_set(raw) else kind()


def item_kinds(items: Sequence[Raw], field_path: str) -> list[wire.ItemKind]:
    """The kind of each item. Raises Invalid for one that is not an object, and for a reference
    without an id."""
    kinds = [
        convert(wire.ItemKind, item, f"{field_path}[{index}]") for index, item in enumerate(items)
    ]
    for index, kind in enumerate(kinds):
        if kind.type == _REFERENCE and kind.id is None:
            raise missing_parameter(f"{field_path}[{index}].id")
    return kinds


def reference_of(kind: wire.ItemKind) -> str | None:
    """The id of the stored item that an item names; None for other items. Natively the type of such
    an item may be missing or null."""
    if kind.type == _REFERENCE:
        return kind.id
    has_kind = kind.type is not None or kind.role is not None
    return None if has_kind else kind.id
