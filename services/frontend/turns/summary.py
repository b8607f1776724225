"""Requests the summary of a conversation from its model, for the APIs that compact. Pure."""

from msgspec.structs import asdict, replace

from schemas.conversation import Conversation, Message, Text, ToolChoice

SUMMARIZE = (
    "Summarize the conversation so far for a model that goes on with it and sees nothing else of it. Tell the user's "
    "goals and instructions, the decisions and their reasons, every file, command and result that still matters, what "
    "is done, what is open, and the next step. Be exact with names, paths and values. Write the summary only; call no "
    "tools."
)
"""The last message to the model where a compaction is requested."""


class SummaryRequest(Conversation, frozen=True):
    """A conversation whose answer is a summary, which this server reads and no user."""


def request_summary(conversation: Conversation, instructions: str | None = None) -> SummaryRequest:
    """The same conversation, tools included, with a last message that requests a summary: the prefix stays cached.

    `instructions` replaces `SUMMARIZE`.
    """
    # A prefill-only limit and stop strings would leave no summary.
    sampling = replace(
        conversation.sampling, max_tokens=conversation.sampling.max_tokens or None, stop=[], stop_token_ids=[]
    )
    turns = [*conversation.messages, Message("user", [Text(instructions or SUMMARIZE)])]
    members = {**asdict(conversation), "messages": turns, "tool_choice": ToolChoice("none")}
    return SummaryRequest(**{**members, "format": None, "sampling": sampling})
