"""Shortens conversations for the context window by dropping the oldest messages: for `truncation:
auto`, and where not even the request for a summary fits.

Instructions, the last question and the last message, with the calls that it answers, are not
dropped. The oldest of the other messages are dropped first, a call always with its results. A
binary search with exact counts finds the number.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Result
from schemas.errors import ContextOverflow
from services.frontend.turns.turn_service import RequestModel

_INSTRUCTIONS = ("system", "developer")


async def shorten_conversation(
    conversation: Conversation, overflow: ContextOverflow, model: RequestModel
) -> Conversation:
    """Drops as few messages as possible. Raises `overflow` again if it has no limit, or if dropping
    all droppable messages is not enough; TurnwireError if a count fails."""
    limit = (overflow.info.details or {}).get("max_prompt_tokens")
    groups = droppable_groups(conversation.messages)
    if limit is None or not groups:
        raise overflow
    low, high = 1, len(groups)
    best: Conversation | None = None
    while low <= high:
        middle = (low + high) // 2
        candidate = remove_messages(
            conversation, (place for group in groups[:middle] for place in group)
        )
        if await model.count(candidate) <= limit:
            best, high = candidate, middle - 1
        else:
            low = middle + 1
    if best is None:
        raise overflow
    return best


def droppable_groups(messages: Sequence[Message]) -> list[list[int]]:
    """The indices of the messages that may be dropped, oldest first, in groups that belong
    together."""
    groups: list[list[int]] = []
    for place, message in enumerate(messages):
        if message.role == "tool" and groups:
            groups[-1].append(place)
        else:
            groups.append([place])
    questions = [place for place, message in enumerate(messages) if message.role == "user"]
    return [
        group
        for group in groups[:-1]
        if messages[group[0]].role not in _INSTRUCTIONS and group[0] not in questions[-1:]
    ]


def remove_messages(conversation: Conversation, places: Iterable[int]) -> Conversation:
    """The conversation without the messages at these indices, and without the results of their
    calls."""
    gone = set(places)
    calls = {
        part.call_id
        for at in gone
        for part in conversation.messages[at].parts
        if isinstance(part, Call)
    }
    messages = []
    for at, message in enumerate(conversation.messages):
        if at in gone:
            continue
        parts = [
            part
            for part in message.parts
            if not (isinstance(part, Result) and part.call_id in calls)
        ]
        if parts or not message.parts:
            messages.append(
                message if len(parts) == len(message.parts) else replace(message, parts=parts)
            )
    return replace(conversation, messages=messages)
