"""Tests Responses requests: the effect of each field, the echo, and the refusals."""

import json
from typing import Any

import msgspec
import pytest

from schemas.conversation import (
    Grammar,
    Hints,
    Message,
    OutputFormat,
    Sampling,
    Text,
    Thinking,
    ToolChoice,
    ToolSpec,
)
from schemas.errors import Invalid
from services.frontend.apis.responses import wire_answers
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.request.tools import ToolName, tool_name
from services.frontend.apis.responses.state.input_items import stored_items

F = {
    "type": "function",
    "name": "f",
    "parameters": {"type": "object"},
    "strict": True,
    "description": "F.",
}
G = {"type": "custom", "name": "g"}
NS = {
    "type": "namespace",
    "name": "ns",
    "description": "",
    "tools": [{"type": "function", "name": "f"}, G],
}


def parse(headers: dict[str, str] | None = None, **body: Any) -> ConvertedRequest:
    return Responses().parse(
        json.dumps({"model": "m", "input": "Hi.", **body}).encode(), headers or {}
    )


def refusal(**body: Any) -> tuple[str, str | None, str | None]:
    with pytest.raises(Invalid) as refused:
        parse(**body)
    info = refused.value.info
    return info.message, info.param, info.code


def test_smallest_request_is_parsed() -> None:
    ask = parse()
    assert ask.conversation.messages == [Message("user", [Text("Hi.")])]
    assert (ask.conversation.system, ask.conversation.tools, ask.notes) == ([], [], [])
    assert ask.conversation.thinking == Thinking()
    assert ask.conversation.sampling == Sampling()
    assert ask.conversations == (ask.conversation,)
    assert not (ask.stream)
    assert not (ask.may_shorten)
    assert ask.sealer is None
    assert not (ask.request.body.background)
    assert ask.request.store


def test_instructions_come_first() -> None:
    ask = parse(instructions="Be brief.", input=[{"role": "developer", "content": "D"}])
    assert ask.conversation.system == [Text("Be brief.")]
    assert ask.conversation.messages[0].role == "developer"


def test_every_sampling_field_is_read() -> None:
    ask = parse(
        max_output_tokens=16,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        min_tokens=2,
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        stop="END",
        ignore_eos=True,
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        logit_bias={"9": 1.5},
        top_logprobs=4,
        include=["message.output_text.logprobs"],
    )
    assert ask.conversation.sampling == Sampling(
        max_tokens=16,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        min_tokens=2,
        seed=7,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        repetition_penalty=1.1,
        stop=["END"],
        ignore_eos=True,
        stop_token_ids=[5],
        include_stop=True,
        logit_bias={9: 1.5},
        logprobs=4,
    )


def test_logprobs_need_their_include() -> None:
    assert parse(top_logprobs=4).conversation.sampling.logprobs is None
    assert parse(include=["message.output_text.logprobs"]).conversation.sampling.logprobs == 0


@pytest.mark.parametrize(
    ("reasoning", "thinking"),
    [
        ({"effort": None, "summary": "auto"}, Thinking()),
        ({"effort": "none"}, Thinking("disabled", effort="none")),
        ({"max_tokens": 64}, Thinking("enabled", 64)),
        ({"max_tokens": 64, "effort": "low"}, Thinking("enabled", 64, "low")),
        ({"max_tokens": 0}, Thinking("disabled", 0)),
        ({"effort": "minimal"}, Thinking("enabled", effort="minimal")),
        (
            {"effort": "max", "context": "all_turns"},
            Thinking("enabled", effort="max", history="keep"),
        ),
        ({"context": "current_turn", "mode": "pro"}, Thinking(history="drop")),
        ({"context": "auto"}, Thinking()),
        (None, Thinking()),
    ],
)
def test_reasoning_is_converted(reasoning: Any, thinking: Thinking) -> None:
    assert parse(reasoning=reasoning).conversation.thinking == thinking


