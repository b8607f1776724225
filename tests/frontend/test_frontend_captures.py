"""Tests that captured requests of agents are converted without loss.

Each request is flattened twice, by two independent programs: from its JSON, one program an API, and
from its conversation. Both must have the same content in the same order. The captures are not part
of the repository; without them only the written requests are checked.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from schemas.conversation import Call, Conversation, Reasoning, Result, Text, ToolReference
from services.frontend.apis.messages.request import parse
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.request.compaction import COMPACTED
from services.frontend.content.hosted_tools import missing_tools
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.bodies import (
    CHAT,
    SCHEMA,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    chat_result,
    chat_tool,
    function,
    function_call,
    function_output,
    message,
    responses,
    text,
    user,
)
from tests.kit.captures import CAPTURES, REASON
from tests.kit.every import Cases

FIXTURES = Path(__file__).parents[1] / "fixtures"
FRAMES = CAPTURES / "codex-0.169.0" / "12-websocket" / "ws-frames-client-to-server.json"
Story: TypeAlias = list[tuple[Any, ...]]


def captured(pattern: str) -> list[Path]:
    paths = sorted(CAPTURES.glob(f"*/*/*-POST-v1-{pattern}.json"))
    return [path for path in paths if ".response." not in path.name]


def texts_of(content: Any) -> list[str]:
    """The texts of a string, or of parts."""
    return [content] if isinstance(content, str) else [part["text"] for part in content or []]


def flat_conversation(conversation: Conversation) -> Story:
    """Everything that a conversation has, in its order."""
    story: Story = [("system", said.text) for said in conversation.system]
    for read in conversation.messages:
        for part in read.parts:
            match part:
                case Text(said):
                    story.append((read.role, said))
                case Reasoning(text=thought, seal=seal, summary=summary):
                    story.append(("thinking", thought, seal, summary))
                case Call(kind="custom"):
                    said = json.loads(part.arguments)["input"]
                    story.append(("custom", part.call_id, part.name, part.namespace, said))
                case Call():
                    story.append(("call", part.call_id, part.name, part.namespace, part.arguments))
                case Result(call_id, parts):
                    said = [p.name if isinstance(p, ToolReference) else p.text for p in parts]  # type: ignore[union-attr,assignment]
                    story.append(("result", call_id, said, part.is_error))
                case _:
                    raise AssertionError(f"the captures have no {part}")
    for tool in conversation.tools:
        form = tool.grammar.definition if tool.grammar is not None else json.dumps(tool.schema)
        name = (tool.namespace, tool.name)
        story.append(("tool", name, tool.description, form, tool.deferred))
    return story


def flat_chat(body: Json) -> Story:
    story: Story = []
    for said in body["messages"]:
        texts = texts_of(said.get("content"))
        if said["role"] == "tool":
            story.append(("result", said["tool_call_id"], texts, None))
            continue
        if said.get("reasoning_content"):
            story.append(("thinking", said["reasoning_content"], None, []))
        story += [(said["role"], each) for each in texts if each]
        for call in said.get("tool_calls") or []:
            called = call["function"]
            story.append(("call", call["id"], called["name"], None, called["arguments"]))
    for tool in body.get("tools") or []:
        offered = tool["function"]
        form = json.dumps(offered["parameters"])
        name = (None, offered["name"])
        story.append(("tool", name, offered.get("description", ""), form, False))
    return story


def flat_messages(body: Json) -> Story:
    tools = body.get("tools") or []
    dropped = [tool["name"] for tool in tools if "type" in tool]
    system = texts_of(body.get("system")) + [said.text for said in missing_tools(dropped)]
    story: Story = [("system", said) for said in system]
    for said in body["messages"]:
        content = said.get("content")
        blocks = [text(content)] if isinstance(content, str) else content or []
        results = [each for each in blocks if each["type"] == "tool_result"]
        for each in [*results, *(each for each in blocks if each["type"] != "tool_result")]:
            story += flat_block(said["role"], each)
    for tool in tools:
        if "input_schema" in tool:
            form = json.dumps(tool["input_schema"])
            name, deferred = (None, tool["name"]), bool(tool.get("defer_loading"))
            story.append(("tool", name, tool.get("description") or "", form, deferred))
    return story


def flat_block(role: str, content: Json) -> Story:
    match content["type"]:
        case "text":
            return [(role, content["text"])] if content["text"] else []
        case "thinking":
            seal = content.get("signature") or None
            return [("thinking", content["thinking"] or None, seal, [])]
        case "redacted_thinking":
            return [("thinking", None, content["data"], [])]
        case "tool_use":
            return [("call", content["id"], content["name"], None, content["input"])]
        case "tool_result":
            inner = content.get("content") or []
            parts = [text(inner)] if isinstance(inner, str) else inner
            said = [part.get("text") or part["tool_name"] for part in parts]
            return [("result", content["tool_use_id"], said, content.get("is_error"))]
    raise AssertionError(f"the captures have no {content['type']} blocks")


def flat_responses(body: Json) -> Story:
    items = body["input"]
    story: Story = []
    for run in runs_of(items):
        told = [each for item in run for each in flat_item(item)]
        if is_output(run[0]):
            calls = [item["call_id"] for item in items if item.get("type", "").endswith("_call")]
            told.sort(key=lambda each: calls.index(each[1]))
        story += told
    added = [item["tools"] for item in items if item.get("type") == "additional_tools"]
    for tools in [body.get("tools") or [], *added]:
        for tool in tools:
            story += flat_tool(tool, None)
    return sorted(story, key=lambda told: told[0] == "tool")


def is_output(item: Json) -> bool:
    return str(item.get("type", "")).endswith("_output")


def runs_of(items: list[Json]) -> list[list[Json]]:
    """Groups of consecutive results, and every other item alone."""
    runs: list[list[Json]] = []
    for item in items:
        if runs and is_output(item) and is_output(runs[-1][0]):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def flat_item(item: Json) -> Story:
    named = (item.get("call_id"), item.get("name"), item.get("namespace"))
    match item.get("type", "message"):
        case "message":
            return [(item["role"], said) for said in texts_of(item["content"])]
        case "reasoning":
            content = "".join(texts_of(item.get("content")))
            seal = item["encrypted_content"]
            return [("thinking", content, seal, texts_of(item["summary"]))]
        case "function_call":
            return [("call", *named, item["arguments"])]
        case "custom_tool_call":
            return [("custom", *named, item["input"])]
        case "function_call_output" | "custom_tool_call_output":
            return [("result", item["call_id"], texts_of(item["output"]), None)]
        case "compaction":
            return [("user", COMPACTED + item["encrypted_content"])]
        case "compaction_trigger":
            return [("user", SUMMARIZE)]
        case "additional_tools":
            return []
    raise AssertionError(f"the captures have no {item}")


def flat_tool(tool: Json, namespace: str | None) -> Story:
    description = tool.get("description") or ""
    match tool["type"]:
        case "function" | "tool_search":
            name = (namespace, tool.get("name", "tool_search"))
            return [("tool", name, description, json.dumps(tool["parameters"]), False)]
        case "custom":
            form = tool["format"]["definition"]
            return [("tool", (namespace, tool["name"]), description, form, False)]
        case "namespace":
            inner = [told for each in tool["tools"] for told in flat_tool(each, tool["name"])]
            if description:
                kind, name, first, *rest = inner[0]
                inner[0] = (kind, name, f"{tool['name']}: {description}\n\n{first}", *rest)
            return inner
        case "web_search":
            return []
    raise AssertionError(f"the captures have no {tool['type']}")


def check_chat(body: Json, headers: dict[str, str]) -> None:
    ask = CHAT.parse(json.dumps(body, ensure_ascii=False).encode(), headers)
    read: Conversation = ask.conversation
    assert flat_conversation(read) == flat_chat(body)
    assert read.model == body["model"]
    assert read.sampling.max_tokens == body.get("max_completion_tokens", body.get("max_tokens"))
    assert read.sampling.temperature == body.get("temperature")
    assert read.thinking.effort == body.get("reasoning_effort")
    assert ask.stream == bool(body.get("stream"))
    assert ask.shape.include_usage == bool(body.get("stream_options", {}).get("include_usage"))
    assert read.tool_choice.mode == body.get("tool_choice", "auto")
    assert read.client.session == headers.get("x-session-id")
    assert ask.notes == []


def check_messages(body: Json, headers: dict[str, str], *, counting: bool = False) -> None:
    ask = parse(json.dumps(body, ensure_ascii=False).encode(), headers, counting=counting)
    read = ask.conversation
    flat = [
        (*told[:4], json.loads(told[4])) if told[0] == "call" else told
        for told in flat_conversation(read)
    ]
    assert flat == flat_messages(body)
    assert read.model == body["model"]
    assert read.sampling.max_tokens == body.get("max_tokens")
    assert ask.stream == bool(body.get("stream"))
    assert ask.notes == [tool["type"] for tool in body.get("tools") or [] if "type" in tool]
    assert (ask.edits is not None) == ("context_management" in body)
    thinking = body.get("thinking") or {}
    default = "disabled" if "output_config" in body else "default"
    assert read.thinking.mode == thinking.get("type", default)
    assert read.thinking.budget_tokens == thinking.get("budget_tokens")
    assert read.thinking.display == ("omitted" if thinking.get("display") == "omitted" else "full")
    efforts = [m["output_config"]["effort"] for m in body["messages"] if m.get("output_config")]
    assert read.thinking.effort == (efforts or [body.get("output_config", {}).get("effort")])[-1]
    session = headers.get("x-claude-code-session-id")
    agent = headers.get("x-claude-code-agent-id")
    assert session is None or read.client.session == (f"{session}/{agent}" if agent else session)


class AnyBlob:
    """A sealer that opens every blob as a summary."""

    def seal(self, text: str) -> str:
        return text

    def open(self, blob: str) -> str | None:
        return "turnwire.compaction.1\n" + blob


def check_responses(body: Json, headers: dict[str, str]) -> None:
    if isinstance(body["input"], str):
        body = body | {"input": [user(body["input"])]}
    special = any(item.get("type", "").startswith("compaction") for item in body["input"])
    request = decode(json.dumps(body, ensure_ascii=False).encode())
    ask = Responses().convert(request, headers, sealer=AnyBlob() if special else None)
    read = ask.conversation

    def opened(story: Story) -> Story:
        """The sealer opens the seals of reasoning too, to a text that is in no capture."""
        return [
            ("thinking", "" if special else each[1] or "", each[2], [] if special else each[3])
            if each[0] == "thinking"
            else each
            for each in story
        ]

    messages_and_tools = flat_conversation(read)[len(read.system) :]
    assert opened(messages_and_tools) == opened(flat_responses(body))
    assert read.model == body["model"]
    assert ask.stream == bool(body.get("stream"))
    hosted = [tool["type"] for tool in body.get("tools") or [] if tool["type"] == "web_search"]
    assert ask.notes == hosted
    reasoning = body.get("reasoning") or {}
    assert read.thinking.effort == reasoning.get("effort")
    kept = reasoning.get("context") == "all_turns"
    assert read.thinking.history == ("keep" if kept else "default")
    assert read.verbosity == (body.get("text") or {}).get("verbosity")
    assert read.sampling.max_tokens == body.get("max_output_tokens")
    assert read.tool_choice.parallel == body.get("parallel_tool_calls", True)
    assert ask.request.store == body.get("store", True)
    named = headers.get("session-id") or headers.get("x-session-id")
    assert read.client.session == (named or body.get("prompt_cache_key"))


def test_chat_requests_in_the_form_of_agents_are_parsed() -> None:
    body = chat(
        message("system", "You are an agent."),
        user("Create a file, then look at it."),
        assistant(
            "Creating.",
            reasoning_content="I should write a file.",
            tool_calls=[chat_call("callL1", "exec", '{"command":"echo é > a"}')],
        ),
        chat_result("callL1", "(no output)"),
        assistant(
            None,
            reasoning_content="Check it.\nAnd once more.",
            tool_calls=[
                chat_call("callL2", "exec", '{"command": "cat a"}'),
                chat_call("callL3", "exec"),
            ],
        ),
        chat_result("callL2", "é"),
        chat_result("callL3", [text("no command")]),
        user(text("<<<CONTEXT>>>")),
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=8192,
        tool_choice="auto",
        tools=[chat_tool("exec", description="Runs a command.")],
    )
    check_chat(body, {"x-session-id": "ses_1"})


def test_messages_request_of_claude_code_is_parsed() -> None:
    check_messages(json.loads((FIXTURES / "messages" / "agent_turn.json").read_text()), {})


def test_responses_request_in_the_form_of_codex_is_parsed() -> None:
    tool = function("exec_command", description="Runs.", parameters=SCHEMA)
    namespace = block("namespace", name="ns", description="About.", tools=[tool])
    patch = {"call_id": "c2", "name": "apply_patch", "input": '*** "Begin"\n'}
    summary = [block("summary_text", text="S")]
    body = responses(
        block("message", **message("developer", block("input_text", text="Base.")), id="msg_1"),
        block("message", **user(block("input_text", text="Go.")), id="msg_2"),
        block("reasoning", id="rs_1", summary=summary, content=None, encrypted_content="gAAA"),
        function_call("c1", "exec_command", id="fc_1", arguments='{"cmd": "ls", "n": 1.0}'),
        block("custom_tool_call", id="ctc_1", **patch),
        block("custom_tool_call_output", call_id="c2", output="aborted"),
        function_output("c1", [block("input_text", text="a")]),
        stream=True,
        store=False,
        parallel_tool_calls=True,
        prompt_cache_key="01a1f7f6",
        include=["reasoning.encrypted_content"],
        reasoning={"effort": "medium"},
        text={"verbosity": "low"},
        tools=[tool, namespace, block("web_search")],
    )
    check_responses(body, {"session-id": "01a1f7f6"})


@pytest.mark.skipif(not CAPTURES.exists(), reason=REASON)
def test_captured_requests_are_parsed(cases: Cases) -> None:
    patterns = {"chat-completions": check_chat, "messages*": check_messages}
    for pattern, check in (patterns | {"responses": check_responses}).items():
        paths = captured(pattern)
        assert paths
        for path in paths:
            capture = json.loads(path.read_text())
            headers = {name.lower(): value for name, value in capture["headers"]}
            counting = {"counting": True} if capture["path"].endswith("count_tokens") else {}
            with cases.case(path="/".join(path.parts[-3:])):
                check(capture["body"], headers, **counting)


@pytest.mark.skipif(not FRAMES.exists(), reason=REASON)
def test_captured_websocket_session_continues_its_responses() -> None:
    frames = json.loads(FRAMES.read_text())
    bodies = [
        frame.get("body", frame) if isinstance(frame, dict) else json.loads(frame)
        for frame in frames
    ]
    first, *others = [decode(json.dumps(body).encode()) for body in bodies]
    assert first.prefill
    assert first.body.previous_response_id is None
    for request in others:
        assert request.body.previous_response_id is not None
        assert not request.prefill
    ask = Responses().convert(others[0], {}, first.items)
    assert [message.role for message in ask.conversation.messages][:1] == ["developer"]
    assert len(ask.conversation.messages) == len(first.items) + len(others[0].items)
