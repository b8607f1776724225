"""Chat Completions from a client's side: conversations as requests, streams as answers."""

import json
from typing import Any

import msgspec

from schemas.conversation import Call, Conversation, Media, Part, Reasoning, Result, Text, ToolReference, ToolSpec, Turn
from services.cli.replay.answer import Answer, Block
from services.cli.replay.media import data_url
from services.cli.replay.messages import told
from services.cli.replay.script import End

PATH = "/v1/chat/completions"
_ENDS: dict[str, End] = {"stop": "stop", "tool_calls": "calls", "function_call": "calls", "length": "length"}


def request(conversation: Conversation, *, stream: bool = True) -> bytes:
    """The body that says this.

    A message of this API is reasoning, text, calls; a turn in another order becomes several messages. Deferred tools
    and errors have no place in it.
    """
    sampling, thinking, choice = conversation.sampling, conversation.thinking, conversation.tool_choice
    body: dict[str, Any] = {"model": conversation.model, "stream": stream}
    body["messages"] = [{"role": "system", "content": text.text} for text in conversation.system]
    for turn in conversation.turns:
        body["messages"] += _messages(turn)
    if stream:
        body["stream_options"] = {"include_usage": True}
    if conversation.tools:
        body["tools"] = [_tool(tool) for tool in conversation.tools]
        body["parallel_tool_calls"] = choice.parallel
        if choice.mode != "auto":
            named = {"type": "function", "function": {"name": told(choice.name or "", choice.namespace)}}
            body["tool_choice"] = {"any": "required", "none": "none"}.get(choice.mode, named)
    if sampling.max_tokens is not None:
        body["max_completion_tokens"] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = sampling.stop
    for name in ("temperature", "top_p", "top_k"):
        if getattr(sampling, name) is not None:
            body[name] = getattr(sampling, name)
    if thinking.mode != "default":
        body["thinking"] = {"type": thinking.mode}
    if thinking.budget_tokens is not None:
        body["thinking_budget"] = thinking.budget_tokens
    if thinking.effort is not None:
        body["reasoning_effort"] = thinking.effort
    return msgspec.json.encode(body)


def _messages(turn: Turn) -> list[dict[str, Any]]:
    if turn.role == "tool":
        return [_result(part) for part in turn.parts if isinstance(part, Result)]
    if turn.role != "assistant":
        named = {"name": turn.name} if turn.name else {}
        return [{"role": turn.role, "content": [_content(part) for part in turn.parts], **named}]
    return [_assistant(run) for run in _runs(turn.parts)]


def _runs(parts: list[Part]) -> list[list[Part]]:
    """The parts as runs of reasoning, text, calls."""
    ranks: list[list[Part]] = []
    last = 3
    for part in parts:
        rank = 0 if isinstance(part, Reasoning) else 2 if isinstance(part, Call) else 1
        if rank < last:
            ranks.append([])
        ranks[-1].append(part)
        last = rank
    return ranks


def _assistant(parts: list[Part]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    thoughts = [part for part in parts if isinstance(part, Reasoning)]
    if thoughts:
        message["thinking_blocks"] = [_thought(part) for part in thoughts]
    said = [_content(part) for part in parts if isinstance(part, Text | Media)]
    if said:
        message["content"] = said
    calls = [_call(part) for part in parts if isinstance(part, Call)]
    if calls:
        message["tool_calls"] = calls
    return message


def _thought(part: Reasoning) -> dict[str, Any]:
    if part.text is None:
        return {"type": "redacted_thinking", "data": part.seal or ""}
    return {"type": "thinking", "thinking": part.text, "signature": part.seal or ""}


def _call(call: Call) -> dict[str, Any]:
    name = told(call.name, call.namespace)
    if call.kind == "custom":
        given = msgspec.json.decode(call.arguments)["input"]
        return {"id": call.call_id, "type": "custom", "custom": {"name": name, "input": given}}
    return {"id": call.call_id, "type": "function", "function": {"name": name, "arguments": call.arguments}}


def _result(result: Result) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": [_content(part) for part in result.parts],
    }


