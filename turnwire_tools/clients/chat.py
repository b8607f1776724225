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
    ToolChoice,
    ToolReference,
    ToolSpec,
)
from turnwire_tools.clients import shared
from turnwire_tools.clients.answer import AnswerBlock, BlockKind, End
from turnwire_tools.clients.messages import write_block
from turnwire_tools.clients.shared import JsonObject, media_url, present, require, sampling_fields

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
    messages: list[JsonObject] = [
        {"role": "system", "content": text.text} for text in conversation.system
    ]
    for turn in conversation.messages:
        messages += _messages(turn)
    body: JsonObject = {
        "model": conversation.model,
        "stream": stream,
        "messages": messages,
        **sampling_fields(conversation.sampling, limit="max_completion_tokens"),
    }
    if stream:
        body["stream_options"] = {"include_usage": True}

    thinking = conversation.thinking
    if thinking.mode != "default":
        body["thinking"] = {"type": thinking.mode}
    body |= present(thinking_budget=thinking.budget_tokens, reasoning_effort=thinking.effort)

    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
        body["parallel_tool_calls"] = conversation.tool_choice.parallel
        if conversation.tool_choice.mode != "auto":
            body["tool_choice"] = _choice(conversation.tool_choice)
    return msgspec.json.encode(body)


def _choice(choice: ToolChoice) -> str | JsonObject:
    match choice.mode:
        case "any":
            return "required"
        case "none":
            return "none"
    name = choice.rendered_name
    return {"type": "function", "function": {"name": name}}


def _messages(turn: Message) -> list[JsonObject]:
    if turn.role == "assistant":
        return [_assistant(parts) for parts in _in_order(turn.parts)]
    if turn.role != "tool":
        content = [_content(part) for part in turn.parts]
        return [{"role": turn.role, "content": content, **present(name=turn.name or None)}]
    return [_result(part) for part in turn.parts if isinstance(part, Result)]


def _result(result: Result) -> JsonObject:
    return {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": [_content(part) for part in result.parts],
    }


def _in_order(parts: list[Part]) -> list[list[Part]]:
    """The parts as runs of reasoning, text, calls."""
    runs: list[list[Part]] = []
    last = 3
    for part in parts:
        rank = _rank(part)
        if rank < last:
            runs.append([])
        runs[-1].append(part)
        last = rank
    return runs


def _rank(part: Part) -> int:
    """The place of a part in a message of this API."""
    match part:
        case Reasoning():
            return 0
        case Call():
            return 2
    return 1


def _assistant(parts: list[Part]) -> JsonObject:
    content = [_content(part) for part in parts if isinstance(part, Text | Media)]
    message: JsonObject = {"role": "assistant", "content": content or None}
    thoughts = [write_block(part) for part in parts if isinstance(part, Reasoning)]
    if thoughts:
        message["thinking_blocks"] = thoughts
    calls = [_call(part) for part in parts if isinstance(part, Call)]
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: Call) -> JsonObject:
    name = call.rendered_name
    if call.kind == "custom":
        text = msgspec.json.decode(call.arguments)["input"]
        return {"id": call.call_id, "type": "custom", "custom": {"name": name, "input": text}}
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": name, "arguments": call.arguments},
    }


def _content(part: Part | ToolReference) -> JsonObject:
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


def _tool(tool: ToolSpec) -> JsonObject:
    fields: JsonObject = {
        "name": tool.rendered_name,
        "description": tool.description,
    }
    if tool.kind == "function":
        fields |= {"parameters": tool.schema, **present(strict=tool.strict)}
    elif tool.grammar is not None:
        grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
        fields["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": tool.kind, tool.kind: fields}


class ChatReader(shared.AnswerReader):
    """Reads answers of one choice.

    The API has no event for the end of a call. Clients go by the next block, by arguments that
    parse as JSON, or by the dispatch event; here a call is complete with its dispatch event or the
    next block.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, AnswerBlock] = {}
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
            block = self._calls[call["index"]]
            whole = _call_block(call)
            told = whole.as_story()
            streamed = block.as_story()
            require(told == streamed, f"dispatched {told}, streamed {streamed}")
            answer.dispatch(whole)
            block.complete = True
        elif name == "reasoning_dispatch":
            answer.blocks[-1].complete = True
        else:
            self._chunk(data)

    def _chunk(self, data: Any) -> None:
        answer = self.answer
        first = self._id is None
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
            self.answer.add(AnswerBlock("reasoning", message["reasoning_content"]))
        if message.get("content"):
            self.answer.add(AnswerBlock("text", message["content"]))
        self.answer.blocks += map(_call_block, _calls(message))
        self._end(choice["finish_reason"])
        self._count(data["usage"])

    def _delta(self, delta: Any) -> None:
        if delta.get("reasoning_content"):
            self._text("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            self._text("text", delta["content"])
        for call in _calls(delta):
            self._call(call)
        for detail in delta.get("reasoning_details") or []:
            self._seal(detail["data"])

    def _call(self, call: Any) -> None:
        """Takes the beginning of a call, or more of its arguments."""
        index = call["index"]
        if index in self._calls:
            newest = self.answer.blocks[-1]
            require(self._calls[index] is newest, "arguments out of place")
            newest.text += _call_text(call)
            return
        require(index == len(self._calls), "indices of calls are not contiguous")
        self._complete_all()
        self._calls[index] = self.answer.add(_call_block(call))

    def _seal(self, seal: Any) -> None:
        """Takes the seal of the first thought that has none."""
        for block in self.answer.blocks:
            if block.kind == "reasoning" and block.seal is None:
                block.seal = seal
                return

    def _text(self, kind: BlockKind, text: str) -> None:
        if not self._continues(kind):
            self._complete_all()
            self.answer.add(AnswerBlock(kind))
        self.answer.blocks[-1].text += text

    def _continues(self, kind: BlockKind) -> bool:
        """Whether more of this kind belongs to the newest block."""
        if not self.answer.blocks:
            return False
        newest = self.answer.blocks[-1]
        return newest.kind == kind and not (newest.complete and kind == "reasoning")

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
    calls = list(message.get("tool_calls") or [])
    function = message.get("function_call")
    if function:
        calls.append({"index": 0, "function": function})
    return calls


def _call_block(call: Any) -> AnswerBlock:
    name = (call.get("custom") or call["function"])["name"]
    return AnswerBlock(
        "call", _call_text(call), name, call.get("id") or "", custom="custom" in call
    )


def _call_text(call: Any) -> str:
    fields = call.get("custom") or call["function"]
    return fields.get("input") or fields.get("arguments") or ""
