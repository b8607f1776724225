"""Chat Completions requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor.case import (
    AN_IMAGE,
    LONG,
    OPEN_SCHEMA,
    PATTERN,
    Cases,
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


CASES: Cases = {
    "CompletionCreateParamsStreaming": {
        refused("messages", text="empty array. Expected at least one message."): chat(messages=[]),
        mistyped("messages"): chat(messages=None),
        refused("frequency_penalty", "decimal_above_max_value"): chat(frequency_penalty=3),
        refused("presence_penalty", "decimal_below_min_value"): chat(presence_penalty=-3),
        refused("temperature", "decimal_above_max_value"): chat(temperature=2.5),
        declared("temperature", "sampling fields, `logprobs` and `stop` beside reasoning"): chat(
            temperature=0.5, reasoning_effort="low"
        ),
        mistyped("temperature"): chat(temperature="hot"),
        refused("top_p", "decimal_above_max_value"): chat(top_p=1.5),
        refused("top_p", "decimal_below_min_value"): chat(top_p=-1),
        refused("n", "integer_below_min_value"): chat(n=0),
        refused("n", "integer_above_max_value"): chat(n=129),
        declared("seed", "a `seed` of more than 64 bits"): chat(seed=2**70),
        invalid("stop"): chat(stop=[""]),
        declared("stop", "more than four `stop` strings"): chat(stop=list("abcde")),
        invalid("stop"): chat(stop=["a", ""]),
        declared("logit_bias", "`logit_bias` beyond"): chat(logit_bias={"5": 101}),
        declared("logit_bias", "keys other than token"): chat(logit_bias={"foo": 1}),
        invalid("top_logprobs"): chat(top_logprobs=2),
        refused("top_logprobs", "integer_above_max_value"): chat(logprobs=True, top_logprobs=21),
        refused("max_tokens", "integer_below_min_value"): chat(max_tokens=-1),
        declared("max_tokens", "`max_tokens` or `max_completion_tokens` of 0"): chat(max_tokens=0),
        declared("max_completion_tokens", "`max_tokens` beside `max_completion_tokens`"): chat(
            max_tokens=5, max_completion_tokens=6
        ),
        declared("metadata", "any `metadata`"): chat(metadata={"a": LONG * 2}),
        invalid("modalities", "modalities[0]"): chat(modalities=["image"]),
        unsupported("modalities"): chat(modalities=["text", "audio"]),
        noted("moderation", "moderation"): chat(moderation={"model": "m"}),
        noted("store", "store"): chat(store=True),
        noted("web_search_options", "web_search_options"): chat(web_search_options={}),
        declared("parallel_tool_calls", "`parallel_tool_calls` without tools"): chat(
            parallel_tool_calls=True
        ),
        declared(
            "prompt_cache_key",
            "any length and form of `user`, `safety_identifier`, `prompt_cache_key`",
        ): chat(prompt_cache_key=LONG),
        declared("safety_identifier", "`safety_identifier`"): chat(safety_identifier=LONG),
        declared("user", "any length and form of `user`"): chat(user=5),
        declared("prompt_cache_retention", "`prompt_cache_retention`"): chat(
            prompt_cache_retention="1y"
        ),
        declared("service_tier", "any `service_tier`"): chat(service_tier="gold"),
        invalid("reasoning_effort"): chat(reasoning_effort="huge"),
        invalid("verbosity"): chat(verbosity="huge"),
        declared("stream_options", "`stream_options` without `stream`"): chat(
            stream_options={"include_usage": True}
        ),
        declared("tools", "empty `tools`"): chat(tools=[]),
        declared("tools", "two tools with one name"): chat(tools=[FUNCTION, FUNCTION]),
        refused("tool_choice"): chat(tool_choice="required"),
        invalid("tool_choice"): chat(tool_choice="any", tools=[FUNCTION]),
        declared("tool_choice", "(`auto` or `none`)"): chat(tool_choice="auto"),
        declared("tool_choice", "the turn begins with the call, without a thought"): chat(
            tool_choice="required", tools=[FUNCTION], reasoning_effort="high"
        ),
        invalid("tool_choice"): chat(tool_choice=named("x"), tools=[FUNCTION]),
        refused("function_call"): chat(function_call={"name": "look"}),
        invalid("function_call"): chat(function_call="always", functions=[{"name": "look"}]),
        invalid("function_call"): chat(function_call={"name": "x"}, functions=[{"name": "y"}]),
        invalid("functions", "functions[0].name"): chat(functions=[{"name": "a b"}]),
    },
    "ChatCompletionNamedToolChoiceParam": {
        invalid("function", "tool_choice"): chat(tool_choice=named("b"), tools=[FUNCTION])
    },
    "ChatCompletionAllowedToolsParam": {
        invalid("tools", "tool_choice.allowed_tools.tools[0]"): chat(
            tool_choice=block(
                "allowed_tools", allowed_tools={"mode": "auto", "tools": [named("b")]}
            ),
            tools=[FUNCTION],
        )
    },
    "FunctionDefinition": {
        invalid("name", "tools[0].function.name", text=f"{PATTERN}"): defined(name="two words"),
        refused(
            "name",
            "string_above_max_length",
            at="tools[0].function.name",
            text="Expected a string with maximum length 64, but got a string with length 65 instead.",
        ): defined(name="x" * 65),
        declared("parameters", "`oneOf` at the top"): defined(parameters=OPEN_SCHEMA),
        declared("description", "descriptions of any length"): defined(description=100 * LONG),
        noted("strict", "strict"): defined(strict=True),
    },
    "CustomFormatGrammarGrammar": {
        invalid("definition", "tools[0].custom.format.grammar.definition"): custom(
            block("grammar", grammar={"syntax": "lark", "definition": "x"})
        )
    },
    "JSONSchema": {
        invalid("name", "response_format.json_schema.name"): json_schema(name="two words"),
        refused(
            "name", "string_above_max_length", at="response_format.json_schema.name"
        ): json_schema(name="x" * 65),
        declared("name", "a `json_schema` without `name`"): json_schema(name=None),
        declared("schema", "JSON Schemas of any form"): json_schema(schema=OPEN_SCHEMA),
        declared("description", "`name` and `description` of an"): json_schema(
            description="A plan."
        ),
    },
    "ResponseFormatJSONSchema": {
        invalid("type", "response_format.type"): chat(response_format=block("yaml")),
        missing("json_schema", "response_format.json_schema"): chat(
            response_format=block("json_schema")
        ),
    },
    "ResponseFormatJSONObject": {
        declared("type", 'without the word "json"'): chat(response_format=block("json_object"))
    },
    "ChatCompletionUserMessageParam": {
        missing("content", "messages[0].content"): chat({"role": "user"}),
        invalid("role", "messages[0].role"): chat(message("robot", "a")),
        declared("name", "names of participants with any characters"): chat(
            USER | {"name": "a <b>"}
        ),
    },
    "ChatCompletionSystemMessageParam": {
        declared("content", "images in messages of any role"): chat(
            message("system", block("image_url", image_url={"url": "https://a/b"})), USER
        )
    },
    "ChatCompletionAssistantMessageParam": {
        declared("content", "without content"): chat(USER, {"role": "assistant"}, USER),
        unsupported("audio", "messages[1].audio"): chat(
            USER, {"role": "assistant", "audio": {"id": "audio_1"}}, USER
        ),
        declared("tool_calls", "calls without results"): chat(USER, calls(CALL), USER),
    },
    "ChatCompletionMessageFunctionToolCallParam": {
        refused("id", at="messages[1].tool_calls[1].id"): chat(USER, calls(CALL, CALL), RESULT),
        declared("id", "ids of any form and length"): chat(
            USER, calls(chat_call(id=LONG)), chat_result(id=LONG)
        ),
    },
    "ChatCompletionToolMessageParam": {
        missing("tool_call_id", "messages[1].tool_call_id"): chat(USER, message("tool", "a")),
        refused(
            "tool_call_id",
            at="messages[1].role",
            text="Invalid parameter: messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
        ): chat(USER, RESULT),
        declared("tool_call_id", "results later than after their call"): chat(
            USER, calls(CALL), USER, RESULT
        ),
        declared("content", "a result without content"): chat(
            USER, calls(CALL), {"role": "tool", "tool_call_id": "call_1"}
        ),
    },
    "ChatCompletionFunctionMessageParam": {
        missing("name", "messages[1].name"): chat(USER, message("function", "a"))
    },
    "ImageURL": {
        invalid(
            "url",
            "messages[0].content[0].image_url.url",
            text=f"{AN_IMAGE}, but got unsupported MIME type 'text/plain'.",
        ): image("data:text/plain;base64,aGk=")
    },
    "InputAudio": {
        declared("format", "audio of any format"): user_part(
            "input_audio", input_audio={"data": "", "format": "aac"}
        )
    },
    "FileFile": {
        unsupported("file_id", "messages[0].content[0].file"): user_part(
            "file", file={"file_id": "f"}
        ),
        invalid("file_data", "messages[0].content[0].file.file_data"): user_part(
            "file", file={"file_data": "?"}
        ),
    },
    "ChatCompletionContentPartTextParam": {
        invalid("type", "messages[0].content[0].type"): user_part("poem", poem="a")
    },
    "": {
        declared("", "unknown fields in all APIs"): chat(new_field=1),
        missing("tools[0].function"): chat(tools=[block("function")]),
        missing("tools[0].custom"): chat(tools=[block("custom")]),
        invalid("tools[0].type"): chat(tools=[block("web_search")]),
        missing("tools[0].function.name"): chat(tools=[block("function", function={})]),
        refused("tools[0].function.name", "empty_string"): chat(
            tools=[block("function", function={"name": ""})]
        ),
        missing("tools[0].custom.format.grammar"): custom(block("grammar")),
        missing("tool_choice.function"): chat(tool_choice=block("function"), tools=[FUNCTION]),
        missing("tool_choice.allowed_tools"): chat(
            tool_choice=block("allowed_tools"), tools=[FUNCTION]
        ),
        unsupported("guided_regex"): chat(guided_regex="a+"),
        unsupported("structured_outputs.choice"): chat(structured_outputs={"choice": ["a"]}),
        invalid("guided_json"): chat(guided_json="{"),
        invalid("guided_json"): chat(guided_json=5),
        unsupported("chat_template"): chat(chat_template="{{ messages }}"),
        invalid("reasoning.effort"): chat(reasoning={"effort": "huge"}),
        invalid("thinking.type"): chat(thinking=block("maybe")),
        refused("messages[1].role"): chat(USER, message("tool", "a", tool_call_id="call_9")),
        refused("messages[1].role"): chat(USER, message("function", "a", name="look")),
        missing("messages[1].tool_calls[0].function"): chat(USER, calls(block("function", id="a"))),
        missing("messages[0].content[0].text"): user_part("text"),
        mistyped("messages[0].content"): chat(user(5)),
        invalid(
            "messages[0].content[0].image_url.url",
            text=f"{AN_IMAGE}, but got an invalid base64-encoded value.",
        ): image("data:image/png;base64,???"),
        invalid(
            "messages[0].content[0].file.file_data",
            text="Expected a base64-encoded data URL (e.g. 'data:application/pdf;base64,SGVsbG8sIFdvcmxkIQ=='), but got empty base64-encoded bytes.",
        ): user_part(
            "file", file={"file_data": "data:application/pdf;base64,", "filename": "a.pdf"}
        ),
        mistyped("logit_bias.7", text="expected a decimal, but got a string instead."): chat(
            logit_bias={"5": 1, "7": "x"}
        ),
        refused("system", "unknown_parameter"): chat(system="a"),
        refused("instructions", "unknown_parameter"): chat(instructions="a"),
        refused("max_output_tokens", "unknown_parameter"): chat(max_output_tokens="a"),
        refused("stop_sequences", "unknown_parameter"): chat(stop_sequences="a"),
        accepted(): defined(name="mcp__server__" + "x" * 51),
        accepted(): image("data:image/jpg;base64,/9j/"),
        accepted(): image("https://example.com/a.png"),
        accepted(): chat(
            tools=[],
            functions=[],
            tool_choice="auto",
            parallel_tool_calls=False,
            stream_options={"include_usage": True},
        ),
        accepted(): chat(response_format=block("json_schema", json_schema={"schema": SCHEMA})),
        accepted(): chat(user(), assistant("Hi.", tool_calls=[])),
    },
}
