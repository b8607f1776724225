"""Plays an agent session over one API: makes its requests, and reads the answers. Pure.

Twenty turns, each but the last with thinking and a call; the client sends back what it received, as
agents do: tool inputs as parsed JSON (Messages) or as the string that came (Chat).
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

from bench.apis import APIS, Api, Tool, messages_tool, openai_function
from bench.prompts import make_prompt, prose

TURNS = 20
Style: TypeAlias = Literal["crooked", "tidy"]
"""How the model writes JSON: with white space and zeros that no template writes, or as templates
do."""
Body: TypeAlias = dict[str, Any]
Event: TypeAlias = tuple[int, bytes]
"""When it was read (ns), and its bytes."""
_CHARS_PER_TOKEN = 4.5
_TOOL_TOKENS = 650
_THOUGHT_CHARS = 600
_RESULT_CHARS = 400
_COMMAND = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "options": {"type": "object"},
        "timeout_s": {"type": "number"},
    },
    "required": ["command"],
}


class Call(Struct, frozen=True):
    """A tool call as the client has it."""

    id: str
    name: str
    arguments: str
    whole_at: int = 0
    """When the client had all of it (ns)."""


class Answer(Struct, frozen=True):
    """One turn as the client has it."""

    thinking: str
    signature: str
    text: str
    calls: Sequence[Call]
    first_at: int
    last_at: int
    """Time of the last event with output (ns)."""


class Dialect(Protocol):
    """One API."""

    api: Api

    def body(
        self, system: Sequence[str], tools: Sequence[Tool], messages: Sequence[Body]
    ) -> Body: ...

    def read(self, events: Sequence[Event]) -> Answer: ...

    def turn(self, answer: Answer, results: Sequence[str]) -> Sequence[Body]:
        """The answer and the results of its calls, as messages of the next request."""
        ...


class Messages:
    """Anthropic's Messages, as Claude Code uses it."""

    api = APIS["messages"]

    def body(self, system: Sequence[str], tools: Sequence[Tool], messages: Sequence[Body]) -> Body:
        return {
            "max_tokens": 4096,
            "temperature": 0,
            "stream": True,
            "system": [{"type": "text", "text": text} for text in system],
            "tools": [messages_tool(tool) for tool in tools],
            "messages": list(messages),
            "thinking": {"type": "adaptive"},
        }

    def read(self, events: Sequence[Event]) -> Answer:
        blocks: dict[int, Body] = {}
        stopped: dict[int, int] = {}
        times = []
        for at, data in _documents(events):
            match data["type"]:
                case "content_block_start":
                    blocks[data["index"]] = dict(data["content_block"], json="")
                case "content_block_delta":
                    times.append(at)
                    delta, block = data["delta"], blocks[data["index"]]
                    for name in ("thinking", "text", "signature"):
                        if name in delta:
                            block[name] = (block.get(name) or "") + delta[name]
                    block["json"] += delta.get("partial_json", "")
                case "content_block_stop":
                    stopped[data["index"]] = at
        calls = [
            Call(block["id"], block["name"], block["json"], stopped[index])
            for index, block in blocks.items()
            if block["type"] == "tool_use"
        ]
        joined = {
            name: "".join(block.get(name) or "" for block in blocks.values())
            for name in ("thinking", "signature", "text")
        }
        return Answer(
            **joined, calls=calls, first_at=min(times, default=0), last_at=max(times, default=0)
        )

    def turn(self, answer: Answer, results: Sequence[str]) -> Sequence[Body]:
        thinking = {"type": "thinking", "thinking": answer.thinking, "signature": answer.signature}
        content: list[Body] = [thinking] if answer.thinking else []
        content += [{"type": "text", "text": answer.text}] if answer.text.strip() else []
        content += [
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": json.loads(call.arguments),
            }
            for call in answer.calls
        ]
        returned = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result}
            for call, result in zip(answer.calls, results, strict=True)
        ]
        return [{"role": "assistant", "content": content}, {"role": "user", "content": returned}]


class Chat:
    """OpenAI's Chat Completions, with the reasoning that self-hosted servers add to it."""

    api = APIS["chat"]

    def body(self, system: Sequence[str], tools: Sequence[Tool], messages: Sequence[Body]) -> Body:
        content = [{"type": "text", "text": text} for text in system]
        return {
            "max_completion_tokens": 4096,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": content}, *messages],
            "tools": [{"type": "function", "function": openai_function(tool)} for tool in tools],
        }

    def read(self, events: Sequence[Event]) -> Answer:
        thinking, text = "", ""
        calls: dict[int, Body] = {}
        times = []
        for at, data in _documents(events):
            for choice in data.get("choices") or ():
                delta = choice.get("delta") or {}
                thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
                words = delta.get("content") or ""
                thinking, text = thinking + thought, text + words
                for part in delta.get("tool_calls") or ():
                    empty = {"id": "", "name": "", "arguments": "", "at": 0}
                    call = calls.setdefault(part["index"], empty)
                    call["id"] = part.get("id") or call["id"]
                    call["name"] = part["function"].get("name") or call["name"]
                    if more := part["function"].get("arguments"):
                        call["arguments"] += more
                        # The API has no event for the end of a call: when its last piece came.
                        call["at"] = at
                if thought or words or delta.get("tool_calls"):
                    times.append(at)
        found = [Call(c["id"], c["name"], c["arguments"], c["at"]) for c in calls.values()]
        return Answer(thinking, "", text, found, min(times, default=0), max(times, default=0))

    def turn(self, answer: Answer, results: Sequence[str]) -> Sequence[Body]:
        message: Body = {"role": "assistant", "content": answer.text}
        if answer.thinking:  # under both names, because servers read one or the other
            message |= {"reasoning": answer.thinking, "reasoning_content": answer.thinking}
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        returned = [
            {"role": "tool", "tool_call_id": call.id, "content": result}
            for call, result in zip(answer.calls, results, strict=True)
        ]
        return [message, *returned]


