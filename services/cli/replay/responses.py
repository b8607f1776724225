"""The Responses API from a client's side: conversations as requests, streams as answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.conversation import Call, Conversation, Media, Reasoning, Result, Text, ToolReference, ToolSpec, Turn
from services.cli.replay.answer import Answer, Block
from services.cli.replay.media import data_url

PATH = "/v1/responses"
_TEXTS = {"assistant": "output_text"}


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body that says this. Whether a result is an error has no place in this API."""
    sampling, thinking, choice = conversation.sampling, conversation.thinking, conversation.tool_choice
    kinds: Mapping[str, str] = {
        part.call_id: part.kind for turn in conversation.turns for part in turn.parts if isinstance(part, Call)
    }
    body: dict[str, Any] = {
        "model": conversation.model,
        "stream": stream,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [item for turn in conversation.turns for item in _items(turn, kinds)],
        "parallel_tool_calls": choice.parallel,
    }
    if len(conversation.system) == 1:
        body["instructions"] = conversation.system[0].text
    elif conversation.system:  # the field holds one text: several are messages
        texts = [Turn("system", [text]) for text in conversation.system]
        body["input"] = [*(item for turn in texts for item in _items(turn, kinds)), *body["input"]]
    if conversation.tools:
        body["tools"] = _tools(conversation.tools)
        if choice.mode != "auto":
            body["tool_choice"] = {"any": "required", "none": "none"}.get(choice.mode) or _chosen(conversation)
    if sampling.max_tokens is not None:
        body["max_output_tokens"] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = sampling.stop
    for name in ("temperature", "top_p", "top_k"):
        if getattr(sampling, name) is not None:
            body[name] = getattr(sampling, name)
    if thinking.effort is not None or thinking.mode == "disabled":
        body["reasoning"] = {"effort": "none" if thinking.mode == "disabled" else thinking.effort}
    return msgspec.json.encode(body)


def _chosen(conversation: Conversation) -> dict[str, Any]:
    choice = conversation.tool_choice
    custom = any(tool.name == choice.name and tool.kind == "custom" for tool in conversation.tools)
    chosen = {"type": "custom" if custom else "function", "name": choice.name}
    return {**chosen, "namespace": choice.namespace} if choice.namespace else chosen


def _items(turn: Turn, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []

    def flush() -> None:
        if said:
            items.append({"type": "message", "role": turn.role, "content": list(said)})
            said.clear()

    for part in turn.parts:
        if isinstance(part, Text):
            said.append({"type": _TEXTS.get(turn.role, "input_text"), "text": part.text})
        elif isinstance(part, Media):
            said.append(_media(part))
        else:
            flush()
            items.append(_item(part, kinds))
    if not turn.parts:
        items.append({"type": "message", "role": turn.role, "content": []})
    flush()
    return items


def _item(part: Reasoning | Call | Result, kinds: Mapping[str, str]) -> dict[str, Any]:
    match part:
        case Reasoning():
            item: dict[str, Any] = {"type": "reasoning"}
            item["summary"] = [{"type": "summary_text", "text": text} for text in part.summary]
            if part.text is not None:
                item["content"] = [{"type": "reasoning_text", "text": part.text}]
            if part.seal is not None:
                item["encrypted_content"] = part.seal
            return item if part.id is None else {**item, "id": part.id}
        case Call():
            custom = part.kind == "custom"
            item = {"type": "custom_tool_call" if custom else "function_call", "call_id": part.call_id}
            item["name"] = part.name
            if custom:
                item["input"] = msgspec.json.decode(part.arguments)["input"]
            else:
                item["arguments"] = part.arguments
            if part.namespace is not None:
                item["namespace"] = part.namespace
            return item if part.item_id is None else {**item, "id": part.item_id}
    kind = "custom_tool_call_output" if kinds.get(part.call_id) == "custom" else "function_call_output"
    output = [_result(inner) for inner in part.parts]
    return {"type": kind, "call_id": part.call_id, "output": output}


def _result(part: Text | Media | ToolReference) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Media):
        return _media(part)
    return {"type": "input_text", "text": f"Tool {part.name} was loaded."}


