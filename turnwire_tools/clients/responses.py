"""A client of the Responses API: writes requests, reads answers."""

from typing import Any

import msgspec
from msgspec import Raw

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Reasoning,
    Result,
    Text,
    ToolChoice,
    ToolReference,
    ToolSpec,
)
from turnwire_tools.clients import shared
from turnwire_tools.clients.answer import AnswerBlock
from turnwire_tools.clients.shared import JsonObject, media_url, present, require, sampling_fields

PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"
_SEARCH = "tool_search"
"""The tool that loads deferred ones."""


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body for a conversation. The API has no errors of tools. Tools that a server runs are
    written as the client's: so a request is one turn of the model."""
    turns = conversation.messages
    system = conversation.system
    if len(system) > 1:  # `instructions` is one text
        turns = [*(Message("system", [text]) for text in system), *turns]
    results = _ResultWriter(conversation.tools, turns)
    items: list[JsonObject] = []
    for turn in turns:
        items += _items(turn, results)

    choice = conversation.tool_choice
    body: JsonObject = {
        "model": conversation.model,
        "stream": stream,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": items,
        "parallel_tool_calls": choice.parallel,
        **sampling_fields(conversation.sampling, limit="max_output_tokens"),
    }
    if len(system) == 1:
        body["instructions"] = system[0].text
    if conversation.tools:
        body["tools"] = _tools(conversation.tools)
    thinking = conversation.thinking
    effort = "none" if thinking.mode == "disabled" else thinking.effort
    if effort is not None:
        body["reasoning"] = {"effort": effort}
    if conversation.tools and choice.mode != "auto":
        body["tool_choice"] = _choice(choice, conversation.tools)
    return msgspec.json.encode(body)


class _ResultWriter:
    """Writes results. What kind of item one is depends on its call."""

    def __init__(self, tools: list[ToolSpec], turns: list[Message]) -> None:
        self._tools = {tool.rendered_name: tool for tool in tools}
        parts = [part for turn in turns for part in turn.parts]
        self._calls = {part.call_id: part for part in parts if isinstance(part, Call)}

    def write(self, result: Result) -> JsonObject:
        call = self._calls.get(result.call_id)
        if call is not None and call.name == _SEARCH:
            return self._found(result)
        is_custom = call is not None and call.kind == "custom"
        return {
            "type": "custom_tool_call_output" if is_custom else "function_call_output",
            "call_id": result.call_id,
            "output": [_content(inner) for inner in result.parts],
        }

    def _found(self, result: Result) -> JsonObject:
        names = [part.name for part in result.parts if isinstance(part, ToolReference)]
        tools: list[JsonObject] = []
        for name in filter(self._tools.get, names):
            tools += _tools([self._tools[name]])
        return {
            "type": "tool_search_output",
            "call_id": result.call_id,
            "execution": "client",
            "tools": tools,
        }


def _choice(choice: ToolChoice, tools: list[ToolSpec]) -> str | JsonObject:
    match choice.mode:
        case "any":
            return "required"
        case "none":
            return "none"
    is_custom = any(tool.name == choice.name and tool.kind == "custom" for tool in tools)
    chosen: JsonObject = {
        "type": "custom" if is_custom else "function",
        "name": choice.name,
    }
    if choice.namespace:
        chosen["namespace"] = choice.namespace
    return chosen


def _items(turn: Message, results: _ResultWriter) -> list[JsonObject]:
    items: list[JsonObject] = []
    ids = iter(turn.ids)
    for part in turn.parts:
        if not isinstance(part, Text | Media):
            items.append(_item(part, results))
            continue
        if not items or items[-1]["type"] != "message":
            items.append(
                {"type": "message", "role": turn.role, "content": [], **present(id=next(ids, None))}
            )
        text_type = "output_text" if turn.role == "assistant" else "input_text"
        items[-1]["content"].append(_content(part, text_type))
    return items or [{"type": "message", "role": turn.role, "content": []}]


