"""Tests that captured Chat Completions requests of agents are converted without loss.

Each request is flattened twice, by two independent programs: from its JSON, and from its
conversation. Both must have the same content in the same order. The captures are not part of the
repository; without them only the written requests below are checked.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Reasoning, Result, Text
from services.frontend.apis.chat.render import ChatSettings
from services.frontend.apis.chat.request import parse
from tests.kit.captures import CAPTURES, REASON

REQUESTS = [
    path
    for path in sorted(CAPTURES.glob("*/*/*-POST-v1-chat-completions.json"))
    if ".response." not in path.name
]
Story = list[tuple[Any, ...]]

WRITTEN: dict[str, Any] = {
    "model": "served-model",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_completion_tokens": 8192,
    "tool_choice": "auto",
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "exec",
                "description": "Runs a command.",
                "parameters": {
                    "type": "object",
                    "required": ["command"],
                    "properties": {"command": {"type": "string"}},
                },
            },
        }
    ],
    "messages": [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Create a file, then look at it."},
        {
            "role": "assistant",
            "content": "Creating.",
            "reasoning_content": "I should write a file.",
            "tool_calls": [
                {
                    "id": "callL1",
                    "type": "function",
                    "function": {"name": "exec", "arguments": '{"command":"echo é > a"}'},
                }
            ],
        },
        {"role": "tool", "content": "(no output)", "tool_call_id": "callL1"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Check it.\nAnd once more.",
            "tool_calls": [
                {
                    "id": "callL2",
                    "type": "function",
                    "function": {"name": "exec", "arguments": '{"command": "cat a"}'},
                },
                {
                    "id": "callL3",
                    "type": "function",
                    "function": {"name": "exec", "arguments": "{}"},
                },
            ],
        },
        {"role": "tool", "content": "é", "tool_call_id": "callL2"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "no command"}],
            "tool_call_id": "callL3",
        },
        {"role": "user", "content": [{"type": "text", "text": "<<<CONTEXT>>>"}]},
    ],
}


def told_by_json(body: dict[str, Any]) -> Story:
    story: Story = []
    for message in body["messages"]:
        content = message.get("content")
        texts = [content] if isinstance(content, str) else [part["text"] for part in content or []]
        if message["role"] == "tool":
            story.append(("result", message["tool_call_id"], texts))
            continue
        if message.get("reasoning_content"):
            story.append(("thinking", message["reasoning_content"]))
        story += [(message["role"], text) for text in texts if text]
        for call in message.get("tool_calls") or []:
            story.append(
                ("call", call["id"], call["function"]["name"], call["function"]["arguments"])
            )
    for tool in body.get("tools") or []:
        function = tool["function"]
        story.append(
            (
                "tool",
                function["name"],
                function.get("description", ""),
                json.dumps(function["parameters"]),
            )
        )
    return story


def told_by_conversation(conversation: Conversation) -> Story:
    story: Story = []
    for message in conversation.messages:
        for part in message.parts:
            match part:
                case Text(text):
                    story.append((message.role, text))
                case Reasoning(text=thought):
                    story.append(("thinking", thought))
                case Call():
                    story.append(("call", part.call_id, part.name, part.arguments))
                case Result(call_id, parts):
                    story.append(
                        ("result", call_id, [said.text for said in parts if isinstance(said, Text)])
                    )
                case _:
                    raise AssertionError(f"the captures have no {part}")
    for tool in conversation.tools:
        story.append(("tool", tool.name, tool.description, json.dumps(tool.schema)))
    return story


def check(body: dict[str, Any], headers: dict[str, str]) -> None:
    ask = parse(json.dumps(body, ensure_ascii=False).encode(), headers, ChatSettings())
    told = ask.conversation
    assert told_by_conversation(told) == told_by_json(body)
    assert told.model == body["model"]
    assert told.sampling.max_tokens == body.get("max_completion_tokens", body.get("max_tokens"))
    assert told.sampling.temperature == body.get("temperature")
    assert told.thinking.effort == body.get("reasoning_effort")
    assert ask.stream == bool(body.get("stream"))
    assert ask.shape.include_usage == bool(body.get("stream_options", {}).get("include_usage"))
    assert told.tool_choice.mode == body.get("tool_choice", "auto")
    assert told.client.session == headers.get("x-session-id")
    assert ask.notes == []


def test_written_turns_are_parsed() -> None:
    check(WRITTEN, {"x-session-id": "ses_1"})


@pytest.mark.skipif(not REQUESTS, reason=REASON)
@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_captured_requests_are_parsed(path: Path) -> None:
    captured = json.loads(path.read_text())
    check(captured["body"], {name.lower(): value for name, value in captured["headers"]})
