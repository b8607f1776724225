"""Tests that captured Responses requests of agents are converted without loss.

Each request is flattened twice, by two independent programs: from its JSON, and from its
conversation. Both must have the same content in the same order. The captures are not part of the
repository; without them only a written request is checked.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.conversation import Call, Conversation, Reasoning, Result, Text
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.request.compaction import COMPACTED
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.captures import CAPTURES, REASON

REQUESTS = sorted(path for path in CAPTURES.glob("*/*/*-POST-v1-responses.json"))
FRAMES = CAPTURES / "codex-0.169.0" / "12-websocket" / "ws-frames-client-to-server.json"
Story = list[tuple[Any, ...]]


class AnyBlob:
    """A sealer that opens every blob as a summary."""

    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\n" + blob


def told_by_json(body: dict[str, Any]) -> Story:
    story: Story = []
    for run in _runs(body["input"]):
        told = [told for item in run for told in _item(item)]
        if run[0].get("type", "").endswith("_output"):
            calls = [
                item["call_id"] for item in body["input"] if item.get("type", "").endswith("_call")
            ]
            told.sort(key=lambda each: calls.index(each[1]))
        story += told
    for tools in [
        body.get("tools") or [],
        *(i["tools"] for i in body["input"] if i.get("type") == "additional_tools"),
    ]:
        for tool in tools:
            story += _tool(tool, None)
    return sorted(story, key=lambda told: told[0] == "tool")


def _runs(items: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Groups of consecutive results, and every other item alone."""
    runs: list[list[dict[str, Any]]] = []
    for item in items:
        results = [run and run[0].get("type", "").endswith("_output") for run in runs[-1:]]
        if item.get("type", "").endswith("_output") and results == [True]:
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _item(item: dict[str, Any]) -> Story:
    match item.get("type", "message"):
        case "message":
            return [(item["role"], text) for text in _texts(item["content"])]
        case "reasoning":
            summary = [part["text"] for part in item["summary"]]
            content = "".join(part["text"] for part in item.get("content") or [])
            return [("thinking", content, summary, item["encrypted_content"])]
        case "function_call":
            return [
                ("call", item["call_id"], item["name"], item.get("namespace"), item["arguments"])
            ]
        case "custom_tool_call":
            return [("raw", item["call_id"], item["name"], item.get("namespace"), item["input"])]
        case "function_call_output" | "custom_tool_call_output":
            return [("result", item["call_id"], _texts(item["output"]))]
        case "compaction":
            return [("user", COMPACTED + item["encrypted_content"])]
        case "compaction_trigger":
            return [("user", SUMMARIZE)]
        case "additional_tools":
            return []
    raise AssertionError(f"the captures have no {item}")


def _texts(content: str | list[dict[str, Any]]) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _tool(tool: dict[str, Any], namespace: str | None) -> Story:
    match tool["type"]:
        case "function":
            return [
                (
                    "tool",
                    namespace,
                    tool["name"],
                    tool.get("description") or "",
                    json.dumps(tool["parameters"]),
                )
            ]
        case "custom":
            grammar = tool["format"]["definition"]
            return [("tool", namespace, tool["name"], tool["description"], grammar)]
        case "namespace":
            inner = [told for each in tool["tools"] for told in _tool(each, tool["name"])]
            if tool["description"]:
                first = list(inner[0])
                first[3] = f"{tool['name']}: {tool['description']}\n\n{first[3]}"
                inner[0] = tuple(first)
            return inner
        case "tool_search":
            return [
                ("tool", None, "tool_search", tool["description"], json.dumps(tool["parameters"]))
            ]
        case "web_search":
            return []
    raise AssertionError(f"the captures have no {tool['type']}")


def told_by_conversation(conversation: Conversation, opened: bool) -> Story:
    story: Story = []
    for message in conversation.messages:
        for part in message.parts:
            match part:
                case Text(text):
                    story.append((message.role, text))
                case Reasoning(text=thought, seal=seal, summary=summary):
                    story.append(
                        (
                            "thinking",
                            "" if opened else thought or "",
                            [] if opened else summary,
                            seal,
                        )
                    )
                case Call(kind="custom"):
                    raw = json.loads(part.arguments)["input"]
                    story.append(("raw", part.call_id, part.name, part.namespace, raw))
                case Call():
                    story.append(("call", part.call_id, part.name, part.namespace, part.arguments))
                case Result(call_id, parts):
                    story.append(("result", call_id, [p.text for p in parts]))  # type: ignore[union-attr]
                case _:
                    raise AssertionError(f"the captures have no {part}")
    for tool in conversation.tools:
        form = tool.grammar.definition if tool.grammar is not None else json.dumps(tool.schema)
        story.append(("tool", tool.namespace, tool.name, tool.description, form))
    return story


