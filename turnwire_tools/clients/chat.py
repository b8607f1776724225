"""A client of Chat Completions: writes requests, reads answers."""

from typing import Any

import msgspec

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
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
from turnwire_tools.clients.messages import write_block
from turnwire_tools.clients.shared import media_url, present, require, sampling_fields

PATH = "/v1/chat/completions"
_ENDS: dict[str, End] = {
    "stop": "stop",
    "tool_calls": "calls",
    "function_call": "calls",
    "length": "length",
}


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body for a conversation.

    A message of this API is reasoning, text, calls; a turn in another order becomes several
    messages. The API has no deferred tools and no errors of tools.
    """
    thinking, choice = conversation.thinking, conversation.tool_choice
    body: dict[str, Any] = {
        "model": conversation.model,
        "stream": stream,
        "messages": [
            *({"role": "system", "content": text.text} for text in conversation.system),
            *(message for turn in conversation.messages for message in _messages(turn)),
        ],
        **sampling_fields(conversation.sampling, limit="max_completion_tokens"),
        **present(
            stream_options={"include_usage": True} if stream else None,
            thinking=None if thinking.mode == "default" else {"type": thinking.mode},
            thinking_budget=thinking.budget_tokens,
            reasoning_effort=thinking.effort,
        ),
    }
    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
        body["parallel_tool_calls"] = choice.parallel
        if choice.mode != "auto":
            function = {
                "type": "function",
                "function": {"name": tool_name(choice.name or "", choice.namespace)},
            }
            body["tool_choice"] = {"any": "required", "none": "none"}.get(choice.mode, function)
    return msgspec.json.encode(body)


def _messages(turn: Message) -> list[dict[str, Any]]:
    if turn.role == "assistant":
        return [_assistant(parts) for parts in _in_order(turn.parts)]
    if turn.role != "tool":
        content = [_content(part) for part in turn.parts]
        return [{"role": turn.role, "content": content, **present(name=turn.name or None)}]
    return [
        {
            "role": "tool",
            "tool_call_id": part.call_id,
            "content": [_content(inner) for inner in part.parts],
        }
        for part in turn.parts
        if isinstance(part, Result)
    ]


def _in_order(parts: list[Part]) -> list[list[Part]]:
    """The parts as runs of reasoning, text, calls."""
    runs: list[list[Part]] = []
    last = 3
    for part in parts:
        rank = 0 if isinstance(part, Reasoning) else 2 if isinstance(part, Call) else 1
        if rank < last:
            runs.append([])
        runs[-1].append(part)
        last = rank
    return runs


def _assistant(parts: list[Part]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [_content(part) for part in parts if isinstance(part, Text | Media)] or None,
        **present(
            thinking_blocks=[write_block(part) for part in parts if isinstance(part, Reasoning)]
            or None,
            tool_calls=[_call(part) for part in parts if isinstance(part, Call)] or None,
        ),
    }


def _call(call: Call) -> dict[str, Any]:
    name = tool_name(call.name, call.namespace)
    if call.kind == "custom":
        text = msgspec.json.decode(call.arguments)["input"]
        return {"id": call.call_id, "type": "custom", "custom": {"name": name, "input": text}}
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": name, "arguments": call.arguments},
    }


def _content(part: Part | ToolReference) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case ToolReference(name):
            return {"type": "text", "text": f"Tool {name} was loaded."}
        case Media(kind="image"):
            return {"type": "image_url", "image_url": {"url": media_url(part)}}
        case Media():
            return {
                "type": "file",
                "file": {**present(filename=part.title), "file_data": media_url(part)},
            }
    raise AssertionError(part)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": tool_name(tool.name, tool.namespace),
        "description": tool.description,
    }
    if tool.kind == "function":
        fields |= {"parameters": tool.schema, **present(strict=tool.strict)}
    elif tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        fields["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": tool.kind, tool.kind: fields}


class Reader(shared.Reader):
    """Reads answers of one choice.

    The API has no event for the end of a call. Clients go by the next block, by arguments that
    parse as JSON, or by the dispatch event; here a call is complete with its dispatch event or the
    next block.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, Block] = {}
        self._id: str | None = None
        self._done = False

    def _event(self, name: str, data: Any) -> None:
        answer = self.answer
        require(not self._done, "data after [DONE]")
        if data is None:
            require(answer.end is not None, "[DONE] without a finish_reason")
            self._done = True
            answer.ends += answer.end != "error"
            return
        if "error" in data:
            answer.fail(data["error"]["message"])
            return
        require(answer.end != "error", "a chunk after the error")
        if name == "tool_call_dispatch":
            call = data["tool_call_dispatch"]["tool_call"]
            block, whole = self._calls[call["index"]], _call_block(call)
            told, streamed = whole.as_story(), block.as_story()
            require(told == streamed, f"dispatched {told}, streamed {streamed}")
            answer.dispatch(whole)
            block.complete = True
        elif name == "reasoning_dispatch":
            answer.blocks[-1].complete = True
        else:
            self._chunk(data)

    def _chunk(self, data: Any) -> None:
        answer, first = self.answer, self._id is None
        require(first or data["id"] == self._id, "another id")
        self._id = data["id"]
        if not data["choices"]:
            require(answer.end is not None and answer.usage is None, "usage: order")
            self._count(data["usage"])
            return
        (choice,) = data["choices"]
        require(answer.end is None, "a chunk after the finish_reason")
        require(first == (choice["delta"].get("role") == "assistant"), "one role, at the start")
        self._delta(choice["delta"])
        if choice["finish_reason"] is not None:
            self._end(choice["finish_reason"])

    def finish(self) -> None:
        """The last event is `[DONE]`, unless there was an error."""
        require(self._done or self.answer.end == "error", "no [DONE]")

    def _document(self, data: Any) -> None:
        # An answer in one piece has no order but reasoning, text, calls.
        choice = data["choices"][0]
        message = choice["message"]
        if message.get("reasoning_content"):
            self.answer.add(Block("reasoning", message["reasoning_content"]))
        if message.get("content"):
            self.answer.add(Block("text", message["content"]))
        self.answer.blocks += map(_call_block, _calls(message))
        self._end(choice["finish_reason"])
        self._count(data["usage"])

    def _delta(self, delta: Any) -> None:
        if delta.get("reasoning_content"):
            self._text("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            self._text("text", delta["content"])
        for call in _calls(delta):
            if call["index"] in self._calls:
                require(
                    self._calls[call["index"]] is self.answer.blocks[-1], "arguments out of place"
                )
                self.answer.blocks[-1].text += _call_text(call)
            else:
                require(call["index"] == len(self._calls), "indices of calls are not contiguous")
                self._complete_all()
                self._calls[call["index"]] = self.answer.add(_call_block(call))
        for detail in delta.get("reasoning_details") or []:
            unsealed = (
                block
                for block in self.answer.blocks
                if block.kind == "reasoning" and block.seal is None
            )
            if (block := next(unsealed, None)) is not None:
                block.seal = detail["data"]

    def _text(self, kind: BlockKind, text: str) -> None:
        last = self.answer.blocks[-1] if self.answer.blocks else None
        if last is None or last.kind != kind or (last.complete and kind == "reasoning"):
            self._complete_all()
            last = self.answer.add(Block(kind))
        last.text += text

    def _complete_all(self) -> None:
        for block in self.answer.blocks:
            block.complete = True

    def _end(self, reason: str) -> None:
        self.answer.end = _ENDS[reason]
        self._complete_all()

    def _count(self, usage: Any) -> None:
        self.answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])


def _calls(message: Any) -> list[Any]:
    """The calls in a message or delta, among them the one of the older `function_call`."""
    function = message.get("function_call")
    return [
        *(message.get("tool_calls") or []),
        *([{"index": 0, "function": function}] if function else []),
    ]


def _call_block(call: Any) -> Block:
    name = (call.get("custom") or call["function"])["name"]
    return Block("call", _call_text(call), name, call.get("id") or "", custom="custom" in call)


def _call_text(call: Any) -> str:
    fields = call.get("custom") or call["function"]
    return fields.get("input") or fields.get("arguments") or ""
