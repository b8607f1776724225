"""Applies the edits of `context_management` that depend on the size of the prompt, which a model
counts: clears tool results, and replaces a long conversation by a summary."""

from msgspec.structs import replace

from schemas.conversation import Conversation
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.compaction.edit import CompactEdit, summary_of
from services.frontend.apis.messages.context_edits import (
    CLEAR_THINKING,
    CLEAR_TOOLS,
    DEFAULT_TRIGGER,
    Edits,
    clear_tool_uses,
    exceeds_uses,
)
from services.frontend.apis.messages.request import DIALECT, MessagesRequest
from services.frontend.turns.compaction import write_summary
from services.frontend.turns.turn_service import ModelAccess


async def apply_context_edits(request: MessagesRequest, model: ModelAccess) -> MessagesRequest:
    """The request as the model sees it, and what its edits cleared. Raises as
    `ModelAccess.count`."""
    edits = request.edits
    if edits is None:
        return request
    tokens = 0  # not counted
    if edits.before:
        original = await model.count(replace(request.conversation, messages=edits.before))
        tokens = await model.count(request.conversation)
        edits = _with_cleared_thinking(edits, original, tokens)

    conversation = request.conversation
    if edits.tools is not None:
        conversation, edits = await _clear_tools(conversation, edits, edits.tools, tokens, model)
    return replace(request, conversation=conversation, edits=edits)


async def compact(request: MessagesRequest, model: ModelAccess) -> MessagesRequest:
    """The request after compaction, if it needs one. Raises TurnwireError."""
    edit = request.compact
    conversation = request.conversation
    if edit is None or not await _is_due(edit, conversation, model):
        return request

    summary_request = edit.request(conversation)
    if edit.pause:
        return replace(request, conversation=summary_request, pausing=True)
    compaction = summary_of(await write_summary(summary_request, model, DIALECT.name))
    if compaction.summary is not None:
        conversation = edit.conversation_after(conversation, compaction.summary)
    return replace(request, conversation=conversation, compaction=compaction)


def _with_cleared_thinking(edits: Edits, original: int, tokens: int) -> Edits:
    applied = edits.with_applied(
        CLEAR_THINKING,
        cleared_thinking_turns=edits.thinking_turns,
        cleared_input_tokens=max(original - tokens, 0),
    )
    return replace(applied, original_tokens=original)


async def _clear_tools(
    conversation: Conversation,
    edits: Edits,
    edit: wire.ContextEdit,
    tokens: int,
    model: ModelAccess,
) -> tuple[Conversation, Edits]:
    """Clears tool uses, if there are enough of them. `tokens`: of the prompt; 0: not
    counted."""
    trigger = edit.trigger or DEFAULT_TRIGGER
    messages, uses = clear_tool_uses(conversation.messages, edit)
    if not uses or not exceeds_uses(conversation.messages, trigger):
        return conversation, edits

    if not tokens:
        tokens = await model.count(conversation)
        edits = replace(edits, original_tokens=tokens)
    if trigger.type == "input_tokens" and tokens <= trigger.value:
        return conversation, edits

    edited = replace(conversation, messages=messages)
    saved = tokens - await model.count(edited)
    least = edit.clear_at_least.value if edit.clear_at_least else 0
    if saved < least:
        return conversation, edits
    edits = edits.with_applied(
        CLEAR_TOOLS, cleared_tool_uses=uses, cleared_input_tokens=max(saved, 0)
    )
    return edited, edits


async def _is_due(edit: CompactEdit, conversation: Conversation, model: ModelAccess) -> bool:
    # The answer continues a last message of the assistant, which a compaction would remove.
    if not conversation.messages or conversation.messages[-1].role == "assistant":
        return False
    window = model.card_for(conversation).max_model_len
    return edit.applies(await model.count(conversation), window)