def test_text_format_is_converted() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    wanted = {
        "type": "json_schema",
        "name": "n",
        "schema": schema,
        "strict": True,
        "description": "d",
    }
    ask = parse(text={"format": wanted, "verbosity": "high"})
    assert ask.conversation.format == OutputFormat("json_schema", schema, "n", True)
    assert ask.conversation.verbosity == "high"
    assert parse(text={"format": {"type": "json_object"}}).conversation.format == OutputFormat(
        "json_object"
    )
    assert parse(text={"format": {"type": "text"}}).conversation.format is None


def test_session_and_hints_are_read() -> None:
    ask = parse(
        {"session-id": "s1", "user-agent": "codex"},
        prompt_cache_key="k",
        nvext={"agent_hints": {"priority": 3, "osl": 9}},
        cache_salt="salt",
        chat_template_kwargs={"x": 1},
    )
    assert (ask.conversation.client.session, ask.conversation.client.user_agent) == ("s1", "codex")
    assert ask.conversation.hints == Hints(priority=3, osl=9, cache_salt="salt")
    assert ask.conversation.template_kwargs == {"x": 1}
    assert parse(prompt_cache_key="k").conversation.client.session == "k"


def test_prefill_generates_nothing() -> None:
    for body in ({"generate": False}, {"prompt_cache_options": {"prewarm": True}}):
        ask = parse(**body)
        assert ask.request.prefill
        assert ask.conversation.sampling.max_tokens == 0


def test_tools_of_every_kind_are_converted() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    ask = parse(
        tools=[
            F,
            {**G, "format": grammar},
            NS,
            {"type": "tool_search", "execution": "client"},
            {"type": "shell"},
        ]
    )
    shown = ask.conversation.tools
    assert shown[0] == ToolSpec("f", "F.", {"type": "object"}, strict=True)
    assert shown[1] == ToolSpec("g", kind="custom", grammar=Grammar("lark", "start: /x/"))
    assert [(tool.namespace, tool.name, tool.kind) for tool in shown[2:4]] == [
        ("ns", "f", "function"),
        ("ns", "g", "custom"),
    ]
    assert [tool.name for tool in shown[4:]] == ["tool_search", "shell"]
    assert all(tool.schema["required"] for tool in shown[4:])
    called = tool_name(ask.shape.names, "ns__g")
    assert (called.kind, called.name, called.namespace) == (
        "custom",
        "g",
        "ns",
    )
    assert tool_name(ask.shape.names, "nobody") == ToolName("function", "nobody")


def test_hosted_tools_are_dropped_and_noted() -> None:
    hosted = [
        "web_search",
        "web_search_preview",
        "file_search",
        "computer",
        "mcp",
        "code_interpreter",
        "image_generation",
    ]
    ask = parse(
        tools=[
            *({"type": kind} for kind in hosted),
            {"type": "shell", "environment": {"type": "container_auto"}},
            F,
        ]
    )
    assert ask.notes == [*hosted, "shell"]
    assert [tool.name for tool in ask.conversation.tools] == ["f"]


def test_tools_are_deferred_only_if_the_client_can_search() -> None:
    deferred = {**F, "defer_loading": True}
    client = parse(
        tools=[deferred, {"type": "tool_search", "execution": "client"}]
    ).conversation.tools
    assert [tool.deferred for tool in client] == [True, False]
    for more in ([], [{"type": "tool_search"}], [{"type": "tool_search", "execution": "server"}]):
        assert [tool.deferred for tool in parse(tools=[deferred, *more]).conversation.tools] == [
            False
        ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        ({"type": "function", "name": "f"}, ToolChoice("tool", "f")),
        ({"type": "custom", "name": "g"}, ToolChoice("tool", "g", namespace="ns")),
        ({"type": "function", "name": "f", "namespace": "ns"}, ToolChoice("tool", "f", namespace="ns")),
        ({"type": "function", "name": "ns__f"}, ToolChoice("tool", "f", namespace="ns")),
        ({"type": "apply_patch"}, ToolChoice("tool", "apply_patch")),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, ToolChoice("any", allowed=["f"])),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "ns"}, {"type": "apply_patch"}, {"type": "web_search"}]}, ToolChoice("auto", allowed=["ns__f", "ns__g", "apply_patch"])),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, ToolChoice("none")),
        (None, ToolChoice()),
    ],
)  # fmt: skip
def test_tool_choice_is_converted(choice: Any, expected: ToolChoice) -> None:
    tools = [F, NS, {"type": "apply_patch"}, {"type": "web_search"}]
    assert parse(tools=tools, tool_choice=choice).conversation.tool_choice == expected
    alone = parse(
        tools=tools, tool_choice=choice, parallel_tool_calls=False
    ).conversation.tool_choice
    assert alone == msgspec.structs.replace(expected, parallel=False)


