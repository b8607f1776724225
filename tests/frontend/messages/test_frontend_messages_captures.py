"""Tests that captured requests of agents are converted without loss.

Each request is flattened twice, by two independent programs: from its JSON, and from its
conversation. Both must have the same content in the same order. The captures are not part of the
repository; without them only `agent_turn.json` is checked.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Reasoning, Result, Text, ToolReference
from services.frontend.apis.messages.request import parse
from services.frontend.content.hosted_tools import missing_tools
from tests.kit.captures import CAPTURES, REASON

ROOT = Path(__file__).parents[3]
FIXTURE = ROOT / "tests" / "fixtures" / "messages" / "agent_turn.json"
REQUESTS = sorted(CAPTURES.glob("*/*/*-POST-v1-messages*.json"))
REQUESTS = [path for path in REQUESTS if ".response." not in path.name]
Story = list[tuple[Any, ...]]


def told_by_json(body: dict[str, Any]) -> Story:
    system = body.get("system") or []
    story: Story = [
        ("top", text)
        for text in ([system] if isinstance(system, str) else [b["text"] for b in system])
    ]
    dropped = [tool["name"] for tool in body.get("tools") or [] if "type" in tool]
    story += [("top", text.text) for text in missing_tools(dropped)]
    for message in body["messages"]:
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        results = [block for block in blocks if block["type"] == "tool_result"]
        for block in [*results, *(block for block in blocks if block["type"] != "tool_result")]:
            story += _block(message["role"], block)
    for tool in body.get("tools") or []:
        if "input_schema" in tool:
            schema = json.dumps(tool["input_schema"])
            story.append(
                (
                    "tool",
                    tool["name"],
                    tool.get("description") or "",
                    schema,
                    bool(tool.get("defer_loading")),
                )
            )
    return story


def _block(role: str, block: dict[str, Any]) -> Story:
    match block["type"]:
        case "text":
            return [(role, block["text"])] if block["text"] else []
        case "thinking":
            return [("thinking", block["thinking"] or None, block.get("signature") or None)]
        case "redacted_thinking":
            return [("thinking", None, block["data"])]
        case "tool_use":
            return [("call", block["id"], block["name"], block["input"])]
        case "tool_result":
            content = block.get("content") or []
            inner = [{"type": "text", "text": content}] if isinstance(content, str) else content
            said = [part.get("text") or part["tool_name"] for part in inner]
            return [("result", block["tool_use_id"], said, block.get("is_error"))]
    raise AssertionError(f"the captures have no {block['type']} blocks")


def told_by_conversation(conversation: Conversation) -> Story:
    story: Story = [("top", text.text) for text in conversation.system]
    for message in conversation.messages:
        for part in message.parts:
            match part:
                case Text(text):
                    story.append((message.role, text))
                case Reasoning(text=thought, seal=seal):
                    story.append(("thinking", thought, seal))
                case Call():
                    story.append(("call", part.call_id, part.name, json.loads(part.arguments)))
                case Result(call_id, parts):
                    said = [p.name if isinstance(p, ToolReference) else p.text for p in parts]  # type: ignore[union-attr]
                    story.append(("result", call_id, said, part.is_error))
                case _:
                    raise AssertionError(f"the captures have no {part}")
    for tool in conversation.tools:
        story.append(("tool", tool.name, tool.description, json.dumps(tool.schema), tool.deferred))
    return story


def check(body: dict[str, Any], headers: dict[str, str], *, counting: bool) -> None:
    ask = parse(json.dumps(body, ensure_ascii=False).encode(), headers, counting=counting)
    told = ask.conversation
    assert told_by_conversation(told) == told_by_json(body)
    assert told.model == body["model"]
    assert told.sampling.max_tokens == body.get("max_tokens")
    assert ask.stream == bool(body.get("stream"))
    assert ask.notes == [tool["type"] for tool in body.get("tools") or [] if "type" in tool]
    assert (ask.edits is not None) == ("context_management" in body)
    thinking = body.get("thinking")
    assert told.thinking.mode == (
        thinking["type"] if thinking else "disabled" if "output_config" in body else "default"
    )
    assert told.thinking.budget_tokens == (thinking or {}).get("budget_tokens")
    assert told.thinking.display == (
        "omitted" if (thinking or {}).get("display") == "omitted" else "full"
    )
    efforts = [m["output_config"]["effort"] for m in body["messages"] if m.get("output_config")]
    assert told.thinking.effort == (efforts or [body.get("output_config", {}).get("effort")])[-1]
    session = headers.get("x-claude-code-session-id")
    agent = headers.get("x-claude-code-agent-id")
    assert session is None or told.client.session == (f"{session}/{agent}" if agent else session)


def test_written_requests_are_parsed() -> None:
    check(json.loads(FIXTURE.read_text()), {}, counting=False)


@pytest.mark.skipif(not REQUESTS, reason=REASON)
@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_captured_requests_are_parsed(path: Path) -> None:
    captured = json.loads(path.read_text())
    headers = {name.lower(): value for name, value in captured["headers"]}
    check(captured["body"], headers, counting=captured["path"].endswith("count_tokens"))
