"""Makes the request for a summary of a conversation, for the APIs that compact. Pure."""

from msgspec.structs import replace

from schemas.conversation import Conversation, Message, Text, ToolChoice

SUMMARIZE = (
    "Summarize the conversation so far for a model that goes on with it and sees nothing else of it. Tell the user's "
    "goals and instructions, the decisions and their reasons, every file, command and result that still matters, what "
    "is done, what is open, and the next step. Be exact with names, paths and values. Write the summary only; call no "
    "tools."
)
"""The last message to the model in a request for a summary."""


def request_summary(conversation: Conversation, instructions: str | None = None) -> Conversation:
    """Adds a last message that requests a summary. All else stays, tools included, so that the prefix stays cached.

    `instructions`: replaces `SUMMARIZE`.
    """
    # A prefill-only limit and stop strings would leave no summary.
    sampling = replace(
        conversation.sampling, max_tokens=conversation.sampling.max_tokens or None, stop=[], stop_token_ids=[]
    )
    messages = [*conversation.messages, Message("user", [Text(instructions or SUMMARIZE)])]
    return replace(
        conversation, messages=messages, tool_choice=ToolChoice("none"), format=None, sampling=sampling, summary=True
    )