def test_truncation_and_context_management_are_read() -> None:
    ask = parse(
        truncation="auto", context_management=[{"type": "compaction", "compact_threshold": 1000}]
    )
    assert ask.may_shorten
    assert [managed.compact_threshold for managed in ask.request.body.context_management or ()] == [
        1000
    ]


HOSTED = "which this server does not run."
CONVERSATION = (
    "'conversation' names a stored conversation, which this server does not keep; send its items."
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": "x"}, ("Invalid type for 'temperature': expected a decimal, but got a string instead.", "temperature", "invalid_type")),
        ({"temperature": 3}, ("Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.", "temperature", "decimal_above_max_value")),
        ({"max_output_tokens": 0}, ("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.", "max_output_tokens", "integer_below_min_value")),
        ({"reasoning": {"max_tokens": 2**63}}, ("Invalid 'reasoning.max_tokens': integer above maximum value. Expected a value <= 9223372036854775807.", "reasoning.max_tokens", "integer_above_max_value")),
        ({"top_logprobs": 21}, ("Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead.", "top_logprobs", "integer_above_max_value")),
        ({"reasoning": {"effort": "huge"}}, ("Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.", "reasoning.effort", "invalid_value")),
        ({"text": {"format": {"type": "xml"}}}, ("Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.", "text.format.type", "invalid_value")),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, ("Missing required parameter: 'text.format.schema'.", "text.format.schema", "missing_required_parameter")),
        ({"truncation": "some"}, ("Invalid value: 'some'. Supported values are: 'auto' and 'disabled'.", "truncation", "invalid_value")),
        ({"tools": [{"type": "function"}]}, ("Missing required parameter: 'tools[0].name'.", "tools[0].name", "missing_required_parameter")),
        ({"tools": [{"name": "f"}]}, ("Missing required parameter: 'tools[0].type'.", "tools[0].type", "missing_required_parameter")),
        ({"tools": [F, F]}, ("Tool names must be unique: 'f'.", "tools[1].name", "invalid_value")),
        ({"tools": [{**G, "format": {"type": "grammar", "syntax": "peg", "definition": "x"}}]}, ("Invalid value: 'peg'. Supported values are: 'lark' and 'regex'.", "tools[0].format.syntax", "invalid_value")),
        ({"tools": [NS, {**NS}]}, ("Tool names must be unique: 'ns__f'.", "tools[1].tools[0].name", "invalid_value")),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "x"}}, ("Tool choice 'x' not found in 'tools' parameter.", "tool_choice", "invalid_value")),
        ({"tools": [F], "tool_choice": "some"}, ("Invalid value: 'some'. Supported values are: 'none', 'auto', and 'required'.", "tool_choice", "invalid_value")),
        ({"tool_choice": "required"}, ("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice", None)),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, (f"'tool_choice' asks for one of web_search, {HOSTED}", "tool_choice", "unsupported_value")),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, (f"'tool_choice' asks for 'web_search', {HOSTED}", "tool_choice", "unsupported_value")),
        ({"conversation": "conv_1"}, (CONVERSATION, "conversation", "unsupported_value")),
        ({"conversation": {"id": "c"}}, (CONVERSATION, "conversation", "unsupported_value")),
        ({"prompt": {"id": "p"}}, ("'prompt' names a stored prompt, which this server does not have; send its text.", "prompt", "unsupported_value")),
        ({"background": True, "store": False}, ("Background responses need 'store' to be true.", "background", "invalid_value")),
        ({"previous_response_id": "resp_x"}, ("Previous response with id 'resp_x' not found.", "previous_response_id", "previous_response_not_found")),
        ({"logit_bias": {"x": 1}}, ("Invalid key in 'logit_bias': keys must be token ids.", "logit_bias", "invalid_value")),
        ({"input": None}, ("Missing required parameter: 'input'.", "input", "missing_required_parameter")),
    ],
)  # fmt: skip
def test_refusal_has_native_wording(body: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert refusal(**body) == expected


@pytest.mark.parametrize(
    "body", [b"[]", b"", b"{", b'"x"', b"\xff", b'{"input":' + b"[" * 2000, b'{"model":"\xff"}']
)
def test_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        Responses().parse(body, {})


def test_counting_accepts_unknown_fields() -> None:
    body = {"model": "m", "input": "Hi.", "personality": "friendly"}
    ask = Responses().convert(decode(json.dumps(body).encode()), {}, counting=True)
    assert ask.conversation.messages == [Message("user", [Text("Hi.")])]
    assert json.loads(msgspec.json.encode(wire_answers.ResponsesTokens(input_tokens=7))) == {
        "object": "response.input_tokens",
        "input_tokens": 7,
    }


@pytest.mark.parametrize(
    ("stored", "own", "place"), [(3, "c", "history[1].call_id"), ("c", 3, "input[0].call_id")]
)
def test_error_names_the_place_in_history_or_input(stored: Any, own: Any, place: str) -> None:
    def call(id: Any) -> dict[str, Any]:
        return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}

    request = decode(json.dumps({"model": "m", "input": [call(own)]}).encode())
    history = [msgspec.Raw(json.dumps(item).encode()) for item in (call("b"), call(stored))]
    with pytest.raises(Invalid) as refused:
        Responses().convert(request, {}, history)
    assert refused.value.info.param == place


