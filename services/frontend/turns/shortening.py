"""Shortens conversations for the context window by dropping the oldest messages: for `truncation:
auto`, and where not even the request for a summary fits.

Instructions, the last question and the last message, with the calls that it answers, are not
dropped. The oldest of the other messages are dropped first, a call always with its results. A
binary search with exact counts finds the number.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Result
from schemas.errors import ContextOverflow, raised
from services.frontend.turns.turn_service import ModelAccess

_INSTRUCTIONS = ("system", "developer")


async def shorten_conversation(
    conversation: Conversation, overflow: ContextOverflow, model: ModelAccess
) -> Conversation:
    """Drops as few messages as possible. Raises `overflow` again if it has no limit, or if dropping
    all droppable messages is not enough; TurnwireError if a count fails."""
    limit = (overflow.info.details or {}).get("max_prompt_tokens")
    groups = droppable_groups(conversation.messages)
    if limit is None or not groups:
        raise raised(overflow.info)
    best: Conversation | None = None
    fewest = 1
    most = len(groups)
    while fewest <= most:
        dropped = (fewest + most) // 2
        candidate = remove_messages(conversation, chain(*groups[:dropped]))
        if await model.count(candidate) <= limit:
            best = candidate
            most = dropped - 1
        else:
            fewest = dropped + 1
    if best is None:
        raise raised(overflow.info)
    return best


def droppable_groups(messages: Sequence[Message]) -> list[list[int]]:
    """The indices of the messages that may be dropped, oldest first, in groups that belong
    together."""
    groups: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.role == "tool" and groups:
            groups[-1].append(index)
        else:
            groups.append([index])
    questions = [index for index, message in enumerate(messages) if message.role == "user"]
    last_question = questions[-1:]
    return [
        group
        for group in groups[:-1]
        if messages[group[0]].role not in _INSTRUCTIONS and group[0] not in last_question
    ]


def remove_messages(conversation: Conversation, indices: Iterable[int]) -> Conversation:
    """The conversation without the messages at these indices, and without the results of their
    calls."""
    removed = set(indices)
    calls: set[str] = set()
    for index in removed:
        calls.update(
            part.call_id for part in conversation.messages[index].parts if isinstance(part, Call)
        )

    messages: list[Message] = []
    for index, message in enumerate(conversation.messages):
        if index in removed:
            continue
        parts = [
            part
            for part in message.parts
            if not (isinstance(part, Result) and part.call_id in calls)
        ]
        if len(parts) == len(message.parts):
            messages.append(message)
        elif parts:
            messages.append(replace(message, parts=parts))
    return replace(conversation, messages=messages)
