"""Completes the input items of a response for the store, and lists them in pages."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from schemas.errors import Invalid
from services.frontend.apis.responses import wire, wire_answers
from services.frontend.apis.responses.parse.body import MESSAGE, DecodedRequest
from services.frontend.apis.shared.openai.wording import invalid_value, out_of_range
from services.frontend.stored.record import item_id

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_parts = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_encode = msgspec.json.Encoder().encode
_PREFIXES = {
    MESSAGE: "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "compaction": "cmp",
    "additional_tools": "at",
}
_WITH_STATUS = _PREFIXES.keys() - {"reasoning", "compaction", "additional_tools"} | {
    "shell_call",
    "shell_call_output",
    "computer_call_output",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "reasoning": {"summary": []},
    "additional_tools": {"role": "developer"},
    "tool_search_call": {"execution": "client"},
    "tool_search_output": {"execution": "client"},
}
_PART_DEFAULTS: dict[bytes, tuple[str, Any]] = {
    b'"input_image"': ("detail", "auto"),
    b'"output_text"': ("annotations", []),
}


def stored_items(decoded: DecodedRequest, turn: str) -> list[Raw]:
    """The request's own input, item by item, for GET …/input_items and for the turns that follow.

    Everything that the client sent is kept. Members that the SDK's strict types require are added:
    an id made from the turn's id, a type, a message's text as a part, a status.
    """
    pairs = zip(decoded.items, decoded.kinds, strict=True)
    return [
        _stored_item(item, kind, f"{turn}i{index:03d}") for index, (item, kind) in enumerate(pairs)
    ]


class InputItems:
    """The items of a request's own input, each with an id.

    They are made when they are first read: those of a small input after the answer, when no client
    waits.
    """

    def __init__(self, decoded: DecodedRequest, turn_id: str) -> None:
        self._decoded = decoded
        self._turn_id = turn_id
        self._items: list[Raw] | None = None

    def read(self) -> list[Raw]:
        """Returns the items; makes them the first time."""
        if self._items is None:
            self._items = stored_items(self._decoded, self._turn_id)
        return self._items


def page_of(query: Mapping[str, str]) -> tuple[str | None, int, bool]:
    """The page that a query string selects: `after`, `limit` and `newest_first` of `list_page`.
    Raises Invalid.

    A limit of 0, which the SDKs' own tests send, is the default.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid_value(order, "order", ("asc", "desc"))
    limit = integer(query, "limit", MAX_LIMIT)
    return query.get("after") or None, limit or DEFAULT_LIMIT, order == "desc"


def integer(query: Mapping[str, str], name: str, high: int | None = None) -> int | None:
    """An integer of a query string, at least 0; None where it is missing. Raises Invalid."""
    if name not in query:
        return None
    try:
        value = int(query[name])
    except ValueError:
        message = f"Invalid type for '{name}': expected an integer, but got a string instead."
        raise Invalid(message, param=name, code="invalid_type") from None
    if value < 0:
        raise out_of_range(name, "integer", ">=", "0", value)
    if high is not None and value > high:
        raise out_of_range(name, "integer", "<=", str(high), value)
    return value


def list_page(
    items: Sequence[Raw],
    after: str | None = None,
    limit: int = DEFAULT_LIMIT,
    newest_first: bool = True,
) -> wire_answers.Items:
    """The list document, from the item that follows `after` on. Raises Invalid for an `after` that
    is not listed.

    `items`: oldest first, each with an id. An item that occurs again is listed once, because pages
    are found by ids.
    """
    by_id: dict[str, Raw] = {}
    for raw in items:
        by_id.setdefault(item_id(raw), raw)
    ids = list(by_id)
    if newest_first:
        ids.reverse()

    start = 0
    if after is not None:
        if after not in by_id:
            raise Invalid(f"Item with id '{after}' not found.", param="after")
        start = ids.index(after) + 1
    end = start + limit
    listed = ids[start:end]
    return wire_answers.Items(
        data=[by_id[id] for id in listed],
        first_id=listed[0] if listed else "",
        last_id=listed[-1] if listed else "",
        has_more=end < len(ids),
    )


def _stored_item(item: Raw, kind: wire.ItemKind, suffix: str) -> Raw:
    """`suffix`: the end of the id of an item that has none."""
    name = kind.type or MESSAGE
    members: dict[str, Any] = dict(_decode(item))
    members["type"] = name
    if not kind.id:
        members["id"] = f"{_PREFIXES.get(name, 'item')}_{suffix}"
    if name in _WITH_STATUS and _is_missing(members, "status"):
        members["status"] = "completed"
    members = {**_DEFAULTS.get(name, {}), **members}

    member = "content" if name == MESSAGE else "output"
    content = bytes(members.get(member, b""))
    if name == MESSAGE and content.startswith(b'"'):
        members[member] = [_text_part(members[member], kind)]
    elif any(part_type in content for part_type in _PART_DEFAULTS):
        members[member] = _complete_parts(members[member])
    return Raw(_encode(members))


def _text_part(text: Raw, kind: wire.ItemKind) -> dict[str, Any]:
    """A message's text as a content part."""
    if kind.role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _complete_parts(parts: Raw) -> Any:
    """Content parts with the members that the SDK's types require; other JSON unchanged."""
    try:
        completed: list[dict[str, Any]] = [*_parts(parts)]
    except msgspec.ValidationError:
        return parts
    for part in completed:
        name, default = _PART_DEFAULTS.get(bytes(part.get("type", b"")), ("", None))
        if name and _is_missing(part, name):
            part[name] = default
    return completed


def _is_missing(members: Mapping[str, Any], name: str) -> bool:
    """Whether a raw member is missing or null."""
    return bytes(members.get(name, b"null")) == b"null"
