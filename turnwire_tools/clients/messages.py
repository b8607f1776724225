"""A client of the Messages API: writes requests, reads answers."""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolChoice,
    ToolReference,
    ToolSpec,
)
from turnwire_tools.clients import shared
from turnwire_tools.clients.answer import AnswerBlock, BlockKind, End
from turnwire_tools.clients.shared import (
    IllFormed,
    JsonObject,
    filler,
    present,
    require,
    sampling_fields,
)

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
DEFAULT_LIMIT = 4096
"""The API requires `max_tokens`."""
_ROLES = {"tool": "user", "developer": "system"}
_ENDS: dict[str, End] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}

_DELTAS: dict[str, tuple[BlockKind, str]] = {
    "thinking_delta": ("reasoning", "thinking"),
    "text_delta": ("text", "text"),
    "input_json_delta": ("call", "partial_json"),
}
"""The kind of block and the member with the text, for each type of delta."""


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body for a conversation. Freeform tools become plain ones, a namespace a part of the
    name."""
    body: JsonObject = {
        "model": conversation.model,
        "stream": stream,
        "max_tokens": DEFAULT_LIMIT,
        "messages": [_message(turn) for turn in conversation.messages],
        **sampling_fields(conversation.sampling, limit="max_tokens", stop="stop_sequences"),
    }
    if conversation.system:
        body["system"] = [{"type": "text", "text": text.text} for text in conversation.system]
    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
    if conversation.thinking.effort is not None:
        body["output_config"] = {"effort": conversation.thinking.effort}

    choice = conversation.tool_choice
    if conversation.tools and (choice.mode != "auto" or not choice.parallel):
        body["tool_choice"] = _choice(choice)
    if conversation.thinking.mode != "default":
        body["thinking"] = _thinking(conversation.thinking)
    return msgspec.json.encode(body)


def _message(turn: Message) -> JsonObject:
    role = _ROLES.get(turn.role, turn.role)
    return {"role": role, "content": [write_block(part) for part in turn.parts]}


def _choice(choice: ToolChoice) -> JsonObject:
    written: JsonObject = {"type": choice.mode}
    if choice.mode == "tool":
        written["name"] = choice.rendered_name
    if choice.mode != "none" and not choice.parallel:
        written["disable_parallel_tool_use"] = True
    return written


def _thinking(thinking: Thinking) -> JsonObject:
    written: JsonObject = {"type": thinking.mode}
    if thinking.mode == "enabled":
        written["budget_tokens"] = thinking.budget_tokens or 1024
    return written


def write_block(part: Part | ToolReference) -> JsonObject:
    """A part of a message as a content block."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning():
            return _thought(part)
        case Call():
            return _call(part)
        case Result():
            return _result(part)
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": name}
        case Media():
            return _media(part)
    raise AssertionError(part)


def _thought(thought: Reasoning) -> JsonObject:
    seal = thought.seal or ""
    if thought.text is None:
        return {"type": "redacted_thinking", "data": seal}
    return {"type": "thinking", "thinking": thought.text, "signature": seal}


def _call(call: Call) -> JsonObject:
    return {
        "type": "tool_use",
        "id": call.call_id,
        "name": call.rendered_name,
        "input": _input(call.arguments),
    }


def _result(result: Result) -> JsonObject:
    return {
        "type": "tool_result",
        "tool_use_id": result.call_id,
        "content": [write_block(part) for part in result.parts],
        **present(is_error=result.is_error),
    }


def _media(media: Media) -> JsonObject:
    kind = "image" if media.kind == "image" else "document"
    source = {"type": "url", "url": media.url}
    if media.url is None:
        data = filler(media.size_bytes)
        source = {"type": "base64", "media_type": media.media_type, "data": data}
    return {"type": kind, "source": source, **present(title=media.title)}