DIALECTS: Mapping[str, Dialect] = {"messages": Messages(), "chat": Chat()}


class Session:
    """One conversation: `body`, then `take` its answer, and so on."""

    def __init__(
        self, dialect: Dialect, model: str, *, script: str, tokens: int, seed: int
    ) -> None:
        """`tokens`: of the system prompt and the tools, about. Sessions with different seeds share
        no prefix."""
        self.dialect = dialect
        self._model = model
        self._source = random.Random(seed)
        self._system, self._tools = _head(tokens, seed)
        user = {"role": "user", "content": f"Look around, step by step. [[script {script}]]"}
        self._messages: list[Body] = [user]

    def body(self, turn: int) -> bytes:
        """The request, with a billing header that differs from turn to turn, as older builds of
        Claude Code send it."""
        header = (
            f"x-anthropic-billing-header: cc_version=2.1.328.{turn:03x}; cc_entrypoint=cli; "
            f"cch={turn * 7919:05x};"
        )
        return _encode(
            self._model, self.dialect.body([header, *self._system], self._tools, self._messages)
        )

    def take(self, answer: Answer) -> None:
        """The answer, and results for its calls, become part of the conversation."""
        results = [prose(self._source, _RESULT_CHARS) for _ in answer.calls]
        self._messages += self.dialect.turn(answer, results)


def single(dialect: Dialect, model: str, request: str) -> bytes:
    """A short request with the session's tool."""
    message = {"role": "user", "content": request}
    return _encode(
        model,
        dialect.body(
            ["You are a coding agent."], [Tool("run_shell", "Runs a command.", _COMMAND)], [message]
        ),
    )


def scripts() -> dict[str, list[str]]:
    """What the model writes, by name: a session in each style, a call followed by text, and a
    story."""
    source = random.Random("scripts")
    thoughts = [prose(source, _THOUGHT_CHARS).replace("```", "'").strip() for _ in range(TURNS)]
    story = prose(random.Random("story"), 1200)
    call_then_text = f"I call it.\n</think>\n\n{_call(7, 'crooked')}\n{story[:400].strip()}"
    return {
        "crooked": _turns(thoughts, "crooked"),
        "tidy": _turns(thoughts, "tidy"),
        "dispatch": [call_then_text],
        "story": [f"A story is wanted.\n</think>\n\n{story.strip()}"],
    }


def _turns(thoughts: Sequence[str], style: Style) -> list[str]:
    endings = [*(_call(number, style) for number in range(TURNS - 1)), "All of it is seen."]
    return [f"{one}\n</think>\n\n{end}" for one, end in zip(thoughts, endings, strict=True)]


def _call(number: int, style: Style) -> str:
    command = f"grep -rn 'pattern{number}' src/ | head -{number + 5}"
    options = {
        "cwd": f"/srv/app{number}",
        "env": {"LEVEL": number, "MODE": "fast"},
        "paths": ["src", "tests"],
    }
    written, timeout = json.dumps(options), f"{number}.5"
    if style == "crooked":
        written = json.dumps(options, indent=1, separators=(" ,", " :  "))
        timeout = f"{number}.50"
    arguments = {"command": command, "options": written, "timeout_s": timeout}
    parameters = "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items()
    )
    return f"<tool_call>\n<function=run_shell>\n{parameters}</function>\n</tool_call>"


def _head(tokens: int, seed: int) -> tuple[list[str], list[Tool]]:
    """System prompt and tools."""
    prompt = make_prompt("large", "same", "text n=4", seed)
    count = min(len(prompt.tools), int(tokens / 2 / _TOOL_TOKENS))
    manual = prompt.system[: int((tokens - count * _TOOL_TOKENS) * _CHARS_PER_TOKEN)]
    own = Tool("run_shell", f"Of agent {seed}.", _COMMAND)
    return [f"You are agent {seed}.", manual], [own, *prompt.tools[:count]]


def _encode(model: str, body: Body) -> bytes:
    return json.dumps({"model": model, **body}, separators=(",", ":")).encode()


def _documents(events: Sequence[Event]) -> list[tuple[int, Body]]:
    """The JSON of each event, with its time."""
    found = []
    for at, event in events:
        data = b"".join(
            line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")
        )
        if data and data != b"[DONE]":
            found.append((at, json.loads(data)))
    return found
