"""A client of the Messages API: writes requests, reads answers."""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Part,
    Reasoning,
    Result,
    Text,
    ToolReference,
    ToolSpec,
)
from services.templates.tools import tool_name
from turnwire_tools.clients import shared
from turnwire_tools.clients.answer import Block, BlockKind, End
from turnwire_tools.clients.shared import filler, present, require, sampling_fields

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
    thinking, choice = conversation.thinking, conversation.tool_choice
    body: dict[str, Any] = {
        "model": conversation.model,
        "stream": stream,
        "max_tokens": DEFAULT_LIMIT,
        "messages": [
            {
                "role": _ROLES.get(turn.role, turn.role),
                "content": [write_block(part) for part in turn.parts],
            }
            for turn in conversation.messages
        ],
        **sampling_fields(conversation.sampling, limit="max_tokens", stop="stop_sequences"),
        **present(
            system=[{"type": "text", "text": text.text} for text in conversation.system] or None,
            tools=[_tool(tool) for tool in conversation.tools] or None,
            output_config=None if thinking.effort is None else {"effort": thinking.effort},
        ),
    }
    if conversation.tools and (choice.mode != "auto" or not choice.parallel):
        name = tool_name(choice.name or "", choice.namespace) if choice.mode == "tool" else None
        single = True if not choice.parallel and choice.mode != "none" else None
        body["tool_choice"] = {
            "type": choice.mode,
            **present(name=name, disable_parallel_tool_use=single),
        }
    if thinking.mode != "default":
        budget = thinking.budget_tokens or 1024 if thinking.mode == "enabled" else None
        body["thinking"] = {"type": thinking.mode, **present(budget_tokens=budget)}
    return msgspec.json.encode(body)


def write_block(part: Part | ToolReference) -> dict[str, Any]:
    """A part of a message as a content block."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text=None):
            return {"type": "redacted_thinking", "data": part.seal or ""}
        case Reasoning():
            return {"type": "thinking", "thinking": part.text, "signature": part.seal or ""}
        case Call():
            name = tool_name(part.name, part.namespace)
            return {
                "type": "tool_use",
                "id": part.call_id,
                "name": name,
                "input": _input(part.arguments),
            }
        case Result():
            content = [write_block(inner) for inner in part.parts]
            error = present(is_error=part.is_error)
            return {"type": "tool_result", "tool_use_id": part.call_id, "content": content, **error}
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": name}
        case Media():
            kind = "image" if part.kind == "image" else "document"
            source = {"type": "url", "url": part.url}
            if part.url is None:
                data = filler(part.size_bytes)
                source = {"type": "base64", "media_type": part.media_type, "data": data}
            return {"type": kind, "source": source, **present(title=part.title)}
    raise AssertionError(part)


def _input(arguments: str) -> Raw | dict[str, Any]:
    """The arguments in their own spelling; arguments that are not an object, in the form that
    Claude Code uses."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Raw])
    except msgspec.DecodeError:
        return {"__unparsedToolInput": {"raw": arguments}}
    return Raw((arguments or "{}").encode())


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.schema
    if tool.kind == "custom":
        schema = {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        }
    name = tool_name(tool.name, tool.namespace)
    flags = present(strict=tool.strict, defer_loading=True if tool.deferred else None)
    return {"name": name, "description": tool.description, "input_schema": schema, **flags}


class Reader(shared.Reader):
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
        closed = not answer.blocks or answer.blocks[-1].complete
        match kind:
            case "message_start":
                self._started = True
            case "content_block_start":
                require(closed, "a block starts inside another")
                require(data["index"] == len(answer.blocks), "indices are not contiguous")
                block = answer.add(_read_block(data["content_block"]))
                block.text = ""  # the `input` of a call that begins is an empty object
            case "content_block_delta":
                require(
                    not closed and data["index"] == len(answer.blocks) - 1,
                    "a delta outside of its block",
                )
                _extend(answer.blocks[-1], data["delta"])
            case "content_block_stop":
                require(
                    not closed and data["index"] == len(answer.blocks) - 1,
                    "a stop outside of its block",
                )
                answer.blocks[-1].complete = True
            case "message_delta":
                require(closed, "message_delta: order")
                self._end(data["delta"]["stop_reason"], data["usage"])
            case _:
                require(kind == "message_stop" and answer.end is not None, f"{kind}: order")
                answer.ends += 1

    def finish(self) -> None:
        """A reasoning block has a signature."""
        thoughts = [block for block in self.answer.blocks if block.kind == "reasoning"]
        require(
            self.answer.end == "error" or all(block.seal for block in thoughts),
            "reasoning without a signature",
        )

    def _document(self, data: Any) -> None:
        for content in data["content"]:
            self.answer.add(_read_block(content)).complete = True
        self._end(data["stop_reason"], data["usage"])

    def _end(self, reason: str, usage: Any) -> None:
        cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        self.answer.end = _ENDS[reason]
        self.answer.usage = (usage["input_tokens"] + cached, usage["output_tokens"])


def _extend(block: Block, delta: Any) -> None:
    if delta["type"] == "signature_delta":
        require(
            delta["signature"] and block.kind == "reasoning" and not block.seal,
            "a signature out of place",
        )
        block.seal = delta["signature"]
        return
    kind, member = _DELTAS[delta["type"]]
    require(block.kind == kind, "a delta of another kind")
    block.text += delta[member]


def _read_block(content: Any) -> Block:
    match content["type"]:
        case "text":
            return Block("text", content["text"])
        case "thinking":
            return Block("reasoning", content["thinking"], seal=content.get("signature") or None)
        case "redacted_thinking":
            return Block("reasoning", seal=content["data"])
    return Block(
        "call",
        msgspec.json.encode(content["input"]).decode(),
        content["name"],
        content.get("id", ""),
    )