def _media(media: Media) -> dict[str, Any]:
    if media.kind == "image":
        return {"type": "input_image", "image_url": media.url or data_url(media)}
    if media.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    file: dict[str, Any] = {"type": "input_file"}
    if media.title is not None:
        file["filename"] = media.title
    return {**file, "file_url": media.url} if media.url is not None else {**file, "file_data": data_url(media)}


def _tools(tools: list[ToolSpec]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    spaces: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool.namespace is None:
            shown.append(_tool(tool))
            continue
        if tool.namespace not in spaces:
            spaces[tool.namespace] = {"type": "namespace", "name": tool.namespace, "tools": []}
            shown.append(spaces[tool.namespace])
        spaces[tool.namespace]["tools"].append(_tool(tool))
    return shown


def _tool(tool: ToolSpec) -> dict[str, Any]:
    spec: dict[str, Any] = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "function":
        spec["parameters"] = tool.schema
        if tool.strict is not None:
            spec["strict"] = tool.strict
    elif tool.grammar is not None:
        grammar = tool.grammar
        spec["format"] = {"type": "grammar", "syntax": grammar.syntax, "definition": grammar.definition}
    return {**spec, "defer_loading": True} if tool.deferred else spec


class Reader:
    """Reads answers; an item is complete with its `output_item.done`, which alone Codex goes by."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._items: dict[int, Block] = {}

    def event(self, name: str, data: Any) -> None:
        """See `answer.Reader`."""
        answer = self.answer
        if data is None:
            return
        if answer.end is not None:
            answer.after_end.append(data["type"])
        match data["type"]:
            case "response.output_item.added":
                self._items[data["output_index"]] = answer.add(_block(data["item"]))
            case (
                "response.output_text.delta"
                | "response.reasoning_text.delta"
                | "response.function_call_arguments.delta"
                | "response.custom_tool_call_input.delta"
            ):
                self._items[data["output_index"]].text += data["delta"]
            case "response.output_item.done":
                self._done(self._items[data["output_index"]], data["item"])
            case "tool_call_dispatch":
                block = _block(data["item"])
                answer.dispatch(block.told, block.arguments)
            case "response.completed" | "response.incomplete" | "response.failed":
                self._end(data["response"])

    def document(self, data: Any) -> None:
        """See `answer.Reader`."""
        for item in data["output"]:
            self.answer.add(_block(item)).complete = True
        self._end(data)

    def _done(self, block: Block, item: Any) -> None:
        whole = _block(item)
        assert whole.text == block.text, f"the deltas say {block.text!r}, the item {whole.text!r}"
        assert (whole.kind, whole.name, whole.call_id) == (block.kind, block.name, block.call_id)
        block.seal, block.complete = whole.seal, True

    def _end(self, response: Any) -> None:
        answer = self.answer
        if response["status"] == "failed":
            answer.end, answer.problem = "error", response["error"]["message"]
        elif response["status"] == "incomplete":
            answer.end = "length"
        else:
            answer.end = "calls" if any(block.kind == "call" for block in answer.blocks) else "stop"
        usage = response.get("usage")
        if usage is not None:
            answer.usage = (usage["input_tokens"], usage["output_tokens"])


def _block(item: Any) -> Block:
    match item["type"]:
        case "reasoning":
            text = "".join(part["text"] for part in item.get("content") or [])
            return Block("reasoning", text, seal=item.get("encrypted_content"))
        case "message":
            return Block("text", "".join(part["text"] for part in item["content"]))
    custom = item["type"] == "custom_tool_call"
    text = item["input"] if custom else item["arguments"]
    return Block("call", text, item["name"], item["call_id"], custom=custom, namespace=item.get("namespace"))
