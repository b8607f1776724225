"""A client of the Responses API: writes requests, reads answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Reasoning,
    Result,
    Text,
    ToolReference,
    ToolSpec,
)
from turnwire_tools.clients import shared
from turnwire_tools.clients.answer import Block
from turnwire_tools.clients.shared import media_url, present, require, sampling_fields

PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body for a conversation. The API has no errors of tools."""
    thinking, choice = conversation.thinking, conversation.tool_choice
    turns, system = conversation.messages, conversation.system
    if len(system) > 1:  # `instructions` is one text
        turns = [*(Message("system", [text]) for text in system), *turns]
    kinds = {
        part.call_id: part.kind for turn in turns for part in turn.parts if isinstance(part, Call)
    }
    effort = "none" if thinking.mode == "disabled" else thinking.effort
    body: dict[str, Any] = {
        "model": conversation.model,
        "stream": stream,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [item for turn in turns for item in _items(turn, kinds)],
        "parallel_tool_calls": choice.parallel,
        **sampling_fields(conversation.sampling, limit="max_output_tokens"),
        **present(
            instructions=system[0].text if len(system) == 1 else None,
            tools=_tools(conversation.tools) or None,
            reasoning=None if effort is None else {"effort": effort},
        ),
    }
    if conversation.tools and choice.mode != "auto":
        custom = any(
            tool.name == choice.name and tool.kind == "custom" for tool in conversation.tools
        )
        chosen = {"type": "custom" if custom else "function", "name": choice.name}
        chosen |= present(namespace=choice.namespace or None)
        body["tool_choice"] = {"any": "required", "none": "none"}.get(choice.mode) or chosen
    return msgspec.json.encode(body)


def _items(turn: Message, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    ids = iter(turn.ids)
    for part in turn.parts:
        if not isinstance(part, Text | Media):
            items.append(_item(part, kinds))
            continue
        if not items or items[-1]["type"] != "message":
            items.append(
                {"type": "message", "role": turn.role, "content": [], **present(id=next(ids, None))}
            )
        text_type = "output_text" if turn.role == "assistant" else "input_text"
        items[-1]["content"].append(_content(part, text_type))
    return items or [{"type": "message", "role": turn.role, "content": []}]


def _item(part: Reasoning | Call | Result, kinds: Mapping[str, str]) -> dict[str, Any]:
    match part:
        case Reasoning():
            return {
                "type": "reasoning",
                "summary": [{"type": "summary_text", "text": text} for text in part.summary],
                **present(
                    content=None
                    if part.text is None
                    else [{"type": "reasoning_text", "text": part.text}],
                    encrypted_content=part.seal,
                    id=part.id,
                ),
            }
        case Call(kind="custom"):
            item = {
                "type": "custom_tool_call",
                "input": msgspec.json.decode(part.arguments)["input"],
            }
        case Call():
            item = {"type": "function_call", "arguments": part.arguments}
        case Result():
            kind = (
                "custom_tool_call_output"
                if kinds.get(part.call_id) == "custom"
                else "function_call_output"
            )
            return {
                "type": kind,
                "call_id": part.call_id,
                "output": [_content(inner) for inner in part.parts],
            }
    return {
        **item,
        "call_id": part.call_id,
        "name": part.name,
        **present(namespace=part.namespace, id=part.item_id),
    }


def _content(part: Text | Media | ToolReference, text_type: str = "input_text") -> dict[str, Any]:
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


def _tools(tools: list[ToolSpec]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    namespaces: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        if tool.namespace is not None and tool.namespace not in namespaces:
            namespaces[tool.namespace] = []
            entries.append(
                {"type": "namespace", "name": tool.namespace, "tools": namespaces[tool.namespace]}
            )
        (entries if tool.namespace is None else namespaces[tool.namespace]).append(_tool(tool))
    return entries


def _tool(tool: ToolSpec) -> dict[str, Any]:
    spec: dict[str, Any] = {"type": tool.kind, "name": tool.name, "description": tool.description}
    if tool.kind == "function":
        spec |= {"parameters": tool.schema, **present(strict=tool.strict)}
    elif tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        spec["format"] = {"type": "grammar", **grammar}
    return {**spec, "defer_loading": True} if tool.deferred else spec


class Reader(shared.Reader):
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
        require(
            data["sequence_number"] == self._next,
            f"number {data['sequence_number']}, not {self._next}",
        )
        self._next += 1
        require((kind == "response.created") == (self._next == 1), "response.created: order")
        require(not answer.ends or kind in ("error", "response.failed"), f"{kind} after the end")
        last = len(answer.blocks) - 1
        is_open = bool(answer.blocks) and not answer.blocks[-1].complete
        match kind:
            case "response.output_item.added":
                require(
                    not is_open and data["output_index"] == last + 1, "items are not contiguous"
                )
                answer.add(_block(data["item"]))
            case "response.output_item.done":
                require(is_open and data["output_index"] == last, "an item ends out of place")
                self._complete(answer.blocks[-1], data["item"])
            case "response.completed" | "response.incomplete":
                require(
                    data["response"]["output"] == self._items,
                    "the response is not what its items were",
                )
                answer.ends += 1
                self._end(data["response"])
            case "response.failed":
                answer.ends += (
                    answer.end != "error"
                )  # an `error` comes before: together they are one end
                self._end(data["response"])
            case "error":
                answer.fail(data["message"])
            case _ if kind.endswith(".delta"):
                require(is_open and data["output_index"] == last, "a delta out of place")
                answer.blocks[-1].text += data["delta"]
            case _ if kind.endswith("text.done"):
                require(
                    data["text"] == answer.blocks[-1].text, "the text is not what its deltas were"
                )
            case "response.function_call_arguments.done":
                require(
                    data["arguments"] == answer.blocks[-1].text,
                    "the arguments are not what their deltas were",
                )

    def finish(self) -> None:
        """`[DONE]` is optional."""

    def _document(self, data: Any) -> None:
        for item in data["output"]:
            self.answer.add(_block(item)).complete = True
        self._end(data)

    def _complete(self, block: Block, item: Any) -> None:
        whole = _block(item)
        require(
            whole.text == block.text, f"the item is {whole.text!r}, streamed were {block.text!r}"
        )
        same = (whole.kind, whole.name, whole.call_id) == (block.kind, block.name, block.call_id)
        require(same, "the item is another than the one that began")
        block.seal, block.complete = whole.seal, True
        self._items.append(item)

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
    return Block(
        "call", text, item["name"], item["call_id"], custom=custom, namespace=item.get("namespace")
    )
