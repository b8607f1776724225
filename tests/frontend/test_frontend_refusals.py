"""Tests what every API refuses, in the vendor's words, and what it accepts though the vendor does
not. A table has one row for each rule."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from aiohttp import ClientSession

from schemas.errors import ErrorInfo
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

Refusal: TypeAlias = tuple[str, str | None, str, Any]
"""The field that an API of OpenAI names, the code, a part of the message, and the body."""

LONG = "x" * 300
OPEN_SCHEMA = {"oneOf": [{"type": "object"}, {"properties": {"ä b": {"minLength": 3}}}]}
PATTERN = "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
AN_IMAGE = (
    "Expected a base64-encoded data URL with an image MIME type "
    "(e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU=')"
)
MISSING = "missing_required_parameter"
VALUE = "invalid_value"
TYPE = "invalid_type"
UNSUPPORTED = "unsupported_value"
ABOVE = "integer_above_max_value"
BELOW = "integer_below_min_value"

TOOL = tool()
USE = tool_use()
RESULT = tool_result()
ENABLED = block("enabled", budget_tokens=1024)
SEARCH = block("web_search_20250305", name="web_search")
CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"
CONTENT = "messages.0.content.0"


def tags(place: str, tag: str, known: str) -> str:
    """The message for an unknown type."""
    names = ", ".join(f"'{name}'" for name in known.split())
    return (
        f"{place}: Input tag '{tag}' found using 'type' does not match any of the expected tags: "
        f"{names}"
    )


def said(*content: Any) -> Json:
    """A request with these blocks of the user."""
    return messages(user(*content))


def loop(*results: Json, calls: tuple[Json, ...] = (USE,), **fields: Any) -> Json:
    """Calls of the assistant, and results."""
    return messages(USER, assistant(*calls), user(*results), **fields)


def edits(*edits: Any) -> Json:
    return messages(context_management={"edits": [*edits]})


def encoded(kind: str, media_type: str, data: Any) -> Json:
    return said(block(kind, source=block("base64", media_type=media_type, data=data)))


def formatted(type: str, **fields: Any) -> Json:
    return messages(output_config={"format": block(type, **fields)})


def choosing(type: str, *tools: Json, thinking: Any = None, **fields: Any) -> Json:
    """A request with a tool choice."""
    return messages(tools=[*tools], tool_choice=block(type, **fields), thinking=thinking)


NOT_RUN = "tool_choice: this server does not run 'web_search', which the choice requires"
OBJECT = "The request body must be a JSON object."
REQUIRED = "Field required"
DICTIONARY = "Input should be a valid dictionary"
TTL = "Input should be '5m' or '1h'"
FORCED = "Thinking may not be enabled when tool_choice forces tool use."
TURNS = "Input should be 'all' or a number of `thinking_turns` from 1"
IMAGE_TYPES = "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
TOOL_NAME = "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
NO_FILES = "file references are not supported by this server; send the content itself"
IN_IMAGE = f"{CONTENT}.image.source.base64"

REFUSED_BY_MESSAGES: list[tuple[str, Any]] = [
    (OBJECT, []),
    (f"max_tokens: {REQUIRED}", messages(max_tokens=None)),
    (f"messages.1.content: {REQUIRED}", messages(USER, {"role": "system"})),
    (
        f"{CONTENT}.tool_result.content.0.text.text: {REQUIRED}",
        said(block("tool_result", tool_use_id="a", content=[block("text")])),
    ),
    (f"{IN_IMAGE}.data: {REQUIRED}", said(block("image", source=block("base64")))),
    (f"thinking.enabled.budget_tokens: {REQUIRED}", messages(thinking=block("enabled"))),
    (f"context_management: {DICTIONARY}", messages(context_management=[])),
    ("max_tokens: Input should be a valid integer", messages(max_tokens="9")),
    ("stream: Input should be a valid boolean", messages(stream="yes")),
    ("messages: Input should be a valid list", messages(messages="x")),
    ("messages.0.content: Input should be a valid string or list", messages(user(5))),
    (
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        messages(thinking=block("enabled", budget_tokens=1023)),
    ),
    (
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
        messages(thinking=block("enabled", budget_tokens=4096)),
    ),
    ("thinking: ...", messages(thinking=block("on"))),
    ("temperature: Input should be less than or equal to 2", messages(temperature=2.5)),
    ("repetition_penalty: Input should be greater than 0", messages(repetition_penalty=0)),
    ("stop_sequences: each stop sequence must be non-empty", messages(stop_sequences=[""])),
    ("stop: Extra inputs are not permitted", messages(stop=["a"])),
    ("messages: at least one message is required", messages(messages=[])),
    (
        "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        messages(output_config={"effort": "huge"}),
    ),
    (
        "output_format: ...",
        formatted("json_schema", schema=SCHEMA)
        | {"output_format": block("json_schema", schema={})},
    ),
    (
        f"system.0.cache_control.ephemeral.ttl: {TTL}",
        messages(system=[text("x", cache_control=block("ephemeral", ttl="2h"))]),
    ),
    (f"cache_control{tags('', 'x', 'ephemeral')}", messages(cache_control=block("x"))),
    (
        "container: not supported by this server",
        messages(container={"id": "c"}, tools=[block("code_execution_20250825", name="c")]),
    ),
    ("compaction: not supported by this server", messages(compaction=block("summarize"))),
    (
        tags(
            f"{CONTENT}.tool",
            "x",
            "tool_reference tool_definition mcp_tool_reference mcp_toolset_reference",
        ),
        said(block("tool_addition", tool=block("x"))),
    ),
    (f"{CONTENT}: Unable to extract tag using discriminator 'type'", said({"text": "x"})),
    (
        "messages.1: `tool_result` blocks can only be in `user` messages",
        messages(USER, assistant(RESULT)),
    ),
    (
        "messages.1.content.0: `tool_result` blocks are not allowed in `system` messages",
        messages(USER, message("system", RESULT)),
    ),
    (
        f"{CONTENT}: `tool_removal` blocks can only be in `system` messages",
        said(block("tool_removal", tool=block("tool_reference", name="x"))),
    ),
    ("messages.0: `tool_use` blocks can only be in `assistant` messages", said(USE)),
    ("messages.1.clear_at: ...", messages(USER, message("system", "a", clear_at="soon"))),
    (
        "messages: final assistant content cannot end with trailing whitespace",
        messages(USER, assistant("So ")),
    ),
    (
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`...",
        messages(USER, assistant("So"), thinking=ENABLED),
    ),
    (
        "messages.1.content.1: `tool_use` ids must be unique",
        loop(RESULT, calls=(USE, USE)),
    ),
    ("messages.2.content.0: unexpected `tool_use_id`...", loop(tool_result(id="b"))),
    (f"{IN_IMAGE}.media_type: {IMAGE_TYPES}", encoded("image", "image/bmp", PNG)),
    (
        f"{CONTENT}.image.transformations.oversized_image: 'error' is not supported...",
        said(
            block(
                "image",
                source=block("url", url="https://a.b/c.png"),
                transformations={"oversized_image": "error"},
            )
        ),
    ),
    (f"{IN_IMAGE}: invalid base64 data", encoded("image", "image/png", "iVBORw0KGgo")),
    (f"{IN_IMAGE}: image cannot be empty", encoded("image", "image/png", "")),
    (
        f"{CONTENT}.source: {NO_FILES}",
        said(block("document", source=block("file", file_id="f"))),
    ),
    (
        f"{CONTENT}.document.source.base64.media_type: Input should be 'application/pdf'",
        encoded("document", "application/msword", PNG),
    ),
    (
        f"{CONTENT}.pdf.source.base64.data: The PDF specified was not valid.",
        encoded("document", "application/pdf", "JVBER"),
    ),
    (
        f"{CONTENT}: container uploads are not supported by this server",
        said(block("container_upload", file_id="f")),
    ),
    (TOOL_NAME, messages(tools=[tool("two words")])),
    ("tools: Tool names must be unique.", messages(tools=[TOOL, TOOL])),
    ("tools.0: Input tag 'robot_20250101'...", messages(tools=[tool(type="robot_20250101")])),
    ("tool_choice: may only be specified while providing tools.", choosing("any")),
    ("tool_choice.tool.name: ...", choosing("tool", TOOL, name="b")),
    (FORCED, choosing("any", TOOL, thinking=ENABLED)),
    (NOT_RUN, choosing("tool", SEARCH, TOOL, name="web_search")),
    (
        f"context_management.edits.0.{CLEAR_THINKING}.keep: {TURNS}",
        edits(block(CLEAR_THINKING, keep=block("thinking_turns", value=0))),
    ),
    (
        f"context_management.edits.0.{CLEAR_TOOLS}.keep: Input should be a number of `tool_uses`",
        edits(block(CLEAR_TOOLS, keep=block("thinking_turns", value=1))),
    ),
    (
        f"context_management.edits.0.{CLEAR_TOOLS}.trigger.value: ...",
        edits(block(CLEAR_TOOLS, trigger=block("input_tokens", value=-3))),
    ),
    (
        f"context_management.edits.0.{COMPACT}.trigger: Input should be a number of `input_tokens` from 1",
        edits(block(COMPACT, trigger=block("input_tokens", value=0))),
    ),
    (
        f"context_management.edits: '{COMPACT}' may be set only once",
        edits(block(COMPACT), block(COMPACT)),
    ),
]
"""Messages, or beginnings and "...", and bodies."""

CALL = chat_call()
CHAT_TOOL = chat_tool()


def calling(*calls: Json) -> Json:
    return {"role": "assistant", "tool_calls": [*calls]}


def named(name: str) -> Json:
    return block("function", function={"name": name})


def part(type: str, **fields: Any) -> Json:
    return chat(user(block(type, **fields)))


def custom(form: Json) -> Json:
    return chat(tools=[block("custom", custom={"name": "patch", "format": form})])


def answer_format(**fields: Any) -> Json:
    schema = {"name": "plan", "schema": SCHEMA} | fields
    return chat(response_format=block("json_schema", json_schema=schema))


RESULT_ALONE = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
    "'tool_calls'."
)
DECIMAL_ABOVE = "decimal_above_max_value"
TOO_LONG = "string_above_max_length"
FUNCTION_NAME = "tools[0].function.name"
URL = "messages[0].content[0].image_url.url"

REFUSED_BY_CHAT: list[Refusal] = [
    ("messages", "empty_array", "minimum length 1, but got an empty", chat(messages=[])),
    ("messages[0].content", MISSING, "", chat({"role": "user"})),
    ("messages[0].role", VALUE, "", chat(message("robot", "a"))),
    ("messages[0].content[0].text", MISSING, "", part("text")),
    ("frequency_penalty", DECIMAL_ABOVE, "value <= 2", chat(frequency_penalty=3)),
    ("stop", VALUE, "", chat(stop=["a", ""])),
    ("logit_bias.7", TYPE, "expected a decimal, but got a string", chat(logit_bias={"7": "x"})),
    ("top_logprobs", VALUE, "", chat(top_logprobs=2)),
    ("modalities[0]", VALUE, "", chat(modalities=["image"])),
    ("modalities", UNSUPPORTED, "", chat(modalities=["text", "audio"])),
    ("reasoning_effort", VALUE, "", chat(reasoning_effort="huge")),
    ("guided_regex", UNSUPPORTED, "", chat(guided_regex="a+")),
    ("structured_outputs.choice", UNSUPPORTED, "", chat(structured_outputs={"choice": ["a"]})),
    ("guided_json", VALUE, "", chat(guided_json="{")),
    ("chat_template", UNSUPPORTED, "", chat(chat_template="{{ messages }}")),
    ("tool_choice", None, "", chat(tool_choice="required")),
    ("tool_choice", VALUE, "", chat(tool_choice=named("x"), tools=[CHAT_TOOL])),
    ("tool_choice.function", MISSING, "", chat(tool_choice=block("function"), tools=[CHAT_TOOL])),
    (
        "tool_choice.allowed_tools.tools[0]",
        VALUE,
        "",
        chat(
            tool_choice=block(
                "allowed_tools", allowed_tools={"mode": "auto", "tools": [named("b")]}
            ),
            tools=[CHAT_TOOL],
        ),
    ),
    ("function_call", VALUE, "", chat(function_call={"name": "x"}, functions=[{"name": "y"}])),
    ("tools[0].type", VALUE, "", chat(tools=[block("web_search")])),
    ("tools[0].type", MISSING, "", chat(tools=[{"function": {"name": "look"}}])),
    (FUNCTION_NAME, VALUE, PATTERN, chat(tools=[chat_tool("two words")])),
    (FUNCTION_NAME, TOO_LONG, "with length 65 instead.", chat(tools=[chat_tool("x" * 65)])),
    ("tools[0].custom.format.grammar", MISSING, "", custom(block("grammar"))),
    ("response_format.type", VALUE, "", chat(response_format=block("yaml"))),
    (
        "response_format.json_schema",
        MISSING,
        "",
        chat(response_format=block("json_schema")),
    ),
    (
        "messages[1].audio",
        UNSUPPORTED,
        "",
        chat(USER, {"role": "assistant", "audio": {"id": "a"}}, USER),
    ),
    ("messages[1].tool_calls[1].id", None, "", chat(USER, calling(CALL, CALL), chat_result())),
    ("messages[1].tool_call_id", MISSING, "", chat(USER, message("tool", "a"))),
    ("messages[1].role", None, RESULT_ALONE, chat(USER, chat_result())),
    (
        "messages[3].tool_call_id",
        None,
        "Duplicate value for 'tool_call_id' of 'call_1', in messages[2] and messages[3].",
        chat(USER, calling(CALL), chat_result(), chat_result()),
    ),
    (
        URL,
        VALUE,
        f"{AN_IMAGE}, but got unsupported MIME type 'text/plain'.",
        part("image_url", image_url={"url": "data:text/plain;base64,aGk="}),
    ),
    ("messages[0].content[0].file", UNSUPPORTED, "", part("file", file={"file_id": "f"})),
    (
        "messages[0].content[0].file.file_data",
        VALUE,
        "but got empty base64-encoded bytes.",
        part("file", file={"file_data": "data:application/pdf;base64,", "filename": "a.pdf"}),
    ),
]

REFUSED_BY_COMPLETIONS: list[Refusal] = [
    ("prompt", "empty_array", "", completions(prompt=[])),
    ("prompt[1]", "empty_array", "", completions(prompt=["a", []])),
    ("prompt", TYPE, "token ids and prompts cannot be mixed.", completions(prompt=[1, [2]])),
    ("prompt[0]", ABOVE, "", completions(prompt=[2**32])),
    ("prompt", None, "1100 of at most 1024", completions(prompt=["a"] * 100, n=11)),
    ("echo", UNSUPPORTED, "", completions(prompt=[1, 2], echo=True)),
    ("logprobs", None, "", completions(echo=True, logprobs=1)),
    ("logprobs", ABOVE, "", completions(logprobs=21)),
    ("best_of", UNSUPPORTED, "", completions(best_of=2)),
]

FUNCTION = function()
NAMESPACE = block("namespace", name="ns", description="", tools=[function("f")])
CUSTOM_CALL = block("custom_tool_call", call_id="call_1", name="look", input="")
KEY = "k" * 65


def text_format(**fields: Any) -> Json:
    form = {"type": "json_schema", "name": "plan", "schema": SCHEMA} | fields
    return responses(text={"format": form})


def grammar(**fields: Any) -> Json:
    return responses(tools=[block("custom", name="p", format=block("grammar", **fields))])


def input_part(type: str, **fields: Any) -> Json:
    return responses(user(block(type, **fields)))


REFUSED_BY_RESPONSES: list[Refusal] = [
    ("input", MISSING, "", {"model": "m"}),
    ("input[0]", TYPE, "expected an object, but got an integer instead.", responses(5)),
    ("input[0].role", VALUE, "'system', and 'developer'.", responses(message("tool", "a"))),
    ("input[0].content[0].text", MISSING, "", input_part("input_text")),
    ("input[0].content[0].file_id", UNSUPPORTED, "", input_part("input_image", file_id="f")),
    (
        "input[0].content[0].image_url",
        VALUE,
        f"{AN_IMAGE}, but got empty base64-encoded bytes.",
        input_part("input_image", image_url="data:image/png;base64,"),
    ),
    (
        "input[0].arguments",
        TYPE,
        "expected a string, but got an object instead.",
        responses(block("function_call", call_id="c", name="n", arguments={})),
    ),
    ("input[1]", VALUE, "", responses(USER, function_output())),
    (
        "input[2]",
        VALUE,
        "No tool call found for function call output with call_id call_1.",
        responses(USER, CUSTOM_CALL, function_output()),
    ),
    ("input[0]", VALUE, "", responses(block("compaction_trigger"), USER)),
    ("input[0].id", MISSING, "", responses(block("item_reference"))),
    (
        "input[0].encrypted_content",
        "invalid_encrypted_content",
        "could not be verified.",
        responses(block("compaction", encrypted_content="a"), USER),
    ),
    ("include[0]", VALUE, "'reasoning.encrypted_content', and", responses(include=["all"])),
    ("max_output_tokens", BELOW, ">= 1, but got 0", responses(max_output_tokens=0)),
    ("metadata.a", TOO_LONG, "length 512, but", responses(metadata={"a": "x" * 513})),
    (f"metadata.{KEY}", TOO_LONG, "length 64, but", responses(metadata={KEY: ""})),
    (
        "metadata",
        "object_above_max_properties",
        "at most 16 properties, but got an object with 17",
        responses(metadata=dict.fromkeys(map(str, range(17)), "")),
    ),
    ("top_logprobs", ABOVE, "", responses(top_logprobs=21)),
    ("tool_choice", None, "'tools' parameter.", responses(tool_choice="required")),
    ("tool_choice", VALUE, "'auto', and", responses(tool_choice="any", tools=[FUNCTION])),
    (
        "tool_choice",
        None,
        "'tools' parameter.",
        responses(
            tools=[FUNCTION],
            tool_choice=block("allowed_tools", mode="required", tools=[block("web_search")]),
        ),
    ),
    *[
        (
            f"tool_choice.{member}",
            MISSING,
            "",
            responses(tools=[FUNCTION], tool_choice=block("allowed_tools", **{other: value})),
        )
        for member, other, value in (("mode", "tools", []), ("tools", "mode", "auto"))
    ],
    (
        "tool_choice",
        VALUE,
        "Tool choice 'x' not found",
        responses(tools=[FUNCTION], tool_choice=block("function", name="x")),
    ),
    (
        "tool_choice",
        UNSUPPORTED,
        "asks for 'web_search'",
        responses(tools=[block("web_search")], tool_choice=block("web_search")),
    ),
    ("tools[0].name", VALUE, PATTERN, responses(tools=[function("a.b")])),
    ("tools[1].tools[0].name", VALUE, "'ns__f'.", responses(tools=[NAMESPACE, NAMESPACE])),
    ("tools[0].format.definition", MISSING, "", grammar(syntax="lark")),
    ("tools[0].format.syntax", VALUE, "", grammar(syntax="bnf", definition="a")),
    (
        "context_management[0].compact_threshold",
        BELOW,
        "",
        responses(context_management=[block("compaction", compact_threshold=0)]),
    ),
    ("text.format.name", VALUE, "", text_format(name="two words")),
    ("text.format.schema", MISSING, "", text_format(schema=None)),
    ("reasoning.effort", VALUE, "'xhigh', and 'max'.", responses(reasoning={"effort": "huge"})),
]
REFUSED = {
    CHAT: REFUSED_BY_CHAT,
    COMPLETIONS: REFUSED_BY_COMPLETIONS,
    RESPONSES: REFUSED_BY_RESPONSES,
}

ACCEPTED: dict[Api, list[Json]] = {
    MESSAGES: [
        messages(new_field=1, service_tier="flex", temperature=1.5, top_k=-1),
        messages(assistant("a"), user(), system=[text("")], stop_sequences=[" "]),
        messages(thinking=ENABLED, temperature=0.5, top_p=0.5),
        formatted("json_schema", schema=OPEN_SCHEMA),
        loop(RESULT, thinking=ENABLED),
        messages(USER, assistant(block("thinking", thinking="Hm."), USE), USER),
        said(text("a", cache_control=block("ephemeral", ttl="1h")), *[text(" ")] * 5),
        said(block("image", source=block("url", url="data:image/png;base64,AA=="))),
        loop(tool_result(id="a.b:c"), calls=(tool_use("a.b:c", "two words"),)),
        loop(text("a"), RESULT, RESULT),
        messages(*loop()["messages"][:2], USER, user(RESULT)),
        loop(tool_result(content=[block("tool_reference", tool_name="gone")]), tools=[TOOL]),
        messages(tools=[tool("mcp__server__" + "x" * 115, input_schema={}, defer_loading=True)]),
        choosing("any", TOOL, thinking=block("adaptive")),
    ],
    CHAT: [
        chat(new_field=1, seed=2**70, stop=list("abcde"), logit_bias={"5": 101, "foo": 1}),
        chat(temperature=0.5, reasoning_effort="low", max_tokens=0, user=5, metadata={"a": LONG}),
        chat(tools=[CHAT_TOOL, CHAT_TOOL]),
        chat(tools=[chat_tool("mcp__server__" + "x" * 51, parameters=OPEN_SCHEMA)]),
        answer_format(name=None, schema=OPEN_SCHEMA, description="A plan."),
        chat(USER | {"name": "a <b>"}, {"role": "assistant", "tool_calls": []}, USER),
        chat(USER, calling(chat_call(LONG)), USER, chat_result(LONG)),
        chat(USER, calling(CALL), {"role": "tool", "tool_call_id": "call_1"}),
        part("image_url", image_url={"url": "data:image/jpg;base64,/9j/"}),
    ],
    COMPLETIONS: [completions(new_field=1)],
    RESPONSES: [
        responses(new_field=1, stop=["a"], seed=1, max_output_tokens=15, stream_options={}),
        responses(input=[]),
        responses(context_management=[block("compaction", compact_threshold=None)]),
        responses(max_tool_calls=0, tools=[block("web_search")]),
        text_format(schema=OPEN_SCHEMA, description="a"),
        responses(USER, function_call(id="x.1"), function_output(), function_output()),
        responses(USER, block("reasoning", encrypted_content="foreign")),
        input_part("output_text", text="a"),
    ],
}
"""Bodies that are accepted, though the vendor refuses them or they are near to what is refused."""

NOTED: list[tuple[Api, str, Json]] = [
    (MESSAGES, "strict", messages(tools=[tool(strict=True)])),
    (CHAT, "moderation", chat(moderation={"model": "m"})),
    (CHAT, "store", chat(store=True)),
    (CHAT, "strict", chat(tools=[chat_tool(strict=True)])),
    (RESPONSES, "moderation", responses(moderation={"model": "m"})),
    (RESPONSES, "multi_agent", responses(multi_agent={"enabled": True})),
    (MESSAGES, "container.skills", messages(container={"skills": [block("anthropic")]})),
    (MESSAGES, "container.id", messages(container={"id": "c"})),
    (RESPONSES, "robot", responses(tools=[block("robot")])),
]
"""Fields without effect, which a header names."""


async def answered(http: ClientSession, api: Api, body: Any) -> tuple[int, Json, str]:
    """Status, error, and what the headers name as left out or not enforced."""
    async with http.post(api.path, data=json.dumps(body).encode()) as reply:
        names = [
            reply.headers.get(f"x-turnwire-{name}", "")
            for name in ("dropped-tools", "not-enforced")
        ]
        return reply.status, (await reply.json()).get("error") or {}, ",".join(names)


async def test_messages_refuses_in_anthropics_words(http: ClientSession, cases: Cases) -> None:
    for wanted, body in REFUSED_BY_MESSAGES:
        with cases.case(wanted, body=body):
            status, error, _ = await answered(http, MESSAGES, body)
            assert (status, error["type"]) == (400, "invalid_request_error")
            if wanted.endswith("..."):
                assert error["message"].startswith(wanted.removesuffix("..."))
            else:
                assert error["message"] == wanted


@pytest.mark.parametrize("api", REFUSED, ids=lambda api: api.name)
async def test_apis_of_openai_refuse_by_field_and_code(
    http: ClientSession, api: Api, cases: Cases
) -> None:
    for field, code, wanted, body in REFUSED[api]:
        with cases.case(field, code=code, body=body):
            status, error, _ = await answered(http, api, body)
            assert (status, error["param"], error["code"]) == (400, field, code)
            assert wanted in error["message"]


async def test_requests_near_to_refused_ones_are_accepted(
    http: ClientSession, cases: Cases
) -> None:
    for api in APIS:
        for body in [api.body(), *ACCEPTED[api]]:
            with cases.case(api.name, body=body):
                assert (await answered(http, api, body))[:2] == (200, {})


async def test_fields_without_effect_are_named(http: ClientSession, cases: Cases) -> None:
    for api, name, body in NOTED:
        with cases.case(api.name, name=name):
            status, _, names = await answered(http, api, body)
            assert status == 200
            assert name in names


LENGTHS: list[tuple[str, Callable[[str], ErrorInfo]]] = [
    ("tools[1].name", lambda name: RESPONSES.refusal(tools=[FUNCTION, function(name)])),
    (
        "input[1].tools[0].tools[0].name",
        lambda name: RESPONSES.refusal(
            USER, block("tool_search_output", tools=[in_namespace(name)])
        ),
    ),
    ("tools[1].function.name", lambda name: CHAT.refusal(tools=[chat_tool(), chat_tool(name)])),
    ("functions[0].name", lambda name: CHAT.refusal(functions=[{"name": name}])),
]
"""Names of at most 64 characters."""


def in_namespace(name: str) -> Json:
    return block("namespace", name="n", tools=[function(name)])


def test_length_errors_have_the_length(cases: Cases) -> None:
    for field, refusal in LENGTHS:
        with cases.case(field):
            long, empty = refusal("x" * 77), refusal("")
            assert (long.param, long.code) == (field, TOO_LONG)
            assert long.message.endswith("but got a string with length 77 instead.")
            assert (empty.param, empty.code) == (field, "empty_string")
            assert empty.message.endswith("but got an empty string instead.")
    value = RESPONSES.refusal(reasoning={"max_tokens": -3})
    assert value.message.endswith("but got -3 instead.")
    unread = b'{"metadata": {"a": "' + b"x" * 600 + b'"}, "x": ' + b"[" * 5000
    assert RESPONSES.refused(unread).message.endswith("with maximum length 512.")