def test_history_precedes_the_input() -> None:
    first = decode(b'{"model":"m","input":"One.","instructions":"Once."}')
    said = msgspec.Raw(
        b'{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Two."}]}'
    )
    second = decode(b'{"model":"m","input":"Three.","previous_response_id":"resp_1"}')
    ask = Responses().convert(second, {}, [*first.items, said])
    assert [(message.role, message.parts) for message in ask.conversation.messages] == [
        ("user", [Text("One.")]),
        ("assistant", [Text("Two.")]),
        ("user", [Text("Three.")]),
    ]
    assert ask.conversation.system == []
    assert ask.request.echo["previous_response_id"] == "resp_1"


def test_stored_items_are_complete_and_have_ids() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi.", "x_own": [1.50]},
        {"role": "assistant", "content": "Ho.", "phase": "commentary"},
        {"type": "function_call", "id": "fc_9", "call_id": "c", "name": "n", "arguments": "{ }"},
        {"type": "function_call_output", "call_id": "c", "output": "o", "status": "incomplete"},
        {"type": "reasoning", "id": "", "summary": [], "encrypted_content": "e"},
        {"id": "msg_old"},
    ]
    request = decode(json.dumps({"input": items}).encode())
    old = msgspec.Raw(b'{"id":"msg_old","type":"message","status":"incomplete"}')
    stored = [
        json.loads(bytes(item))
        for item in stored_items(request.with_references({"msg_old": old}), "t1")
    ]
    assert [item["id"] for item in stored] == [
        "msg_t1i000",
        "msg_t1i001",
        "fc_9",
        "fco_t1i003",
        "rs_t1i004",
        "msg_old",
    ]
    assert stored[0]["content"] == [{"type": "input_text", "text": "Hi."}]
    assert stored[0]["x_own"] == [1.5]
    assert stored[1]["content"] == [{"type": "output_text", "text": "Ho.", "annotations": []}]
    statuses = ["completed", "completed", "completed", "incomplete", None, "incomplete"]
    assert [item.get("status") for item in stored] == statuses
    for before, after in zip(items[2:5], stored[2:5], strict=True):
        assert after.items() >= {**before, "id": after["id"]}.items()
