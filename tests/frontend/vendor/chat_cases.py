"""Chat Completions requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor.case import (
    AN_IMAGE,
    LONG,
    OPEN_SCHEMA,
    PATTERN,
    Case,
    accepted,
    declared,
    invalid,
    missing,
    mistyped,
    noted,
    refused,
    unsupported,
)
from tests.kit.bodies import (
    SCHEMA,
    USER,
    Json,
    assistant,
    block,
    chat,
    chat_call,
    chat_result,
    chat_tool,
    message,
    user,
)

FUNCTION = chat_tool()
CALL = chat_call()
RESULT = chat_result()


def calls(*calls: Json) -> Json:
    return {"role": "assistant", "tool_calls": [*calls]}


def defined(**fields: Any) -> Json:
    return chat(tools=[chat_tool(**fields)])


def custom(form: Json) -> Json:
    return chat(tools=[block("custom", custom={"name": "patch", "format": form})])


def named(name: str) -> Json:
    return block("function", function={"name": name})


def json_schema(**fields: Any) -> Json:
    schema = {"name": "plan", "schema": SCHEMA} | fields
    return chat(response_format=block("json_schema", json_schema=schema))


def user_part(type: str, **fields: Any) -> Json:
    return chat(user(block(type, **fields)))


def image(url: str) -> Json:
    return user_part("image_url", image_url={"url": url})


CASES: dict[str, list[Case]] = {
    "CompletionCreateParamsStreaming": [
        refused("messages", chat(messages=[]), text="empty array. Expected at least one message."),
        mistyped("messages", chat(messages=None)),
        refused("frequency_penalty", chat(frequency_penalty=3), "decimal_above_max_value"),
        refused("presence_penalty", chat(presence_penalty=-3), "decimal_below_min_value"),
        refused("temperature", chat(temperature=2.5), "decimal_above_max_value"),
        declared(
            "temperature",
            chat(temperature=0.5, reasoning_effort="low"),
            "sampling fields, `logprobs` and `stop` beside reasoning",
        ),
        mistyped("temperature", chat(temperature="hot")),
        refused("top_p", chat(top_p=1.5), "decimal_above_max_value"),
        refused("top_p", chat(top_p=-1), "decimal_below_min_value"),
        refused("n", chat(n=0), "integer_below_min_value"),
        refused("n", chat(n=129), "integer_above_max_value"),
        declared("seed", chat(seed=2**70), "a `seed` of more than 64 bits"),
        invalid("stop", chat(stop=[""])),
        declared("stop", chat(stop=list("abcde")), "more than four `stop` strings"),
        invalid("stop", chat(stop=["a", ""])),
        declared("logit_bias", chat(logit_bias={"5": 101}), "`logit_bias` beyond"),
        declared("logit_bias", chat(logit_bias={"foo": 1}), "keys other than token"),
        invalid("top_logprobs", chat(top_logprobs=2)),
        refused("top_logprobs", chat(logprobs=True, top_logprobs=21), "integer_above_max_value"),
        refused("max_tokens", chat(max_tokens=-1), "integer_below_min_value"),
        declared("max_tokens", chat(max_tokens=0), "`max_tokens` or `max_completion_tokens` of 0"),
        declared(
            "max_completion_tokens",
            chat(max_tokens=5, max_completion_tokens=6),
            "`max_tokens` beside `max_completion_tokens`",
        ),
        declared("metadata", chat(metadata={"a": LONG * 2}), "any `metadata`"),
        invalid("modalities", chat(modalities=["image"]), "modalities[0]"),
        unsupported("modalities", chat(modalities=["text", "audio"])),
        noted("moderation", chat(moderation={"model": "m"}), "moderation"),
        noted("store", chat(store=True), "store"),
        noted("web_search_options", chat(web_search_options={}), "web_search_options"),
        declared(
            "parallel_tool_calls",
            chat(parallel_tool_calls=True),
            "`parallel_tool_calls` without tools",
        ),
        declared(
            "prompt_cache_key",
            chat(prompt_cache_key=LONG),
            "any length and form of `user`, `safety_identifier`, `prompt_cache_key`",
        ),
        declared("safety_identifier", chat(safety_identifier=LONG), "`safety_identifier`"),
        declared("user", chat(user=5), "any length and form of `user`"),
        declared(
            "prompt_cache_retention", chat(prompt_cache_retention="1y"), "`prompt_cache_retention`"
        ),
        declared("service_tier", chat(service_tier="gold"), "any `service_tier`"),
        invalid("reasoning_effort", chat(reasoning_effort="huge")),
        invalid("verbosity", chat(verbosity="huge")),
        declared(
            "stream_options",
            chat(stream_options={"include_usage": True}),
            "`stream_options` without `stream`",
        ),
        declared("tools", chat(tools=[]), "empty `tools`"),
        declared("tools", chat(tools=[FUNCTION, FUNCTION]), "two tools with one name"),
        refused("tool_choice", chat(tool_choice="required")),
        invalid("tool_choice", chat(tool_choice="any", tools=[FUNCTION])),
        declared("tool_choice", chat(tool_choice="auto"), "(`auto` or `none`)"),
        declared(
            "tool_choice",
            chat(tool_choice="required", tools=[FUNCTION], reasoning_effort="high"),
            "the turn begins with the call, without a thought",
        ),
        invalid("tool_choice", chat(tool_choice=named("x"), tools=[FUNCTION])),
        refused("function_call", chat(function_call={"name": "look"})),
        invalid("function_call", chat(function_call="always", functions=[{"name": "look"}])),
        invalid("function_call", chat(function_call={"name": "x"}, functions=[{"name": "y"}])),
        invalid("functions", chat(functions=[{"name": "a b"}]), "functions[0].name"),
    ],
    "ChatCompletionNamedToolChoiceParam": [
        invalid("function", chat(tool_choice=named("b"), tools=[FUNCTION]), "tool_choice"),
    ],
    "ChatCompletionAllowedToolsParam": [
        invalid(
            "tools",
            chat(
                tool_choice=block(
                    "allowed_tools", allowed_tools={"mode": "auto", "tools": [named("b")]}
                ),
                tools=[FUNCTION],
            ),
            "tool_choice.allowed_tools.tools[0]",
        ),
    ],
    "FunctionDefinition": [
        invalid("name", defined(name="two words"), "tools[0].function.name", text=f"{PATTERN}"),
        refused(
            "name",
            defined(name="x" * 65),
            "string_above_max_length",
            at="tools[0].function.name",
            text="Expected a string with maximum length 64, but got a string with length 65 instead.",
        ),
        declared("parameters", defined(parameters=OPEN_SCHEMA), "`oneOf` at the top"),
        declared("description", defined(description=100 * LONG), "descriptions of any length"),
        noted("strict", defined(strict=True), "strict"),
    ],
    "CustomFormatGrammarGrammar": [
        invalid(
            "definition",
            custom(block("grammar", grammar={"syntax": "lark", "definition": "x"})),
            "tools[0].custom.format.grammar.definition",
        ),
    ],
    "JSONSchema": [
        invalid("name", json_schema(name="two words"), "response_format.json_schema.name"),
        refused(
            "name",
            json_schema(name="x" * 65),
            "string_above_max_length",
            at="response_format.json_schema.name",
        ),
        declared("name", json_schema(name=None), "a `json_schema` without `name`"),
        declared("schema", json_schema(schema=OPEN_SCHEMA), "JSON Schemas of any form"),
        declared(
            "description", json_schema(description="A plan."), "`name` and `description` of an"
        ),
    ],
    "ResponseFormatJSONSchema": [
        invalid("type", chat(response_format=block("yaml")), "response_format.type"),
        missing(
            "json_schema", chat(response_format=block("json_schema")), "response_format.json_schema"
        ),
    ],
    "ResponseFormatJSONObject": [
        declared("type", chat(response_format=block("json_object")), 'without the word "json"'),
    ],
    "ChatCompletionUserMessageParam": [
        missing("content", chat({"role": "user"}), "messages[0].content"),
        invalid("role", chat(message("robot", "a")), "messages[0].role"),
        declared(
            "name", chat(USER | {"name": "a <b>"}), "names of participants with any characters"
        ),
    ],
    "ChatCompletionSystemMessageParam": [
        declared(
            "content",
            chat(message("system", block("image_url", image_url={"url": "https://a/b"})), USER),
            "images in messages of any role",
        ),
    ],
    "ChatCompletionAssistantMessageParam": [
        declared("content", chat(USER, {"role": "assistant"}, USER), "without content"),
        unsupported(
            "audio",
            chat(USER, {"role": "assistant", "audio": {"id": "audio_1"}}, USER),
            "messages[1].audio",
        ),
        declared("tool_calls", chat(USER, calls(CALL), USER), "calls without results"),
    ],
    "ChatCompletionMessageFunctionToolCallParam": [
        refused("id", chat(USER, calls(CALL, CALL), RESULT), at="messages[1].tool_calls[1].id"),
        declared(
            "id",
            chat(USER, calls(chat_call(id=LONG)), chat_result(id=LONG)),
            "ids of any form and length",
        ),
    ],
    "ChatCompletionToolMessageParam": [
        missing("tool_call_id", chat(USER, message("tool", "a")), "messages[1].tool_call_id"),
        refused(
            "tool_call_id",
            chat(USER, RESULT),
            at="messages[1].role",
            text="Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
        ),
        declared(
            "tool_call_id",
            chat(USER, calls(CALL), USER, RESULT),
            "results later than after their call",
        ),
        declared(
            "content",
            chat(USER, calls(CALL), {"role": "tool", "tool_call_id": "call_1"}),
            "a result without content",
        ),
    ],
    "ChatCompletionFunctionMessageParam": [
        missing("name", chat(USER, message("function", "a")), "messages[1].name"),
    ],
    "ImageURL": [
        invalid(
            "url",
            image("data:text/plain;base64,aGk="),
            "messages[0].content[0].image_url.url",
            text=f"{AN_IMAGE}, but got unsupported MIME type 'text/plain'.",
        ),
    ],
    "InputAudio": [
        declared(
            "format",
            user_part("input_audio", input_audio={"data": "", "format": "aac"}),
            "audio of any format",
        ),
    ],
    "FileFile": [
        unsupported(
            "file_id", user_part("file", file={"file_id": "f"}), "messages[0].content[0].file"
        ),
        invalid(
            "file_data",
            user_part("file", file={"file_data": "?"}),
            "messages[0].content[0].file.file_data",
        ),
    ],
    "ChatCompletionContentPartTextParam": [
        invalid("type", user_part("poem", poem="a"), "messages[0].content[0].type"),
    ],
    "": [
        declared("", chat(new_field=1), "unknown fields in all APIs"),
        missing("tools[0].function", chat(tools=[block("function")])),
        missing("tools[0].custom", chat(tools=[block("custom")])),
        invalid("tools[0].type", chat(tools=[block("web_search")])),
        missing("tools[0].function.name", chat(tools=[block("function", function={})])),
        refused(
            "tools[0].function.name",
            chat(tools=[block("function", function={"name": ""})]),
            "empty_string",
        ),
        missing("tools[0].custom.format.grammar", custom(block("grammar"))),
        missing("tool_choice.function", chat(tool_choice=block("function"), tools=[FUNCTION])),
        missing(
            "tool_choice.allowed_tools", chat(tool_choice=block("allowed_tools"), tools=[FUNCTION])
        ),
        unsupported("guided_regex", chat(guided_regex="a+")),
        unsupported("structured_outputs.choice", chat(structured_outputs={"choice": ["a"]})),
        invalid("guided_json", chat(guided_json="{")),
        invalid("guided_json", chat(guided_json=5)),
        unsupported("chat_template", chat(chat_template="{{ messages }}")),
        invalid("reasoning.effort", chat(reasoning={"effort": "huge"})),
        invalid("thinking.type", chat(thinking=block("maybe"))),
        refused("messages[1].role", chat(USER, message("tool", "a", tool_call_id="call_9"))),
        refused("messages[1].role", chat(USER, message("function", "a", name="look"))),
        missing("messages[1].tool_calls[0].function", chat(USER, calls(block("function", id="a")))),
        missing("messages[0].content[0].text", user_part("text")),
        mistyped("messages[0].content", chat(user(5))),
        invalid(
            "messages[0].content[0].image_url.url",
            image("data:image/png;base64,???"),
            text=f"{AN_IMAGE}, but got an invalid base64-encoded value.",
        ),
        invalid(
            "messages[0].content[0].file.file_data",
            user_part(
                "file", file={"file_data": "data:application/pdf;base64,", "filename": "a.pdf"}
            ),
            text="Expected a base64-encoded data URL (e.g. 'data:application/pdf;base64,SGVsbG8sIFdvcmxkIQ=='), but got empty base64-encoded bytes.",
        ),
        mistyped(
            "logit_bias.7",
            chat(logit_bias={"5": 1, "7": "x"}),
            text="expected a decimal, but got a string instead.",
        ),
        refused("system", chat(system="a"), "unknown_parameter"),
        refused("instructions", chat(instructions="a"), "unknown_parameter"),
        refused("max_output_tokens", chat(max_output_tokens="a"), "unknown_parameter"),
        refused("stop_sequences", chat(stop_sequences="a"), "unknown_parameter"),
        accepted(defined(name="mcp__server__" + "x" * 51)),
        accepted(image("data:image/jpg;base64,/9j/")),
        accepted(image("https://example.com/a.png")),
        accepted(
            chat(
                tools=[],
                functions=[],
                tool_choice="auto",
                parallel_tool_calls=False,
                stream_options={"include_usage": True},
            )
        ),
        accepted(chat(response_format=block("json_schema", json_schema={"schema": SCHEMA}))),
        accepted(chat(user(), assistant("Hi.", tool_calls=[]))),
    ],
}
