"""Selects what stays of a conversation that is compacted. Pure.

A conversation over the threshold of `context_management` is compacted before it is answered: a separate turn writes a
summary of the whole conversation. The request is then answered with the instructions, the summary and the user's last
message for a history. The `compaction` item is the first item of the answer; for the client and in a chain it stands
for everything before it.
"""

from collections.abc import Sequence

from msgspec import Raw

from services.frontend.apis.responses import wire
from services.frontend.apis.responses.errors import convert
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest, item_kinds

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})


def compact_threshold(request: ResponsesRequest) -> int | None:
    """The prompt size in tokens from which the context is compacted. Raises Invalid."""
    managed = convert(list[wire.ManagedContext] | None, request.body.context_management, "context_management")
    return next((entry.compact_threshold for entry in managed or () if entry.type == "compaction"), None)


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that instruct the model: system and developer messages, tools and settings."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type in _INSTRUCTING or kind.role in ("system", "developer")]


def user_messages(items: Sequence[Raw]) -> list[Raw]:
    """The user's messages among stored items."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type == MESSAGE and kind.role == "user"]
