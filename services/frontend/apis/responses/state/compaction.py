"""Compacts conversations: decides when, has the summary written, and selects the items that stay.

A conversation over the threshold of `context_management` is compacted before it is answered: a
separate turn writes a summary of the whole conversation, and the request is answered from the
instructions, the summary and the user's last message. The `compaction` item is the first item of
the answer; for the client and in a chain it replaces everything before it.
"""

from collections.abc import Iterator, Sequence

from msgspec import Raw

from schemas.conversation import Conversation
from schemas.errors import raised
from services.frontend.apis.responses import wire
from services.frontend.apis.responses.parse.body import MESSAGE, DecodedRequest, item_kinds
from services.frontend.apis.responses.render.document import ResponseState
from services.frontend.apis.responses.request import DIALECT, ResponsesRequest
from services.frontend.turns.compaction import write_summary
from services.frontend.turns.turn_service import ModelAccess

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})
_INSTRUCTORS = ("system", "developer")


async def exceeds_threshold(
    decoded: DecodedRequest, conversation: Conversation, model: ModelAccess
) -> bool:
    """Whether a conversation is to be compacted. Raises TurnwireError if its prompt cannot be
    counted."""
    edits = decoded.body.context_management or ()
    threshold = next((edit.compact_threshold for edit in edits), None)
    if threshold is None or decoded.prompt_only:
        return False
    return await model.count(conversation) >= threshold


async def summarize(request: ResponsesRequest, model: ModelAccess) -> ResponseState:
    """Has the summary of a conversation written, and returns the response that consists of it. The
    caller pays for the tokens. Raises TurnwireError.

    `request`: one that requests a summary.
    """
    stream = request.renderer(model.render_info(model.name_for(request.conversation)))
    stream.render(await write_summary(request.conversation, model, DIALECT.name))
    if stream.state.failure is not None:
        raise raised(stream.state.failure)
    return stream.state


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that instruct the model: system and developer messages, tools and settings."""
    return [
        item
        for item, kind in _with_kinds(items)
        if kind.type in _INSTRUCTING or kind.role in _INSTRUCTORS
    ]


def user_messages(items: Sequence[Raw]) -> list[Raw]:
    """The user's messages among stored items."""
    return [
        item for item, kind in _with_kinds(items) if kind.type == MESSAGE and kind.role == "user"
    ]


def _with_kinds(items: Sequence[Raw]) -> Iterator[tuple[Raw, wire.ItemKind]]:
    return zip(items, item_kinds(items, "history"), strict=True)
