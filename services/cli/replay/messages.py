"""The Messages API from a client's side: conversations as requests, streams as answers."""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import Call, Conversation, Media, Part, Reasoning, Result, Text, ToolReference, ToolSpec, Turn
from services.cli.replay.answer import Answer, Block
from services.cli.replay.media import filler
from services.cli.replay.script import End

PATH = "/v1/messages"
DEFAULT_LIMIT = 4096
"""The API wants `max_tokens`."""
_ENDS: dict[str, End] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body that says this. Freeform and namespaced tools are plain ones of the told name, developers are system."""
    sampling, thinking, choice = conversation.sampling, conversation.thinking, conversation.tool_choice
    limit = DEFAULT_LIMIT if sampling.max_tokens is None else sampling.max_tokens
    body: dict[str, Any] = {
        "model": conversation.model,
        "stream": stream,
        "max_tokens": limit,
        "messages": [_message(turn) for turn in conversation.turns],
    }
    if conversation.system:
        body["system"] = [{"type": "text", "text": text.text} for text in conversation.system]
    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
        if choice.mode != "auto" or not choice.parallel:
            chosen: dict[str, Any] = {"type": choice.mode}
            if choice.mode == "tool":
                chosen["name"] = told(choice.name or "", choice.namespace)
            if not choice.parallel and choice.mode != "none":
                chosen["disable_parallel_tool_use"] = True
            body["tool_choice"] = chosen
    if sampling.stop:
        body["stop_sequences"] = sampling.stop
    for name in ("temperature", "top_p", "top_k"):
        if getattr(sampling, name) is not None:
            body[name] = getattr(sampling, name)
    if thinking.mode != "default":
        body["thinking"] = {"type": thinking.mode}
        if thinking.mode == "enabled":
            body["thinking"]["budget_tokens"] = thinking.budget_tokens or 1024
    if thinking.effort is not None:
        body["output_config"] = {"effort": thinking.effort}
    return msgspec.json.encode(body)


def told(name: str, namespace: str | None) -> str:
    """A tool's one name."""
    return f"{namespace}__{name}" if namespace else name


def _message(turn: Turn) -> dict[str, Any]:
    role = {"tool": "user", "developer": "system"}.get(turn.role, turn.role)
    return {"role": role, "content": [_block(part) for part in turn.parts]}


def _block(part: Part | ToolReference) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text=None):
            return {"type": "redacted_thinking", "data": part.seal or ""}
        case Reasoning():
            return {"type": "thinking", "thinking": part.text, "signature": part.seal or ""}
        case Call():
            name = told(part.name, part.namespace)
            return {"type": "tool_use", "id": part.call_id, "name": name, "input": _input(part.arguments)}
        case Result():
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.call_id}
            result["content"] = [_block(inner) for inner in part.parts]
            return result if part.is_error is None else {**result, "is_error": part.is_error}
        case ToolReference(name):
            return {"type": "tool_reference", "tool_name": name}
        case Media():
            return _media(part)
    raise AssertionError(part)


def _input(arguments: str) -> Raw | dict[str, Any]:
    """The object as it was spelled; what is none goes as Claude Code sends it."""
    try:
        msgspec.json.decode(arguments or "{}", type=dict[str, Raw])
    except msgspec.DecodeError:
        return {"__unparsedToolInput": {"raw": arguments}}
    return Raw((arguments or "{}").encode())


def _media(media: Media) -> dict[str, Any]:
    kind = "image" if media.kind == "image" else "document"
    if media.url is not None:
        block: dict[str, Any] = {"type": kind, "source": {"type": "url", "url": media.url}}
    else:
        block = {
            "type": kind,
            "source": {"type": "base64", "media_type": media.media_type, "data": filler(media.size_bytes)},
        }
    return block if media.title is None else {**block, "title": media.title}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = tool.schema
    if tool.kind == "custom":
        schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    spec: dict[str, Any] = {"name": told(tool.name, tool.namespace), "description": tool.description}
    spec["input_schema"] = schema
    if tool.strict is not None:
        spec["strict"] = tool.strict
    return {**spec, "defer_loading": True} if tool.deferred else spec


class Reader:
    """Reads answers; a block is complete with its `content_block_stop`."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._open: Block | None = None

    def event(self, name: str, data: Any) -> None:
        """See `answer.Reader`."""
        answer = self.answer
        if name == "tool_call_dispatch":
            call = data["tool_call_dispatch"]
            answer.dispatch(call["name"], msgspec.json.encode(call["input"]).decode())
            return
        if answer.end is not None and data["type"] not in ("message_stop", "ping"):
            answer.after_end.append(data["type"])
        match data["type"]:
            case "message_start":
                self._count(data["message"]["usage"])
            case "content_block_start":
                self._open = self._begin(data["content_block"])
            case "content_block_delta":
                self._delta(data["delta"])
            case "content_block_stop":
                assert self._open is not None
                self._open.complete, self._open = True, None
            case "message_delta":
                self._count(data["usage"])
                answer.end = _ENDS[data["delta"]["stop_reason"]]
            case "error":
                answer.end, answer.problem = "error", data["error"]["message"]

    def document(self, data: Any) -> None:
        """See `answer.Reader`."""
        for content in data["content"]:
            block = self._begin(content)
            block.text = content.get("thinking") or content.get("text") or ""
            block.seal = content.get("signature") or block.seal
            if block.kind == "call":
                block.text = msgspec.json.encode(content["input"]).decode()
            block.complete = True
        self.answer.end = _ENDS[data["stop_reason"]]
        self._count(data["usage"])

    def _begin(self, content: Any) -> Block:
        match content["type"]:
            case "thinking":
                return self.answer.add(Block("reasoning"))
            case "redacted_thinking":
                return self.answer.add(Block("reasoning", seal=content["data"]))
            case "text":
                return self.answer.add(Block("text"))
        return self.answer.add(Block("call", name=content["name"], call_id=content["id"]))

    def _delta(self, delta: Any) -> None:
        block = self._open
        assert block is not None
        match delta["type"]:
            case "thinking_delta":
                block.text += delta["thinking"]
            case "signature_delta":
                block.seal = delta["signature"]
            case "text_delta":
                block.text += delta["text"]
            case "input_json_delta":
                block.text += delta["partial_json"]

    def _count(self, usage: Any) -> None:
        cached = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        self.answer.usage = (usage["input_tokens"] + cached, usage["output_tokens"])
