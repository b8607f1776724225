"""Compacts conversations: decides when, writes the summary, and selects the items that stay.

A conversation over the threshold of `context_management` is compacted before it is answered: a
separate turn writes a summary of the whole conversation, and the request is answered from the
instructions, the summary and the user's last message. The `compaction` item is the first item of
the answer; for the client and in a chain it replaces everything before it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Raw

from schemas.conversation import Conversation
from schemas.errors import raised
from services.frontend.apis.responses.dialect import Responses, ResponsesTurn
from services.frontend.apis.responses.render.document import ResponseState
from services.frontend.apis.responses.request.body import MESSAGE, ResponsesRequest, item_kinds
from services.frontend.apis.responses.state.runner import truncate
from services.frontend.http.bodies import is_large, run_in_thread_if
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.turn_runner import TurnRunner

_INSTRUCTING = frozenset({"additional_tools", "configuration_update"})


async def exceeds_threshold(
    request: ResponsesRequest,
    conversation: Conversation,
    turns: TurnRunner,
    context: RequestContext,
) -> bool:
    """Whether a conversation is to be compacted. Raises TurnwireError if its prompt cannot be
    counted."""
    threshold = next(
        (entry.compact_threshold for entry in request.body.context_management or ()), None
    )
    if threshold is None or request.prefill:
        return False
    return await turns.count(conversation, context) >= threshold


async def summarize(
    request: ResponsesRequest,
    understand: Callable[..., ResponsesTurn],
    turns: TurnRunner,
    context: RequestContext,
) -> ResponseState:
    """Compacts a conversation. The caller pays for the tokens. Raises TurnwireError."""
    ask = await run_in_thread_if(
        is_large(*request.items), partial(understand, request, compacting=True)
    )
    stream = ask.renderer(turns.reply(context, ask.conversation))
    shorten = partial(truncate, turns, ask, context)
    stream.events(await turns.read(ask.conversation, context, Responses.name, shorten))
    if stream.state.failure is not None:
        raise raised(stream.state.failure)
    return stream.state


def instructions(items: Sequence[Raw]) -> list[Raw]:
    """The items that instruct the model: system and developer messages, tools and settings."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [
        item
        for item, kind in kinds
        if kind.type in _INSTRUCTING or kind.role in ("system", "developer")
    ]


def user_messages(items: Sequence[Raw]) -> list[Raw]:
    """The user's messages among stored items."""
    kinds = zip(items, item_kinds(items, "history"), strict=True)
    return [item for item, kind in kinds if kind.type == MESSAGE and kind.role == "user"]
