"""Describes each API for the load generator: its requests, and how to recognize the events of its
streams. Pure.

A new API is a class here that fits `Api` and a line in `APIS`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct


class Tool(Struct, frozen=True):
    """A tool declaration."""

    name: str
    description: str
    schema: dict[str, Any]


class Prompt(Struct, frozen=True):
    """A request, independent of the API."""

    user: str
    system: str = ""
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 4096
    preamble: bool = False
    """With the parts of an agent's request: billing line, identity, cache marks, metadata."""


class Tokens(Struct, frozen=True):
    """Token counts as the server reported them."""

    prompt: int
    output: int
    cached: int = 0


class Api(Protocol):
    """One API."""

    name: str
    path: str
    headers: Mapping[str, str]
    output: bytes
    """Bytes that every event with output contains once."""
    end: bytes
    """Bytes that the last event of a complete stream contains."""

    def body(self, prompt: Prompt, model: str) -> dict[str, Any]:
        """Returns the body of a streamed request."""
        ...

    def tokens(self, tail: bytes) -> Tokens | None:
        """Returns the token counts in the end of a stream."""
        ...

    def call_done(self, events: Sequence[tuple[int, bytes]]) -> int | None:
        """Returns the time of the event that completed the first tool call."""
        ...


class Messages:
    """Anthropic's Messages API."""

    name = "messages"
    path = "/v1/messages"
    headers: Mapping[str, str] = {"anthropic-version": "2023-06-01", "x-api-key": "bench"}
    output = b"event: content_block_delta"
    end = b"event: message_stop"

    def body(self, prompt: Prompt, model: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": [{"type": "text", "text": prompt.user}]}],
        }
        if prompt.system:
            body["system"] = self._system(prompt)
        if prompt.tools:
            body["tools"] = [messages_tool(tool) for tool in prompt.tools]
        if prompt.preamble:
            user = json.dumps({"device_id": "0" * 64, "session_id": "bench"})
            body["metadata"] = {"user_id": user}
        thinking = {"type": "disabled"}
        return body | {"max_tokens": prompt.max_tokens, "thinking": thinking, "stream": True}

    def tokens(self, tail: bytes) -> Tokens | None:
        """Reads `usage` of `message_delta`."""
        data = _last_data(tail, b"event: message_delta")
        usage = data.get("usage") if data else None
        if not isinstance(usage, dict):
            return None
        cached = usage.get("cache_read_input_tokens") or 0
        written = usage.get("cache_creation_input_tokens") or 0
        prompt = (usage.get("input_tokens") or 0) + cached + written
        return Tokens(prompt, usage.get("output_tokens") or 0, cached)

    def call_done(self, events: Sequence[tuple[int, bytes]]) -> int | None:
        """Finds `content_block_stop` of the call's block, at which agents start a tool."""
        index: bytes | None = None
        for time, event in events:
            if b"content_block_start" in event and b'"tool_use"' in event:
                found = re.search(rb'"index": ?(\d+)', event)
                index = index or (found[1] if found else None)
            elif index is not None and b"content_block_stop" in event:
                found = re.search(rb'"index": ?(\d+)', event)
                if found and found[1] == index:
                    return time
        return None

    def _system(self, prompt: Prompt) -> list[dict[str, Any]]:
        if not prompt.preamble:
            return [{"type": "text", "text": prompt.system}]
        mark = {"cache_control": {"type": "ephemeral"}}
        return [
            {
                "type": "text",
                "text": "x-anthropic-billing-header: cc_version=2.1.328.b7f; cc_entrypoint=cli;",
            },
            {"type": "text", "text": "You are a coding agent that is being measured.", **mark},
            {"type": "text", "text": prompt.system, **mark},
        ]


class Chat:
    """OpenAI's Chat Completions."""

    name = "chat"
    path = "/v1/chat/completions"
    headers: Mapping[str, str] = {"authorization": "Bearer bench", "x-turnwire-tool-dispatch": "1"}
    output = b'"delta":{"content":'
    """Not in the role chunk, which precedes all tokens."""
    end = b"data: [DONE]"

    def body(self, prompt: Prompt, model: str) -> dict[str, Any]:
        """Returns the body. Thinking is a variable of the template, which every server passes
        on."""
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        body: dict[str, Any] = {
            "model": model,
            "messages": [*system, {"role": "user", "content": prompt.user}],
        }
        if prompt.tools:
            tools = (
                {"type": "function", "function": openai_function(tool)} for tool in prompt.tools
            )
            body["tools"] = list(tools)
        return body | {
            "max_completion_tokens": prompt.max_tokens,
            "chat_template_kwargs": {"enable_thinking": False},
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def tokens(self, tail: bytes) -> Tokens | None:
        """Reads the chunk before `[DONE]`."""
        data = _last_data(tail.replace(b"data: [DONE]", b""), b"data: ")
        return _openai_tokens(data.get("usage") if data else None, "prompt", "completion")

    def call_done(self, events: Sequence[tuple[int, bytes]]) -> int | None:
        """Finds the dispatch event, which the request enables, because the API has no event for the
        end of a call."""
        return next((time for time, event in events if b"event: tool_call_dispatch" in event), None)


class Responses:
    """OpenAI's Responses."""

    name = "responses"
    path = "/v1/responses"
    headers: Mapping[str, str] = {"authorization": "Bearer bench"}
    output = b"event: response.output_text.delta"
    end = b'"total_tokens":'
    """In the usage of the last event. The beginning of that event is far away: it repeats the whole
    answer."""

    def body(self, prompt: Prompt, model: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": prompt.user}]
        body: dict[str, Any] = {
            "model": model,
            "input": [{"type": "message", "role": "user", "content": content}],
        }
        if prompt.system:
            body["instructions"] = prompt.system
        if prompt.tools:
            body["tools"] = [
                {"type": "function", **openai_function(tool), "strict": False}
                for tool in prompt.tools
            ]
        return body | {
            "max_output_tokens": prompt.max_tokens,
            "reasoning": {"effort": "none"},
            "store": False,
            "stream": True,
        }

    def tokens(self, tail: bytes) -> Tokens | None:
        """Reads `usage` at the end of the response."""
        at = tail.rfind(b'"usage":')
        found = (
            re.match(rb'"usage": ?(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})', tail[at:])
            if at >= 0
            else None
        )
        return _openai_tokens(json.loads(found[1]) if found else None, "input", "output")

    def call_done(self, events: Sequence[tuple[int, bytes]]) -> int | None:
        """Finds the end of the call's item, at which agents start a tool."""
        done = (
            time
            for time, event in events
            if b"response.output_item.done" in event and b'"function_call"' in event
        )
        return next(done, None)


APIS: Mapping[str, Api] = {api.name: api for api in (Messages(), Chat(), Responses())}


def messages_tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def openai_function(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.schema}


def _openai_tokens(usage: Any, prompt: str, output: str) -> Tokens | None:
    if not isinstance(usage, dict):
        return None
    details = usage.get(f"{prompt}_tokens_details") or {}
    return Tokens(
        usage.get(f"{prompt}_tokens") or 0,
        usage.get(f"{output}_tokens") or 0,
        details.get("cached_tokens") or 0,
    )


def _last_data(tail: bytes, event: bytes) -> dict[str, Any] | None:
    start = tail.rfind(event)
    found = re.search(rb"^data: ?(.*)$", tail[start:], re.MULTILINE) if start >= 0 else None
    if not found:
        return None
    try:
        data = json.loads(found[1])
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
