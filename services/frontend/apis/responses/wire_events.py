"""The events of a stream of the Responses API as typed Structs. The writer of the stream sets their
numbers."""

from typing import TypeAlias

from msgspec import Struct

from services.frontend.apis.responses import wire, wire_answers


class StreamEvent(Struct, kw_only=True):
    """The members of every event that has a number."""

    sequence_number: int = 0


class ResponseEvent(StreamEvent, kw_only=True):
    """The Response at this moment."""

    response: wire_answers.ResponsesAnswer


class ResponseCreated(ResponseEvent, tag="response.created"):
    """The first event."""


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    """The turn begins."""


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    """The last event of a turn that ended by itself."""


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    """The last event of a turn that a limit ended."""


class ResponseFailed(ResponseEvent, tag="response.failed"):
    """The last event of a turn that ended with an error."""


LastResponseEvent: TypeAlias = ResponseCompleted | ResponseIncomplete | ResponseFailed
"""The event with which a stream ends."""


class OutputItemEvent(StreamEvent, kw_only=True):
    """An item at its place in the Response."""

    output_index: int
    item: wire_answers.Item


class OutputItemAdded(OutputItemEvent, tag="response.output_item.added"):
    """An item begins."""


class OutputItemDone(OutputItemEvent, tag="response.output_item.done"):
    """An item ends. Clients run calls at this event."""


class ItemEvent(StreamEvent, kw_only=True):
    """A change of an item."""

    item_id: str
    output_index: int


class ContentEvent(ItemEvent, kw_only=True):
    """A change of the one part of a message or of reasoning."""

    content_index: int = 0


class ContentPartEvent(ContentEvent, kw_only=True):
    """The whole part."""

    part: wire_answers.ResponsesOutputTextPart | wire.ReasoningText


class ContentPartAdded(ContentPartEvent, tag="response.content_part.added"):
    """A part begins."""


class ContentPartDone(ContentPartEvent, tag="response.content_part.done"):
    """A part ends."""


class ItemDelta(Struct, kw_only=True):
    """The next text of an item. Its number comes later than in other events."""

    item_id: str
    output_index: int


class ResponsesTextDelta(ItemDelta, kw_only=True):
    """The next text of a part."""

    content_index: int = 0
    sequence_number: int = 0
    delta: str


class OutputTextDelta(ResponsesTextDelta, kw_only=True, tag="response.output_text.delta"):
    """The next text of a message."""

    logprobs: wire_answers.TokenLogprobs


class OutputTextAnnotationAdded(
    ContentEvent, kw_only=True, tag="response.output_text.annotation.added"
):
    """A citation in the text of a message."""

    annotation_index: int
    annotation: wire_answers.UrlCitation


class OutputTextDone(ContentEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text of a message."""

    text: str
    logprobs: wire_answers.TokenLogprobs


class ReasoningTextDelta(ResponsesTextDelta, tag="response.reasoning_text.delta"):
    """The next text of reasoning."""


class ReasoningTextDone(ContentEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The whole text of reasoning."""

    text: str


class SummaryEvent(ItemEvent, kw_only=True):
    """A change of the summary of reasoning."""

    summary_index: int = 0


class SummaryPartEvent(SummaryEvent, kw_only=True):
    """The whole summary."""

    part: wire.SummaryText


class SummaryPartAdded(SummaryPartEvent, tag="response.reasoning_summary_part.added"):
    """A summary begins."""


class SummaryPartDone(SummaryPartEvent, tag="response.reasoning_summary_part.done"):
    """A summary ends."""


class SummaryTextDelta(ItemDelta, kw_only=True, tag="response.reasoning_summary_text.delta"):
    """The next text of a summary."""

    summary_index: int = 0
    sequence_number: int = 0
    delta: str


class SummaryTextDone(SummaryEvent, kw_only=True, tag="response.reasoning_summary_text.done"):
    """The whole text of a summary."""

    text: str


class CallDelta(ItemDelta, kw_only=True):
    """The next text of a call."""

    sequence_number: int = 0
    delta: str


class FunctionArgumentsDelta(CallDelta, tag="response.function_call_arguments.delta"):
    """The next text of a function's arguments."""


class FunctionArgumentsDone(ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a function."""

    arguments: str
    name: str


class CustomInputDelta(CallDelta, tag="response.custom_tool_call_input.delta"):
    """The next text of a freeform tool's input."""


class CustomInputDone(ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The whole input of a freeform tool."""

    input: str


class WebSearchInProgress(ItemEvent, tag="response.web_search_call.in_progress"):
    """A search or a fetch begins."""


class WebSearchSearching(ItemEvent, tag="response.web_search_call.searching"):
    """A search or a fetch runs."""


class WebSearchCompleted(ItemEvent, tag="response.web_search_call.completed"):
    """A search or a fetch has ended."""


DeltaEvent: TypeAlias = (
    OutputTextDelta
    | ReasoningTextDelta
    | SummaryTextDelta
    | FunctionArgumentsDelta
    | CustomInputDelta
)


class ItemDispatch(Struct):
    """A finished item once more, on request. The event has no number."""

    output_index: int
    item: wire_answers.Item


class ResponsesToolCallDispatch(ItemDispatch, tag="tool_call_dispatch"):
    """A complete call once more."""


class ResponsesReasoningDispatch(ItemDispatch, tag="reasoning_dispatch"):
    """Finished reasoning once more."""


Event: TypeAlias = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextAnnotationAdded
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | SummaryPartAdded
    | SummaryPartDone
    | SummaryTextDelta
    | SummaryTextDone
    | FunctionArgumentsDelta
    | FunctionArgumentsDone
    | CustomInputDelta
    | CustomInputDone
    | WebSearchInProgress
    | WebSearchSearching
    | WebSearchCompleted
    | ResponsesToolCallDispatch
    | ResponsesReasoningDispatch
)
Events: TypeAlias = list[Event]
