"""Responses requests with one remarkable value each, and what becomes of them."""

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
    function,
    function_call,
    function_output,
    message,
    responses,
    user,
)

FUNCTION = function()
CALL = function_call()
OUTPUT = function_output()
NAMESPACE = block("namespace", name="ns", description="", tools=[function("f")])
KEY = "k" * 65
INCLUDABLE = (
    "'file_search_call.results', 'web_search_call.results', 'web_search_call.action.sources', "
    "'message.input_image.image_url', 'computer_call_output.output.image_url', "
    "'code_interpreter_call.outputs', 'reasoning.encrypted_content', and "
    "'message.output_text.logprobs'"
)


def text_format(**fields: Any) -> Json:
    form = {"type": "json_schema", "name": "plan", "schema": SCHEMA} | fields
    return responses(text={"format": form})


def managed(**fields: Any) -> Json:
    form = {"type": "compaction", "compact_threshold": 100_000} | fields
    return responses(context_management=[form])


def defined(**fields: Any) -> Json:
    return responses(tools=[function(**fields)])


def grammar(**fields: Any) -> Json:
    return responses(tools=[block("custom", name="p", format=block("grammar", **fields))])


def user_part(type: str, **fields: Any) -> Json:
    return responses(user(block(type, **fields)))


CASES: Cases = {
    "ResponseCreateParamsStreaming": {
        missing("input"): {"model": "m"},
        declared("input", "an empty `input`"): responses(input=[]),
        missing("input"): responses(input=None),
        unsupported(
            "conversation",
            text="'conversation' names a stored conversation, which this server does not keep; send its items.",
        ): responses(conversation="c"),
        unsupported(
            "conversation",
            text="'conversation' names a stored conversation, which this server does not keep; send its items.",
        ): responses(conversation={"id": "c"}),
        unsupported(
            "prompt",
            text="'prompt' names a stored prompt, which this server does not have; send its text.",
        ): responses(prompt={"id": "p"}),
        invalid("background", text="Background responses need 'store' to be true."): responses(
            background=True, store=False
        ),
        invalid("include", "include[0]"): responses(include=["all"]),
        refused(
            "max_output_tokens",
            "integer_below_min_value",
            text="Expected a value >= 1, but got 0 instead.",
        ): responses(max_output_tokens=0),
        declared("max_output_tokens", "`max_output_tokens` below 16"): responses(
            max_output_tokens=15
        ),
        refused(
            "max_tool_calls",
            "integer_below_min_value",
            text="Expected a value >= 1, but got 0 instead.",
        ): responses(max_tool_calls=0),
        refused("metadata", "string_above_max_length", at="metadata.a"): responses(
            metadata={"a": "x" * 513}
        ),
        refused("metadata", "string_above_max_length", at=f"metadata.{KEY}"): responses(
            metadata={KEY: ""}
        ),
        refused(
            "metadata",
            "object_above_max_properties",
            text="too many properties. Expected an object with at most 16 properties, but got an object with 17 properties instead.",
        ): responses(metadata=dict.fromkeys(map(str, range(17)), "")),
        noted("moderation", "moderation"): responses(moderation={"model": "m"}),
        refused(
            "previous_response_id",
            "previous_response_not_found",
            text="Previous response with id 'resp_gone' not found.",
        ): responses(previous_response_id="resp_gone"),
        declared("prompt_cache_key", "`prompt_cache_key`"): responses(prompt_cache_key=LONG),
        declared("prompt_cache_retention", "`prompt_cache_retention`"): responses(
            prompt_cache_retention="1y"
        ),
        declared("safety_identifier", "`safety_identifier`"): responses(safety_identifier=LONG),
        declared("user", "any length and form of `user`"): responses(user=LONG),
        declared("service_tier", "any `service_tier`"): responses(service_tier="gold"),
        declared(
            "stream_options", "Chat and Responses: `stream_options` without `stream`"
        ): responses(stream_options={}),
        refused("temperature", "decimal_below_min_value"): responses(temperature=-1),
        declared("temperature", "beside reasoning"): responses(
            temperature=0.5, reasoning={"effort": "high"}
        ),
        mistyped("temperature", text="expected a decimal, but got a string instead."): responses(
            temperature="x"
        ),
        refused(
            "temperature",
            "decimal_above_max_value",
            text="Expected a value <= 2, but got 3 instead.",
        ): responses(temperature=3),
        refused(
            "top_logprobs",
            "integer_above_max_value",
            text="Expected a value <= 20, but got 21 instead.",
        ): responses(top_logprobs=21),
        refused("top_p", "decimal_above_max_value"): responses(top_p=2),
        invalid(
            "truncation", text="Invalid value: 'some'. Supported values are: 'auto' and 'disabled'."
        ): responses(truncation="some"),
        refused(
            "tool_choice", text="Tool choice 'required' must be specified with 'tools' parameter."
        ): responses(tool_choice="required"),
        invalid(
            "tool_choice",
            text="Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
        ): responses(tool_choice="any", tools=[FUNCTION]),
        unsupported(
            "tool_choice",
            text="'tool_choice' asks for one of web_search, which this server does not run.",
        ): responses(tools=[block("web_search")], tool_choice="required"),
        unsupported(
            "tool_choice",
            text="'tool_choice' asks for 'web_search', which this server does not run.",
        ): responses(tools=[block("web_search")], tool_choice=block("web_search")),
        invalid("tools", "tools[1].name", text="Tool names must be unique: 'look'."): responses(
            tools=[FUNCTION, FUNCTION]
        ),
        noted("tools", "robot"): responses(tools=[block("robot")]),
    },
    "ContextManagement": {
        invalid("type", "context_management[0].type"): managed(type="clear"),
        refused(
            "compact_threshold",
            "integer_below_min_value",
            at="context_management[0].compact_threshold",
        ): managed(compact_threshold=0),
        declared("compact_threshold", "without one nothing is compacted"): managed(
            compact_threshold=None
        ),
        declared("compact_threshold", "any `compact_threshold`"): managed(compact_threshold=5000),
    },
    "ResponseFormatTextJSONSchemaConfigParam": {
        invalid("name", "text.format.name"): text_format(name="two words"),
        refused("name", "string_above_max_length", at="text.format.name"): text_format(name=KEY),
        missing("name", "text.format.name"): text_format(name=None),
        missing("schema", "text.format.schema"): text_format(schema=None),
        declared("schema", "JSON Schemas of any form"): text_format(schema=OPEN_SCHEMA),
        declared("description", "`description` of an output"): text_format(description="a"),
    },
    "ResponseFormatJSONObject": {
        declared("type", 'without the word "json"'): responses(
            text={"format": block("json_object")}
        ),
        invalid(
            "type",
            "text.format.type",
            text="Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
        ): responses(text={"format": block("xml")}),
    },
    "ResponseTextConfigParam": {
        invalid("verbosity", "text.verbosity"): responses(text={"verbosity": "huge"})
    },
    "Reasoning": {
        invalid(
            "effort",
            "reasoning.effort",
            text="Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.",
        ): responses(reasoning={"effort": "huge"}),
        invalid("summary", "reasoning.summary"): responses(reasoning={"summary": "long"}),
        invalid("context", "reasoning.context"): responses(reasoning={"context": "some"}),
        declared("mode", "`reasoning.mode`"): responses(reasoning={"mode": "pro"}),
    },
    "FunctionToolParam": {
        invalid("name", "tools[0].name", text=f"{PATTERN}"): defined(name="a.b"),
        refused("name", "string_above_max_length", at="tools[0].name"): defined(name=KEY),
        declared("parameters", "`oneOf` at the top"): defined(parameters=OPEN_SCHEMA),
        declared("parameters", "a function without `parameters`"): responses(
            tools=[block("function", name="look")]
        ),
        noted("strict", "strict"): defined(strict=True),
        declared("strict", "a function without `strict`"): defined(strict=None),
    },
    "CustomToolParam": {missing("name", "tools[0].name"): responses(tools=[block("custom")])},
    "Grammar": {
        missing("definition", "tools[0].format.definition"): grammar(syntax="lark"),
        invalid(
            "syntax",
            "tools[0].format.syntax",
            text="Invalid value: 'bnf'. Supported values are: 'lark' and 'regex'.",
        ): grammar(syntax="bnf", definition="a"),
    },
    "ToolChoiceFunctionParam": {
        invalid(
            "name", "tool_choice", text="Tool choice 'x' not found in 'tools' parameter."
        ): responses(tools=[FUNCTION], tool_choice=block("function", name="x"))
    },
    "ToolChoiceTypesParam": {
        unsupported("type", "tool_choice"): responses(
            tools=[block("file_search", vector_store_ids=[])], tool_choice=block("file_search")
        )
    },
    "ResponseFunctionToolCallParam": {
        mistyped("call_id", "input[0].call_id"): responses(function_call(None)),
        declared("call_id", "calls without outputs"): responses(USER, CALL),
        declared("id", "ids of any form"): responses(USER, CALL | {"id": "x.1"}, OUTPUT),
    },
    "FunctionCallOutput": {
        invalid("call_id", "input[1]"): responses(USER, OUTPUT),
        declared("call_id", "several outputs of a call"): responses(USER, CALL, OUTPUT, OUTPUT),
    },
    "ResponseReasoningItemParam": {
        declared("encrypted_content", "reasoning without the item that followed it"): responses(
            USER, block("reasoning", summary=[], encrypted_content="foreign")
        ),
        declared("summary", "items without members that decide nothing here"): responses(
            USER, block("reasoning", encrypted_content="a"), USER
        ),
    },
    "ResponseOutputMessageParam": {
        declared("id", "items with one id"): responses(
            *[assistant("a", type="message", id="msg_1")] * 2, USER
        )
    },
    "EasyInputMessageParam": {
        declared("content", "content types of another role"): user_part("output_text", text="a"),
        invalid("content", "input[0].content[0].type"): user_part("poem"),
        unsupported("content", "input[0].content[0].file_id"): user_part(
            "input_image", file_id="f"
        ),
        invalid(
            "content",
            "input[0].content[0].image_url",
            text=f"{AN_IMAGE}, but got empty base64-encoded bytes.",
        ): user_part("input_image", image_url="data:image/png;base64,"),
        unsupported("content", "input[0].content[0].file_id"): user_part("input_file", file_id="f"),
        invalid(
            "role",
            "input[0].role",
            text="Invalid value: 'tool'. Supported values are: 'user', 'assistant', 'system', and 'developer'.",
        ): responses(message("tool", "a")),
    },
    "ResponseCompactionItemParamParam": {
        refused(
            "encrypted_content",
            "invalid_encrypted_content",
            at="input[0].encrypted_content",
            text="The encrypted content of this compaction item could not be verified.",
        ): responses(block("compaction", encrypted_content="a"), USER)
    },
    "CompactionTrigger": {
        invalid("type", "input[0]"): responses(block("compaction_trigger"), USER)
    },
    "ItemReference": {missing("id", "input[0].id"): responses(block("item_reference"))},
    "": {
        declared("", "sampling fields of Chat"): responses(stop=["a"], seed=1),
        declared("", "unknown fields in all APIs"): responses(new_field=1),
        refused(
            "reasoning.max_tokens",
            "integer_above_max_value",
            text="Expected a value <= 9223372036854775807.",
        ): responses(reasoning={"max_tokens": 2**63}),
        missing("tools[0].name"): responses(tools=[block("function")]),
        missing("tools[0].type"): responses(tools=[{"name": "f"}]),
        invalid("tools[1].tools[0].name", text="Tool names must be unique: 'ns__f'."): responses(
            tools=[NAMESPACE, NAMESPACE]
        ),
        invalid(
            "logit_bias", text="Invalid key in 'logit_bias': keys must be token ids."
        ): responses(logit_bias={"x": 1}),
        mistyped("input[0]", text="expected an object, but got an integer instead."): responses(5),
        missing("input[0].name"): responses(block("function_call", call_id="c")),
        mistyped(
            "input[0].arguments", text="expected a string, but got an object instead."
        ): responses(block("function_call", call_id="c", name="n", arguments={})),
        missing("input[0].content"): responses({"role": "user"}),
        missing("input[0].content[0].text"): user_part("input_text"),
        invalid(
            "include[1]", text=f"Invalid value: 'everything'. Supported values are: {INCLUDABLE}."
        ): responses(include=["reasoning.encrypted_content", "everything"]),
        refused(
            "metadata.actual",
            "string_above_max_length",
            text="Expected a string with maximum length 512, but got a string with length 513 instead.",
        ): responses(metadata={"topic": "weather", "actual": "x" * 513}),
        refused(
            f"metadata.{KEY}",
            "string_above_max_length",
            text="Expected a string with maximum length 64, but got a string with length 65 instead.",
        ): responses(metadata={"topic": "weather", KEY: ""}),
        mistyped("metadata.a.b", text="expected a string, but got an integer instead."): responses(
            metadata={"topic": "weather", "a.b": 5}
        ),
        refused(
            "presence_penalty",
            "decimal_below_min_value",
            text="Expected a value >= -2, but got -3 instead.",
        ): responses(presence_penalty=-3),
        refused("messages", "unsupported_parameter"): responses(messages=[USER]),
        refused("max_tokens", "unsupported_parameter"): responses(max_tokens=5),
        refused("max_completion_tokens", "unsupported_parameter"): responses(
            max_completion_tokens=5
        ),
        refused("response_format", "unsupported_parameter"): responses(
            response_format=block("text")
        ),
        refused("reasoning_effort", "unsupported_parameter"): responses(reasoning_effort="low"),
        accepted(): defined(name="x" * 64),
        accepted(): responses(include=["web_search_call.action.sources"]),
    },
}