def _item(part: Reasoning | Call | Result, results: _ResultWriter) -> JsonObject:
    match part:
        case Reasoning():
            return _thought(part)
        case Call():
            return _call(part)
        case Result():
            return results.write(part)


def _thought(thought: Reasoning) -> JsonObject:
    summary = [{"type": "summary_text", "text": text} for text in thought.summary]
    item: JsonObject = {"type": "reasoning", "summary": summary}
    if thought.text is not None:
        item["content"] = [{"type": "reasoning_text", "text": thought.text}]
    return item | present(encrypted_content=thought.seal, id=thought.id)


def _call(call: Call) -> JsonObject:
    if call.name == _SEARCH:
        return {
            "type": "tool_search_call",
            "call_id": call.call_id,
            "execution": "client",
            "arguments": Raw(call.arguments.encode()),
            **present(id=call.item_id),
        }
    if call.kind == "custom":
        text = msgspec.json.decode(call.arguments)["input"]
        item = {"type": "custom_tool_call", "input": text}
    else:
        item = {"type": "function_call", "arguments": call.arguments}
    return {
        **item,
        "call_id": call.call_id,
        "name": call.name,
        **present(namespace=call.namespace, id=call.item_id),
    }


def _content(part: Text | Media | ToolReference, text_type: str = "input_text") -> JsonObject:
    match part:
        case Text(text):
            return {"type": text_type, "text": text}
        case ToolReference(name):
            return {"type": text_type, "text": f"Tool {name} was loaded."}
        case Media(kind="image"):
            return {"type": "input_image", "image_url": media_url(part)}
        case Media(kind="audio"):
            return {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    source = "file_data" if part.url is None else "file_url"
    return {"type": "input_file", **present(filename=part.title), source: media_url(part)}


def _tools(tools: list[ToolSpec]) -> list[JsonObject]:
    entries: list[JsonObject] = []
    namespaces: dict[str, list[JsonObject]] = {}
    for tool in tools:
        if tool.namespace is None:
            entries.append(_tool(tool))
            continue
        if tool.namespace not in namespaces:
            members = namespaces[tool.namespace] = []
            entries.append({"type": "namespace", "name": tool.namespace, "tools": members})
        namespaces[tool.namespace].append(_tool(tool))
    return entries


def _tool(tool: ToolSpec) -> JsonObject:
    if tool.name == _SEARCH:
        return {
            "type": _SEARCH,
            "execution": "client",
            "description": tool.description,
            "parameters": tool.schema,
        }
    spec: JsonObject = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "function":
        spec |= {"parameters": tool.schema, **present(strict=tool.strict)}
    elif tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        spec["format"] = {"type": "grammar", **grammar}
    if tool.deferred:
        spec["defer_loading"] = True
    return spec


class ResponsesReader(shared.AnswerReader):
    """Reads answers; an item is complete with its `output_item.done`, the only event that Codex
    acts on."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0
        self._done = False
        self._items: list[Any] = []

    def _event(self, name: str, data: Any) -> None:
        answer = self.answer
        require(not self._done, "data after [DONE]")
        if data is None:
            require(answer.ends, "[DONE] before the end")
            self._done = True
            return
        if name == "tool_call_dispatch":
            answer.dispatch(_block(data["item"]))
            return
        if name == "reasoning_dispatch":
            return
        kind = data["type"]
        require(name == kind, f"event {name} has data of {kind}")
        if kind == "keepalive":
            return
        self._check_order(kind, data["sequence_number"])
        match kind:
            case "response.output_item.added" | "response.output_item.done":
                self._item_event(kind, data)
            case "response.completed" | "response.incomplete":
                self._check_output(data["response"]["output"])
                answer.ends += 1
                self._end(data["response"])
            case "response.failed":
                # An `error` comes before: together they are one end.
                answer.ends += answer.end != "error"
                self._end(data["response"])
            case "error":
                answer.fail(data["message"])
            case _:
                self._content_event(kind, data)

    def _check_order(self, kind: str, number: int) -> None:
        require(number == self._next, f"number {number}, not {self._next}")
        self._next += 1
        require((kind == "response.created") == (self._next == 1), "response.created: order")
        is_failure = kind in ("error", "response.failed")
        require(not self.answer.ends or is_failure, f"{kind} after the end")

    def _check_output(self, output: list[Any]) -> None:
        newest = self.answer.blocks[-1] if self.answer.blocks else None
        if newest is not None and not newest.complete:
            # A cut call that looks complete has no `output_item.done`.
            require(newest.kind == "call" and bool(output), "an item has no end")
            *output, cut = output
            require(cut["status"] == "incomplete", "a complete item has no end")
            _check_same(newest, _block(cut))
        require(output == self._items, "the response is not what its items were")

    def _is_in_item(self, data: Any) -> bool:
        """Whether an event belongs to the newest item, which goes on."""
        blocks = self.answer.blocks
        if not blocks or blocks[-1].complete:
            return False
        return bool(data["output_index"] == len(blocks) - 1)

    def _item_event(self, kind: str, data: Any) -> None:
        blocks = self.answer.blocks
        if kind == "response.output_item.done":
            require(self._is_in_item(data), "an item ends out of place")
            self._complete(blocks[-1], data["item"])
            return
        is_open = bool(blocks) and not blocks[-1].complete
        is_next = data["output_index"] == len(blocks)
        require(is_next and not is_open, "items are not contiguous")
        self.answer.add(_block(data["item"]))

    def _content_event(self, kind: str, data: Any) -> None:
        blocks = self.answer.blocks
        if kind.endswith(".delta"):
            require(self._is_in_item(data), "a delta out of place")
            blocks[-1].text += data["delta"]
        elif kind.endswith("text.done"):
            require(data["text"] == blocks[-1].text, "the text is not what its deltas were")
        elif kind == "response.function_call_arguments.done":
            same = data["arguments"] == blocks[-1].text
            require(same, "the arguments are not what their deltas were")

    def finish(self) -> None:
        """`[DONE]` is optional."""

    def _document(self, data: Any) -> None:
        for item in data["output"]:
            self.answer.add(_block(item)).complete = True
        self._end(data)

    def _complete(self, block: AnswerBlock, item: Any) -> None:
        whole = _block(item)
        _check_same(block, whole)
        block.seal = whole.seal
        block.complete = True
        self._items.append(item)

    def _end(self, response: Any) -> None:
        answer = self.answer
        match response["status"]:
            case "failed":
                answer.end = "error"
                answer.problem = response["error"]["message"]
            case "incomplete":
                answer.end = "length"
            case _:
                has_call = any(block.kind == "call" for block in answer.blocks)
                answer.end = "calls" if has_call else "stop"
        usage = response.get("usage")
        if usage is not None:
            answer.usage = (usage["input_tokens"], usage["output_tokens"])


def _check_same(streamed: AnswerBlock, whole: AnswerBlock) -> None:
    """Raises IllFormed where an item is not the block that was streamed."""
    same_text = whole.text == streamed.text
    require(same_text, f"the item is {whole.text!r}, streamed were {streamed.text!r}")
    same = (whole.kind, whole.name, whole.call_id) == (
        streamed.kind,
        streamed.name,
        streamed.call_id,
    )
    require(same, "the item is another than the one that began")


def _block(item: Any) -> AnswerBlock:
    match item["type"]:
        case "reasoning":
            text = "".join(part["text"] for part in item.get("content") or [])
            return AnswerBlock("reasoning", text, seal=item.get("encrypted_content"))
        case "message":
            return AnswerBlock("text", "".join(part["text"] for part in item["content"]))
        case "tool_search_call":
            arguments = msgspec.json.encode(item["arguments"]).decode()
            return AnswerBlock("call", arguments, _SEARCH, item["call_id"])
    call = AnswerBlock("call", name=item["name"], call_id=item["call_id"])
    call.namespace = item.get("namespace")
    call.custom = item["type"] == "custom_tool_call"
    if call.custom:
        call.text = item["input"]
    else:
        call.text = item["arguments"]
    return call
