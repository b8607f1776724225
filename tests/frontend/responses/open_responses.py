"""Checks answers against the schemas of the Open Responses specification.

Every object is checked for required members, for their types, and for unknown members.
"""

from typing import Any

from msgspec import Struct, convert


class Strict(Struct, forbid_unknown_fields=True, kw_only=True):
    """An object without missing or unknown members."""


class Details(Strict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Strict):
    reasoning_tokens: int


class Usage(Strict):
    input_tokens: int
    input_tokens_details: Details
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Error(Strict):
    code: str
    message: str


class Incomplete(Strict):
    reason: str


class Response(Strict):
    """The members that Open Responses and the SDK's strict types require, and those of the native
    API."""

    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: Incomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | list[Any] | None
    output: list[dict[str, Any]]
    error: Error | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    truncation: str
    parallel_tool_calls: bool
    text: dict[str, Any]
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: dict[str, Any] | None
    user: str | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None


class OutputText(Strict):
    type: str
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class Message(Strict):
    id: str
    type: str
    role: str
    status: str
    content: list[OutputText]


class FunctionCall(Strict):
    id: str
    type: str
    call_id: str
    name: str
    arguments: str
    status: str


class Text(Strict):
    type: str
    text: str


class ReasoningItem(Struct, forbid_unknown_fields=True, kw_only=True):
    id: str
    type: str
    summary: list[Text]
    content: list[Text] | None = None
    encrypted_content: str | None = None
    status: str | None = None


ITEMS: dict[str, type] = {
    "message": Message,
    "function_call": FunctionCall,
    "reasoning": ReasoningItem,
}

_RESPONSE: dict[str, type] = {"response": dict}
_ITEM: dict[str, type] = {"output_index": int, "item": dict}
_PART: dict[str, type] = {"item_id": str, "output_index": int, "content_index": int, "part": dict}
_SUMMARY: dict[str, type] = {"item_id": str, "output_index": int, "summary_index": int}
EVENTS: dict[str, dict[str, type]] = {
    "response.created": _RESPONSE,
    "response.queued": _RESPONSE,
    "response.in_progress": _RESPONSE,
    "response.completed": _RESPONSE,
    "response.incomplete": _RESPONSE,
    "response.failed": _RESPONSE,
    "response.output_item.added": _ITEM,
    "response.output_item.done": _ITEM,
    "response.content_part.added": _PART,
    "response.content_part.done": _PART,
    "response.output_text.delta": {
        "item_id": str,
        "output_index": int,
        "content_index": int,
        "delta": str,
        "logprobs": list,
    },
    "response.output_text.done": {
        "item_id": str,
        "output_index": int,
        "content_index": int,
        "text": str,
        "logprobs": list,
    },
    "response.function_call_arguments.delta": {"item_id": str, "output_index": int, "delta": str},
    "response.function_call_arguments.done": {
        "item_id": str,
        "output_index": int,
        "arguments": str,
    },
    "response.reasoning_summary_part.added": {**_SUMMARY, "part": dict},
    "response.reasoning_summary_part.done": {**_SUMMARY, "part": dict},
    "response.reasoning_summary_text.delta": {**_SUMMARY, "delta": str},
    "response.reasoning_summary_text.done": {**_SUMMARY, "text": str},
    "error": {"code": str, "message": str, "param": str},
}
"""The events of the suite's union that a text model makes, and their required members in addition
to `type` and `sequence_number`."""
TERMINAL = ("response.completed", "response.incomplete", "response.failed")


def check_response(document: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    """Checks a Response and its items."""
    response = convert(document, Response, strict=True)
    assert (response.object, response.status) == ("response", status)
    for item in response.output:
        convert(item, ITEMS[item["type"]])
    for tool in response.tools:
        if tool["type"] == "function":
            assert {"name", "description", "parameters", "strict"} <= tool.keys()
    return document


def check_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Checks a stream, and returns its final Response.

    Every index, id and text of an event must agree with the earlier events and with the final
    Response.
    """
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert [event["type"] for event in events if event["type"] in TERMINAL] == [events[-1]["type"]]
    open_items: dict[int, str] = {}
    pieces: dict[tuple[str, str], str] = {}
    done: list[dict[str, Any]] = []
    for event in events:
        members = EVENTS[event["type"]]
        optional = {"name"} if event["type"] == "response.function_call_arguments.done" else set()
        assert members.keys() | {"type", "sequence_number"} == event.keys() - optional
        for member, kind in members.items():
            assert isinstance(event[member], kind), (event, member)
        if "response" in members and event["type"] not in TERMINAL:
            check_response(event["response"], "in_progress")
            assert event["response"]["output"] == []
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(open_items)
            open_items[event["output_index"]] = event["item"]["id"]
        if "item_id" in members:
            assert open_items[event["output_index"]] == event["item_id"]
        if event["type"].endswith(".delta"):
            key = (event["item_id"], event["type"].removesuffix(".delta"))
            pieces[key] = pieces.get(key, "") + event["delta"]
        if event["type"].endswith(("_text.done", "_arguments.done")):
            whole = event.get("text", event.get("arguments"))
            assert pieces.get((event["item_id"], event["type"].removesuffix(".done")), "") == whole
        if event["type"] == "response.output_item.done":
            assert open_items[event["output_index"]] == event["item"]["id"]
            done.append(event["item"])
    last = events[-1]
    response: dict[str, Any] = last["response"]
    check_response(response, last["type"].removeprefix("response."))
    if last["type"] == "response.completed":
        assert response["output"] == done
    return response