def _input(arguments: str) -> Raw | JsonObject:
    """The arguments in their own spelling; arguments that are not an object, in the form that
    Claude Code uses."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Raw])
    except msgspec.DecodeError:
        return {"__unparsedToolInput": {"raw": arguments}}
    return Raw((arguments or "{}").encode())


def _tool(tool: ToolSpec) -> JsonObject:
    schema = tool.schema
    if tool.kind == "custom":
        schema = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    written: JsonObject = {
        "name": tool.rendered_name,
        "description": tool.description,
        "input_schema": schema,
        **present(strict=tool.strict),
    }
    if tool.deferred:
        written["defer_loading"] = True
    return written


class MessagesReader(shared.AnswerReader):
    """Reads answers; a block is complete with its `content_block_stop`."""

    def __init__(self) -> None:
        super().__init__()
        self._started = False

    def _event(self, name: str, data: Any) -> None:
        answer = self.answer
        if name == "tool_call_dispatch":
            answer.dispatch(_read_block(data["tool_call_dispatch"]))
            return
        if name == "reasoning_dispatch":
            return
        kind = data["type"]
        require(name == kind, f"event {name} has data of {kind}")
        if kind == "ping":
            return
        if kind == "error":
            answer.fail(data["error"]["message"])
            return
        require(answer.end is None or kind == "message_stop", f"{kind} after the end")
        require(self._started == (kind != "message_start"), f"{kind}: order")
        if kind.startswith("content_block_"):
            self._block_event(kind, data)
            return
        match kind:
            case "message_start":
                self._started = True
            case "message_delta":
                require(not self._is_open, "message_delta: order")
                self._end(data["delta"]["stop_reason"], data["usage"])
            case _:
                require(kind == "message_stop" and answer.end is not None, f"{kind}: order")
                answer.ends += 1

    @property
    def _is_open(self) -> bool:
        """Whether the newest block goes on."""
        blocks = self.answer.blocks
        return bool(blocks) and not blocks[-1].complete

    def _block_event(self, kind: str, data: Any) -> None:
        blocks = self.answer.blocks
        is_in_block = self._is_open and data["index"] == len(blocks) - 1
        match kind:
            case "content_block_start":
                require(not self._is_open, "a block starts inside another")
                require(data["index"] == len(blocks), "indices are not contiguous")
                block = self.answer.add(_read_block(data["content_block"]))
                block.text = ""  # the `input` of a call that begins is an empty object
            case "content_block_delta":
                require(is_in_block, "a delta outside of its block")
                _extend(blocks[-1], data["delta"])
            case "content_block_stop":
                require(is_in_block, "a stop outside of its block")
                blocks[-1].complete = True
            case _:
                raise IllFormed(f"{kind}: order")

    def finish(self) -> None:
        """A reasoning block has a signature."""
        if self.answer.end == "error":
            return
        thoughts = [block for block in self.answer.blocks if block.kind == "reasoning"]
        require(all(block.seal for block in thoughts), "reasoning without a signature")

    def _document(self, data: Any) -> None:
        for content in data["content"]:
            self.answer.add(_read_block(content)).complete = True
        self._end(data["stop_reason"], data["usage"])

    def _end(self, reason: str, usage: Any) -> None:
        cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        self.answer.end = _ENDS[reason]
        self.answer.usage = (usage["input_tokens"] + cached, usage["output_tokens"])


def _extend(block: AnswerBlock, delta: Any) -> None:
    if delta["type"] == "signature_delta":
        is_unsealed = block.kind == "reasoning" and not block.seal
        require(delta["signature"] and is_unsealed, "a signature out of place")
        block.seal = delta["signature"]
        return
    kind, member = _DELTAS[delta["type"]]
    require(block.kind == kind, "a delta of another kind")
    block.text += delta[member]


def _read_block(content: Any) -> AnswerBlock:
    match content["type"]:
        case "text":
            return AnswerBlock("text", content["text"])
        case "thinking":
            return AnswerBlock(
                "reasoning", content["thinking"], seal=content.get("signature") or None
            )
        case "redacted_thinking":
            return AnswerBlock("reasoning", seal=content["data"])
    arguments = msgspec.json.encode(content["input"]).decode()
    return AnswerBlock("call", arguments, content["name"], content.get("id", ""))
