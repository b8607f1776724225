"""GET /v1/responses/{id}/input_items: what a response was made from, in the form in which the API lists items."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from schemas.errors import Invalid
from services.frontend.responses.record import item_id

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class Page(Struct, frozen=True):
    """Which items to list."""

    after: str | None = None
    limit: int = DEFAULT_LIMIT
    newest_first: bool = True


def page_of(query: Mapping[str, str]) -> Page:
    """The page that a query string asks for. Raises Invalid.

    A limit of 0, which the SDKs' own tests send, is as none.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Invalid(
            f"Invalid value: '{order}'. Supported values are: 'asc' and 'desc'.", param="order", code="invalid_value"
        )
    limit = integer(query, "limit", 0, MAX_LIMIT)
    return Page(query.get("after") or None, limit or DEFAULT_LIMIT, order == "desc")


def integer(query: Mapping[str, str], name: str, low: int, high: int | None) -> int | None:
    """A whole number of a query string; None where it is not there. Raises Invalid."""
    text = query.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        raise Invalid(
            f"Invalid type for '{name}': expected an integer, but got a string instead.",
            param=name,
            code="invalid_type",
        ) from None
    for wrong, side, bound in ((value < low, "below_min", low), (high is not None and value > high, "above_max", high)):
        if wrong:
            raise Invalid(
                f"Invalid '{name}': integer {side.replace('_min', ' minimum').replace('_max', ' maximum')} value. "
                f"Expected a value {'>=' if side == 'below_min' else '<='} {bound}, but got {value} instead.",
                param=name,
                code=f"integer_{side}_value",
            )
    return value


def listed(items: Sequence[Raw], page: Page) -> bytes:
    """The list document. `items`: oldest first, each with an id. One of an id that came before (an item that was
    referred to, or sent again) is not repeated: pages are told by ids. Raises Invalid for an `after` that is none."""
    first: dict[str, Raw] = {}
    for raw in items:
        first.setdefault(item_id(raw), raw)
    shown = list(first.items())
    if page.newest_first:
        shown.reverse()
    start = 0
    if page.after is not None:
        start = next((at for at, (id, _) in enumerate(shown, 1) if id == page.after), 0)
        if not start:
            raise Invalid(f"Item with id '{page.after}' not found.", param="after")
    window = shown[start : start + page.limit]
    document = {
        "object": "list",
        "data": [raw for _, raw in window],
        "first_id": window[0][0] if window else "",
        "last_id": window[-1][0] if window else "",
        "has_more": start + page.limit < len(shown),
    }
    return msgspec.json.encode(document)
