"""Compacts conversations, for every API: the model writes a summary, which replaces what came
before.

An API decides when, from its own fields, and what the summary replaces. The rest is here: the
request for a summary is the conversation with one more message, so that its prefix stays cached;
the summary is a turn of its own, which the caller pays for.
"""

import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from schemas.conversation import Conversation, Message, Text, ToolChoice
from schemas.events import TurnEvent, blocks_of
from services.frontend.turns.answer import RunningAnswer, logged
from services.frontend.turns.sinks import EventBuffer
from services.frontend.turns.turn_service import ModelAccess

SUMMARIZE = (
    "Summarize the conversation so far for a model that goes on with it and sees nothing else "
    "of it. Tell the user's goals and instructions, the decisions and their reasons, every "
    "file, command and result that still matters, what is done, what is open, and the next "
    "step. Be exact with names, paths and values. Write the summary only; call no tools."
)
"""The last message to the model in a request for a summary."""


def request_summary(conversation: Conversation, instructions: str | None = None) -> Conversation:
    """Adds a last message that requests a summary. All else stays, tools included, so that the
    prefix stays cached.

    `instructions`: replaces `SUMMARIZE`.
    """
    # A limit of no output tokens, and stop strings, would leave no summary.
    sampling = replace(
        conversation.sampling,
        max_tokens=conversation.sampling.max_tokens or None,
        stop=[],
        stop_token_ids=[],
    )
    request = Message("user", [Text(instructions or SUMMARIZE)])
    return replace(
        conversation,
        messages=[*conversation.messages, request],
        tool_choice=ToolChoice("none"),
        format=None,
        sampling=sampling,
        summary=True,
    )


def summary_text(events: Sequence[TurnEvent]) -> str:
    """The text of a whole turn that answers a request for a summary, without its reasoning."""
    texts = [text for start, text, _ in blocks_of(events) if start.kind == "text"]
    return "\n".join(text for text in texts if text).strip()


async def write_summary(request: Conversation, model: ModelAccess, dialect: str) -> list[TurnEvent]:
    """Returns the events of the turn that answers a request for a summary. If cancelled, cancels
    the turn.

    `dialect`: the API's name in metrics. Raises TurnwireError if the turn cannot start or fails.
    """
    answer = RunningAnswer(model, dialect, turn_id=secrets.token_hex(12))
    async with logged(answer, "summary"):
        sink = EventBuffer(answer.record)
        await answer.run_summary(request, sink)
        (events,) = sink.events
        return events