def check(body: dict[str, Any], headers: dict[str, str]) -> ConvertedRequest:
    if isinstance(body["input"], str):
        body = {**body, "input": [{"role": "user", "content": body["input"]}]}
    special = any(item.get("type", "").startswith("compaction") for item in body["input"])
    sealer = AnyBlob() if special else None
    request = decode(json.dumps(body, ensure_ascii=False).encode())
    ask = Responses().convert(request, headers, sealer=sealer)
    expected = told_by_json(body)
    if sealer is not None:  # it opens the seals of reasoning too, to a text that is in no capture
        expected = [
            ("thinking", "", [], each[3]) if each[0] == "thinking" else each for each in expected
        ]
    assert told_by_conversation(ask.conversation, sealer is not None) == expected
    assert ask.conversation.model == body["model"]
    assert ask.stream == bool(body.get("stream"))
    assert ask.notes == [
        tool["type"] for tool in body.get("tools") or [] if tool["type"] == "web_search"
    ]
    reasoning = body.get("reasoning") or {}
    assert ask.conversation.thinking.effort == reasoning.get("effort")
    assert ask.conversation.thinking.history == (
        "keep" if reasoning.get("context") == "all_turns" else "default"
    )
    assert ask.conversation.verbosity == (body.get("text") or {}).get("verbosity")
    assert ask.conversation.sampling.max_tokens == body.get("max_output_tokens")
    assert ask.conversation.tool_choice.parallel == body.get("parallel_tool_calls", True)
    assert ask.request.store == body.get("store", True)
    session = (
        headers.get("session-id") or headers.get("x-session-id") or body.get("prompt_cache_key")
    )
    assert ask.conversation.client.session == session
    return ask


def test_request_in_the_form_of_codex_is_parsed() -> None:
    function = {
        "type": "function",
        "name": "exec_command",
        "description": "Runs.",
        "strict": False,
        "parameters": {"type": "object"},
    }
    body = {
        "model": "gpt-5.5",
        "stream": True,
        "store": False,
        "parallel_tool_calls": True,
        "prompt_cache_key": "01a1f7f6",
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "medium"},
        "text": {"verbosity": "low"},
        "tools": [function, {"type": "namespace", "name": "ns", "description": "About.", "tools": [function]}, {"type": "web_search"}],
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "Base."}]},
            {"type": "message", "id": "msg_2", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "S"}], "content": None, "encrypted_content": "gAAA"},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd": "ls", "n": 1.0}'},
            {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "apply_patch", "input": '*** "Begin"\n'},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "aborted"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}]},
        ],
    }  # fmt: skip
    check(body, {"session-id": "01a1f7f6"})


@pytest.mark.skipif(not REQUESTS, reason=REASON)
@pytest.mark.parametrize("path", REQUESTS, ids=lambda path: "/".join(path.parts[-3:]))
def test_captured_request_is_parsed(path: Path) -> None:
    capture = json.loads(path.read_text())
    check(capture["body"], {name.lower(): value for name, value in capture["headers"]})


@pytest.mark.skipif(not FRAMES.exists(), reason=REASON)
def test_captured_websocket_session_continues_its_responses() -> None:
    frames = json.loads(FRAMES.read_text())
    bodies = [
        frame.get("body", frame) if isinstance(frame, dict) else json.loads(frame)
        for frame in frames
    ]
    requests = [decode(json.dumps(body).encode()) for body in bodies]
    assert requests[0].prefill
    assert requests[0].body.previous_response_id is None
    assert all(
        request.body.previous_response_id is not None and not request.prefill
        for request in requests[1:]
    )
    ask = Responses().convert(requests[1], {}, requests[0].items)
    assert [message.role for message in ask.conversation.messages][:1] == ["developer"]
    assert len(ask.conversation.messages) == len(requests[0].items) + len(requests[1].items)
