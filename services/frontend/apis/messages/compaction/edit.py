"""`compact_20260112` of `context_management`: replaces a long conversation by a summary. Pure.

Where a prompt is larger than the edit's trigger, a separate turn writes a summary of the whole
conversation, and the request is answered from the instructions and the summary. The answer begins
with a `compaction` block, which stands for everything before it when the client sends it back. With
`pause_after_compaction` the block is the whole answer.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from schemas.conversation import Conversation, Message, Text, ToolSpec
from schemas.events import Finish, TurnEvent, Usage
from services.frontend.apis.messages import wire, wire_answers, wire_events
from services.frontend.apis.messages.context_edits import edit_of
from services.frontend.turns.compaction import request_summary, summary_text

COMPACT = "compact_20260112"
DEFAULT_TRIGGER = 150_000
WINDOW_SHARE = 0.8
"""The share of the context window that is the trigger where the default trigger is larger."""


class CompactEdit(Struct, frozen=True):
    """The edit of a request."""

    trigger: int | None
    """The prompt size in tokens above which the edit applies; None: the default."""
    pause: bool
    instructions: str | None
    tools: list[ToolSpec]
    """The tools of the request, without the changes that messages make to them."""

    def applies(self, tokens: int, window: int) -> bool:
        """Whether a prompt is too large. `window`: the model's context window; 0: unknown."""
        if self.trigger is not None:
            return tokens > self.trigger
        if not window:
            return tokens > DEFAULT_TRIGGER
        return tokens > min(DEFAULT_TRIGGER, window * WINDOW_SHARE)

    def conversation_after(self, conversation: Conversation, summary: str) -> Conversation:
        """The conversation that the client's next request will have, with the block in place of the
        history."""
        return replace(conversation, messages=[Message("user", [Text(summary)])], tools=self.tools)

    def request(self, conversation: Conversation) -> Conversation:
        """The conversation that asks for the summary, without a limit of its length."""
        summary_request = request_summary(conversation, self.instructions)
        return replace(summary_request, sampling=replace(summary_request.sampling, max_tokens=None))


class AnswerCompaction(Struct, frozen=True):
    """The compaction at the beginning of an answer."""

    summary: str | None
    """None: the model wrote no summary, and nothing was compacted."""
    usage: Usage


def read_compact_edit(
    management: wire.ContextManagement | None, tools: list[ToolSpec]
) -> CompactEdit | None:
    """The edit, if the request has one. Raises Invalid."""
    located = edit_of(management, COMPACT)
    if located is None:
        return None
    edit = located.edit
    trigger = edit.trigger
    if trigger and (trigger.type != "input_tokens" or trigger.value < 1):
        raise located.invalid("trigger", "Input should be a number of `input_tokens` from 1")
    return CompactEdit(
        trigger=trigger.value if trigger else None,
        pause=bool(edit.pause_after_compaction),
        instructions=(edit.instructions or "").strip() or None,
        tools=tools,
    )


def summary_of(events: Sequence[TurnEvent]) -> AnswerCompaction:
    """The summary that a whole turn wrote, and the turn's usage."""
    last = events[-1]
    usage = last.usage if isinstance(last, Finish) else Usage()
    return AnswerCompaction(summary_text(events) or None, usage)


def block_events(
    compaction: AnswerCompaction,
) -> wire_events.Events:
    """The events of the block. The summary is one delta, as in the native API."""
    return [
        wire_events.ContentBlockStart(0, wire_answers.CompactionContent(None)),
        wire_events.ContentBlockDelta(0, wire_events.CompactionDelta(compaction.summary)),
        wire_events.ContentBlockStop(0),
    ]