def _content(part: Part | ToolReference) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case ToolReference(name):
            return {"type": "text", "text": f"Tool {name} was loaded."}
        case Media(kind="image"):
            return {"type": "image_url", "image_url": {"url": part.url or data_url(part)}}
        case Media():
            file = {} if part.title is None else {"filename": part.title}
            return {"type": "file", "file": {**file, "file_data": part.url or data_url(part)}}
    raise AssertionError(part)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    name = told(tool.name, tool.namespace)
    if tool.kind == "custom":
        custom: dict[str, Any] = {"name": name, "description": tool.description}
        if tool.grammar is not None:
            grammar = {"syntax": tool.grammar.syntax, "definition": tool.grammar.definition}
            custom["format"] = {"type": "grammar", "grammar": grammar}
        return {"type": "custom", "custom": custom}
    function: dict[str, Any] = {"name": name, "description": tool.description, "parameters": tool.schema}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


class Reader:
    """Reads answers of one choice.

    The API itself does not say that a call is over. Clients go by what comes next, by arguments that parse as JSON, or,
    asked for, by our dispatch; a call is complete here when the last two have happened.
    """

    def __init__(self) -> None:
        self.answer = Answer()
        self._calls: dict[int, Block] = {}

    def event(self, name: str, data: Any) -> None:
        """See `answer.Reader`."""
        answer = self.answer
        if data is None:
            return
        if "error" in data:
            answer.end, answer.problem = "error", data["error"]["message"]
            return
        if name == "tool_call_dispatch":
            self._dispatched(data["tool_call_dispatch"]["tool_call"])
        elif name == "reasoning_dispatch":
            answer.blocks[-1].complete = True
        for choice in data["choices"]:
            if answer.end is not None:
                answer.after_end.append(json.dumps(choice))
            self._delta(choice["delta"])
            if choice["finish_reason"] is not None:
                answer.end = _ENDS[choice["finish_reason"]]
                self._close()
        self._count(data.get("usage"))

    def document(self, data: Any) -> None:
        """See `answer.Reader`. Order is lost in this form of answer: reasoning, text, calls."""
        choice = data["choices"][0]
        message = choice["message"]
        if isinstance(message.get("reasoning_content"), str):
            self.answer.add(Block("reasoning", message["reasoning_content"]))
        if message.get("content"):
            self.answer.add(Block("text", message["content"]))
        legacy = [{"id": "", "function": message["function_call"]}] if message.get("function_call") else []
        for call in [*(message.get("tool_calls") or []), *legacy]:
            self._begin(call)
        self._close()
        self.answer.end = _ENDS[choice["finish_reason"]]
        self._count(data["usage"])

    def _delta(self, delta: Any) -> None:
        if delta.get("reasoning_content"):
            self._prose("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            self._prose("text", delta["content"])
        for call in delta.get("tool_calls") or []:
            block = self._calls.get(call["index"])
            if block is None:
                self._close()
                self._calls[call["index"]] = self._begin(call)
            else:
                held = call.get("function") or call.get("custom")
                block.text += held.get("arguments") or held.get("input") or ""
        if delta.get("function_call") is not None:
            self._legacy(delta["function_call"])
        for detail in delta.get("reasoning_details") or []:
            thoughts = [block for block in self.answer.blocks if block.kind == "reasoning" and block.seal is None]
            if thoughts:
                thoughts[0].seal = detail["data"]

    def _prose(self, kind: Any, text: str) -> None:
        last = self.answer.blocks[-1] if self.answer.blocks else None
        if last is None or last.kind != kind or (last.complete and kind == "reasoning"):
            self._close()
            last = self.answer.add(Block(kind))
        last.text += text

    def _begin(self, call: Any) -> Block:
        custom = call.get("custom")
        held = custom or call["function"]
        text = held.get("input" if custom else "arguments") or ""
        return self.answer.add(Block("call", text, held["name"], call.get("id") or "", custom=custom is not None))

    def _legacy(self, call: Any) -> None:
        last = self.answer.blocks[-1] if self.answer.blocks else None
        if last is None or last.kind != "call":
            self._close()
            self.answer.add(Block("call", call.get("arguments") or "", call["name"]))
        else:
            last.text += call.get("arguments") or ""

    def _dispatched(self, call: Any) -> None:
        block = self._calls.get(call["index"], self.answer.blocks[-1])
        told_of = Block("call", custom="custom" in call)
        held = call.get("custom") or call["function"]
        told_of.name, told_of.text = held["name"], held.get("input") or held.get("arguments") or ""
        assert told_of.shown() == block.shown(), f"the deltas say {block.shown()}, the dispatch {told_of.shown()}"
        self.answer.dispatch(told_of.name, told_of.arguments)
        block.complete = True

    def _close(self) -> None:
        for block in self.answer.blocks:
            block.complete = True

    def _count(self, usage: Any) -> None:
        if usage is not None:
            self.answer.usage = (usage["prompt_tokens"], usage["completion_tokens"])
