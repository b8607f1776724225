"""Tests what every API refuses, in the vendor's words, and what it accepts though the vendor does
not. A table has one row for each rule."""

from typing import Any, TypeAlias

import pytest

from tests.kit.bodies import (
    APIS,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PNG,
    RESPONSES,
    SCHEMA,
    USER,
    Api,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    chat_result,
    chat_tool,
    completions,
    function,
    function_call,
    function_output,
    message,
    messages,
    responses,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.every import Cases
from tests.kit.frontend import Served

LONG = "x" * 300
OPEN_SCHEMA = {"oneOf": [{"type": "object"}, {"properties": {"ä b": {"minLength": 3}}}]}
TOOL = tool()
USE = tool_use()
RESULT = tool_result()
ENABLED = block("enabled", budget_tokens=1024)
SEARCH = block("web_search_20250305", name="web_search")
CLEAR_TOOLS = "clear_tool_uses_20250919"
COMPACT = block("compact_20260112")
CONTENT = "messages.0.content.0"
THINKING = "thinking.enabled.budget_tokens"
IN_IMAGE = f"{CONTENT}.image.source.base64"
EDIT = "context_management.edits.0"
EXPECTED = "found using 'type' does not match any of the expected tags:"
NOT_RUN = "tool_choice: this server does not run 'web_search', which the choice requires"


def said(*content: Any) -> Json:
    """A request of Messages with these blocks of the user."""
    return messages(user(*content))


def loop(*results: Json, calls: tuple[Json, ...] = (USE,), **fields: Any) -> Json:
    """Calls of the assistant, and results."""
    return messages(USER, assistant(*calls), user(*results), **fields)


def edits(*edits: Any) -> Json:
    return messages(context_management={"edits": [*edits]})


def encoded(kind: str, media_type: str, data: Any) -> Json:
    return said(block(kind, source=block("base64", media_type=media_type, data=data)))


def choosing(type: str, *tools: Json, thinking: Any = None, **fields: Any) -> Json:
    """A request with a tool choice."""
    return messages(tools=[*tools], tool_choice=block(type, **fields), thinking=thinking)


PLAN = block("json_schema", schema=SCHEMA)
CACHED = text("x", cache_control=block("ephemeral", ttl="2h"))
REMOVAL = block("tool_removal", tool=block("tool_reference", name="x"))
FILE = block("document", source=block("file", file_id="f"))
NO_TURNS = block("thinking_turns", value=0)
NO_TOKENS = block("input_tokens", value=0)
BELOW_0 = block("input_tokens", value=-3)
REFUSED_BY_MESSAGES: list[tuple[str, Any]] = [
    ("The request body must be a JSON object.", []),
    ("max_tokens: Field required", messages(max_tokens=None)),
    ("messages.1.content: Field required", messages(USER, {"role": "system"})),
    (f"{CONTENT}.tool_result.content.0.text.text: Field", said(tool_result("a", [block("text")]))),
    ("max_tokens: Input should be a valid integer", messages(max_tokens="9")),
    ("messages.0.content: Input should be a valid string or list", messages(user(5))),
    (f"{THINKING}: Input should be greater", messages(thinking=ENABLED | {"budget_tokens": 1023})),
    ("`max_tokens` must be greater than", messages(thinking=ENABLED | {"budget_tokens": 4096})),
    ("temperature: Input should be less than or equal to 2", messages(temperature=2.5)),
    ("stop_sequences: each stop sequence must be non-empty", messages(stop_sequences=[""])),
    ("stop: Extra inputs are not permitted", messages(stop=["a"])),
    ("messages: at least one message is required", messages(messages=[])),
    ("output_config.effort: Input should be 'low', ", messages(output_config={"effort": "huge"})),
    ("output_format: ", messages(output_format=PLAN, output_config={"format": PLAN})),
    (
        "system.0.cache_control.ephemeral.ttl: Input should be '5m' or '1h'",
        messages(system=[CACHED]),
    ),
    (f"cache_control: Input tag 'x' {EXPECTED} 'ephemeral'", messages(cache_control=block("x"))),
    ("mcp_servers: not supported", messages(mcp_servers=[{"url": "u"}])),
    (f"compaction: Input tag 'x' {EXPECTED} 'summarize'", messages(compaction=block("x"))),
    (f"thread: Input tag 'x' {EXPECTED} 'create', 'continue'", messages(thread=block("x"))),
    ("thread.continue.previous_message_id: Field required", messages(thread=block("continue"))),
    (f"system.0: Input tag 'image' {EXPECTED} 'text'", messages(system=[block("image")])),
    (
        f"{CONTENT}.tool: Input tag 'x' {EXPECTED} 'tool_",
        said(block("tool_addition", tool=block("x"))),
    ),
    (f"{CONTENT}: Unable to extract tag using discriminator 'type'", said({"text": "x"})),
    ("messages.1: `tool_result` blocks can only be in", messages(USER, assistant(RESULT))),
    (f"{CONTENT}: `tool_removal` blocks can only be in `system` messages", said(REMOVAL)),
    ("messages: final assistant content cannot end with", messages(USER, assistant("So "))),
    ("messages.1.content.0.type: ", messages(USER, assistant("So"), thinking=ENABLED)),
    ("messages.1.content.1: `tool_use` ids must be unique", loop(RESULT, calls=(USE, USE))),
    ("messages.2.content.0: unexpected `tool_use_id`", loop(tool_result(id="b"))),
    (f"{IN_IMAGE}.media_type: Input should be 'image/jpeg'", encoded("image", "image/bmp", PNG)),
    (f"{IN_IMAGE}: invalid base64 data", encoded("image", "image/png", "iVBORw0KGgo")),
    (f"{CONTENT}.source: file references are not supported by this server", said(FILE)),
    ("tools.0.custom.name: String should match pattern", messages(tools=[tool("two words")])),
    ("tools: Tool names must be unique.", messages(tools=[TOOL, TOOL])),
    ("tools.0: Input tag 'robot_20250101'", messages(tools=[tool(type="robot_20250101")])),
    ("tool_choice: may only be specified while providing tools.", choosing("any")),
    ("tool_choice.tool.name: ", choosing("tool", TOOL, name="b")),
    ("Thinking may not be enabled when tool_choice", choosing("any", TOOL, thinking=ENABLED)),
    (NOT_RUN, choosing("tool", SEARCH, TOOL, name="web_search")),
    (f"{EDIT}.{CLEAR_TOOLS}.keep: ", edits(block(CLEAR_TOOLS, keep=NO_TURNS))),
    (f"{EDIT}.{CLEAR_TOOLS}.trigger.value: ", edits(block(CLEAR_TOOLS, trigger=BELOW_0))),
    (f"{EDIT}.compact_20260112.trigger: ", edits(COMPACT | {"trigger": NO_TOKENS})),
]
"""Beginnings of messages, and bodies."""

MISSING = "missing_required_parameter"
VALUE = "invalid_value"
TYPE = "invalid_type"
UNSUPPORTED = "unsupported_value"
ABOVE = "integer_above_max_value"
BELOW = "integer_below_min_value"
TOO_LONG = "string_above_max_length"
Refusal: TypeAlias = tuple[str, str | None, Json]
"""The field that an API of OpenAI names, the code, and the body."""

CALL = chat_call()
CHAT_TOOL = chat_tool()
NO_IMAGE = {"url": "data:text/plain;base64,aGk="}


def calling(*calls: Json) -> Json:
    return {"role": "assistant", "tool_calls": [*calls]}


def choice(type: str, **fields: Any) -> Json:
    """A request of Chat with a tool and a choice."""
    return chat(tools=[CHAT_TOOL], tool_choice=block(type, **fields))


def part(type: str, **fields: Any) -> Json:
    return chat(user(block(type, **fields)))


def answer_format(**fields: Any) -> Json:
    schema = {"name": "plan", "schema": SCHEMA} | fields
    return chat(response_format=block("json_schema", json_schema=schema))


REFUSED_BY_CHAT: list[Refusal] = [
    ("messages", "empty_array", chat(messages=[])),
    ("messages[0].content", MISSING, chat({"role": "user"})),
    ("messages[0].role", VALUE, chat(message("robot", "a"))),
    ("frequency_penalty", "decimal_above_max_value", chat(frequency_penalty=3)),
    ("stop", VALUE, chat(stop=["a", ""])),
    ("logit_bias.7", TYPE, chat(logit_bias={"7": "x"})),
    ("top_logprobs", VALUE, chat(top_logprobs=2)),
    ("reasoning_effort", VALUE, chat(reasoning_effort="huge")),
    ("guided_regex", UNSUPPORTED, chat(guided_regex="a+")),
    ("chat_template", UNSUPPORTED, chat(chat_template="{{ messages }}")),
    ("tool_choice", None, chat(tool_choice="required")),
    ("tool_choice", VALUE, choice("function", function={"name": "x"})),
    ("tools[0].type", VALUE, chat(tools=[block("web_search")])),
    ("tools[0].function.name", VALUE, chat(tools=[chat_tool("two words")])),
    ("response_format.type", VALUE, chat(response_format=block("yaml"))),
    ("messages[1].tool_calls[1].id", None, chat(USER, calling(CALL, CALL), chat_result())),
    ("messages[1].tool_call_id", MISSING, chat(USER, message("tool", "a"))),
    ("messages[1].role", None, chat(USER, chat_result())),
    ("messages[3].tool_call_id", None, chat(USER, calling(CALL), chat_result(), chat_result())),
    ("messages[0].content[0].image_url.url", VALUE, part("image_url", image_url=NO_IMAGE)),
]

REFUSED_BY_COMPLETIONS: list[Refusal] = [
    ("prompt", "empty_array", completions(prompt=[])),
    ("prompt", TYPE, completions(prompt=[1, [2]])),
    ("prompt[0]", ABOVE, completions(prompt=[2**32])),
    ("prompt", None, completions(prompt=["a"] * 100, n=11)),
    ("echo", UNSUPPORTED, completions(prompt=[1, 2], echo=True)),
    ("logprobs", None, completions(echo=True, logprobs=1)),
    ("best_of", UNSUPPORTED, completions(best_of=2)),
]

FUNCTION = function()
NAMESPACE = block("namespace", name="ns", description="", tools=[function("f")])
CUSTOM_CALL = block("custom_tool_call", call_id="call_1", name="look", input="")
FOREIGN = block("compaction", encrypted_content="a")
WEB_SEARCH = block("web_search")
ALLOWED_SEARCH = block("allowed_tools", mode="required", tools=[WEB_SEARCH])
UNNAMED = block("allowed_tools", mode="auto", tools=[block("namespace")])
NEVER = block("compaction", compact_threshold=0)


def text_format(**fields: Any) -> Json:
    form = {"type": "json_schema", "name": "plan", "schema": SCHEMA} | fields
    return responses(text={"format": form})


def chosen(tool: Json, choice: Any) -> Json:
    """A request of Responses with a tool and a choice."""
    return responses(tools=[tool], tool_choice=choice)


def input_part(type: str, **fields: Any) -> Json:
    return responses(user(block(type, **fields)))


REFUSED_BY_RESPONSES: list[Refusal] = [
    ("input", MISSING, {"model": "m"}),
    ("input[0]", TYPE, responses(5)),
    ("input[0].role", VALUE, responses(message("tool", "a"))),
    ("input[0].content[0].file_id", UNSUPPORTED, input_part("input_image", file_id="f")),
    ("input[0].arguments", TYPE, responses(function_call("c", "n", arguments={}))),
    ("input[1]", VALUE, responses(USER, function_output())),
    ("input[2]", VALUE, responses(USER, CUSTOM_CALL, function_output())),
    ("input[0]", VALUE, responses(block("compaction_trigger"), USER)),
    ("input[0].encrypted_content", "invalid_encrypted_content", responses(FOREIGN, USER)),
    ("max_output_tokens", BELOW, responses(max_output_tokens=0)),
    ("metadata.a", TOO_LONG, responses(metadata={"a": "x" * 513})),
    ("logit_bias", VALUE, responses(logit_bias={"x": 1})),
    ("tool_choice", None, responses(tool_choice="required")),
    ("tool_choice", UNSUPPORTED, chosen(WEB_SEARCH, WEB_SEARCH)),
    ("tool_choice", VALUE, chosen(FUNCTION, block("function", name="x"))),
    ("tool_choice", None, chosen(FUNCTION, ALLOWED_SEARCH)),
    ("tool_choice.tools[0].name", MISSING, chosen(FUNCTION, UNNAMED)),
    ("tools[0].name", VALUE, responses(tools=[function("a.b")])),
    ("tools[1].tools[0].name", VALUE, responses(tools=[NAMESPACE, NAMESPACE])),
    ("context_management[0].compact_threshold", BELOW, responses(context_management=[NEVER])),
    ("text.format.name", VALUE, text_format(name="two words")),
    ("reasoning.effort", VALUE, responses(reasoning={"effort": "huge"})),
]
REFUSED = {
    CHAT: REFUSED_BY_CHAT,
    COMPLETIONS: REFUSED_BY_COMPLETIONS,
    RESPONSES: REFUSED_BY_RESPONSES,
}

RESULT_ALONE = (
    "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
)
WORDS: list[tuple[Api, str, Json]] = [
    (CHAT, "minimum length 1, but got an empty", chat(messages=[])),
    (CHAT, "value <= 2", chat(frequency_penalty=3)),
    (CHAT, "matches the pattern '^[a-zA-Z0-9_-]+$'.", chat(tools=[chat_tool("two words")])),
    (CHAT, RESULT_ALONE, chat(USER, chat_result())),
    (RESPONSES, "expected an object, but got an integer instead.", responses(5)),
    (RESPONSES, "'system', and 'developer'.", responses(message("tool", "a"))),
    (RESPONSES, "asks for 'web_search'", chosen(WEB_SEARCH, WEB_SEARCH)),
]
"""Parts of the messages."""

ACCEPTED: dict[Api, list[Json]] = {
    MESSAGES: [
        messages(new_field=1, service_tier="flex", temperature=1.5, top_k=-1),
        messages(assistant("a"), user(), system=[text("")], stop_sequences=[" "]),
        messages(output_config={"format": block("json_schema", schema=OPEN_SCHEMA)}),
        messages(USER, assistant(block("thinking", thinking="Hm."), USE), USER),
        loop(tool_result(id="a.b:c"), calls=(tool_use("a.b:c", "two words"),)),
        loop(text("a"), RESULT, RESULT),
        messages(tools=[tool("mcp__server__" + "x" * 115, input_schema={}, defer_loading=True)]),
        choosing("any", TOOL, thinking=block("adaptive")),
    ],
    CHAT: [
        chat(new_field=1, seed=2**70, stop=list("abcde"), logit_bias={"5": 101, "foo": 1}),
        chat(temperature=0.5, reasoning_effort="low", max_tokens=0, user=5, metadata={"a": LONG}),
        answer_format(name=None, schema=OPEN_SCHEMA, description="A plan."),
        chat(USER, calling(CALL), {"role": "tool", "tool_call_id": "call_1"}),
    ],
    COMPLETIONS: [completions(new_field=1)],
    RESPONSES: [
        responses(new_field=1, stop=["a"], seed=1, max_output_tokens=15, stream_options={}),
        responses(input=[]),
        responses(USER, function_call(id="x.1"), function_output(), function_output()),
        responses(USER, block("reasoning", encrypted_content="foreign")),
    ],
}
"""Bodies that are accepted, though the vendor refuses them or they are near to what is refused."""

NOTED: list[tuple[Api, str, Json]] = [
    (MESSAGES, "strict", messages(tools=[tool(strict=True)])),
    (MESSAGES, "container.skills", messages(container={"skills": [block("anthropic")]})),
    (CHAT, "store", chat(store=True)),
    (RESPONSES, "robot", responses(tools=[block("robot")])),
]
"""Fields without effect, which a header names."""


async def test_messages_refuses_in_anthropics_words(served: Served, cases: Cases) -> None:
    for beginning, body in REFUSED_BY_MESSAGES:
        with cases.case(beginning, body=body):
            status, kind, found = (await served.post(MESSAGES.path, body)).error
            assert (status, kind) == (400, "invalid_request_error")
            assert found.startswith(beginning)


@pytest.mark.parametrize("api", REFUSED, ids=lambda api: api.name)
async def test_apis_of_openai_refuse_by_field_and_code(
    served: Served, api: Api, cases: Cases
) -> None:
    for field, code, body in REFUSED[api]:
        with cases.case(field, code=code, body=body):
            reply = await served.post(api.path, body)
            error = reply.json["error"]
            assert (reply.status, error["param"], error["code"]) == (400, field, code)


async def test_apis_of_openai_refuse_in_openais_words(served: Served, cases: Cases) -> None:
    for api, words, body in WORDS:
        with cases.case(api.name, words):
            assert words in (await served.post(api.path, body)).error[2]


async def test_requests_near_to_refused_ones_are_accepted(served: Served, cases: Cases) -> None:
    for api in APIS:
        for body in [api.body(), *ACCEPTED[api]]:
            with cases.case(api.name, body=body):
                assert (await served.post(api.path, body)).status == 200


async def test_fields_without_effect_are_named(served: Served, cases: Cases) -> None:
    for api, name, body in NOTED:
        with cases.case(api.name, name=name):
            reply = await served.post(api.path, body)
            assert reply.status == 200
            headers = ("x-turnwire-dropped", "x-turnwire-not-enforced")
            assert name in ",".join(reply.headers.get(header, "") for header in headers)


def test_length_errors_have_the_length() -> None:
    """A name has at most 64 characters."""
    long, empty = (CHAT.refusal(tools=[chat_tool(), chat_tool(name)]) for name in ("x" * 77, ""))
    assert (long.param, long.code) == ("tools[1].function.name", TOO_LONG)
    assert long.message.endswith("but got a string with length 77 instead.")
    assert (empty.param, empty.code) == ("tools[1].function.name", "empty_string")
    assert empty.message.endswith("but got an empty string instead.")
    value = RESPONSES.refusal(reasoning={"max_tokens": -3})
    assert value.message.endswith("but got -3 instead.")
    unread = b'{"metadata": {"a": "' + b"x" * 600 + b'"}, "x": ' + b"[" * 5000
    assert RESPONSES.refused(unread).message.endswith("with maximum length 512.")
