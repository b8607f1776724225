"""Shortens conversations for the context window: drops the oldest messages (`truncation: auto`, and
where not even the request for a summary fits), or requests a summary (the APIs that compact).

Instructions, the last question and the last message, with the calls that it answers, are not
dropped. The oldest of the other messages are dropped first, a call always with its results. A
binary search with exact counts finds the number.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Result, Text, ToolChoice
from schemas.errors import ContextOverflow

SUMMARIZE = (
    "Summarize the conversation so far for a model that goes on with it and sees nothing else of it. Tell the user's "
    "goals and instructions, the decisions and their reasons, every file, command and result that still matters, what "
    "is done, what is open, and the next step. Be exact with names, paths and values. Write the summary only; call no "
    "tools."
)
"""The last message to the model in a request for a summary."""
_INSTRUCTIONS = ("system", "developer")

Count = Callable[[Conversation], Awaitable[int]]
"""Returns the exact number of prompt tokens."""


async def shorten_conversation(
    conversation: Conversation, overflow: ContextOverflow, count: Count
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
        if await count(candidate) <= limit:
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


def request_summary(conversation: Conversation, instructions: str | None = None) -> Conversation:
    """Adds a last message that requests a summary. All else stays, tools included, so that the
    prefix stays cached.

    `instructions`: replaces `SUMMARIZE`.
    """
    # A prefill-only limit and stop strings would leave no summary.
    sampling = replace(
        conversation.sampling,
        max_tokens=conversation.sampling.max_tokens or None,
        stop=[],
        stop_token_ids=[],
    )
    messages = [*conversation.messages, Message("user", [Text(instructions or SUMMARIZE)])]
    return replace(
        conversation,
        messages=messages,
        tool_choice=ToolChoice("none"),
        format=None,
        sampling=sampling,
        summary=True,
    )
