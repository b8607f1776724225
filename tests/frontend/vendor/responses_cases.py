"""Responses requests with one remarkable value each, and what becomes of them."""

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


CASES: dict[str, list[Case]] = {
    "ResponseCreateParamsStreaming": [
        missing("input", {"model": "m"}),
        declared("input", responses(input=[]), "an empty `input`"),
        missing("input", responses(input=None)),
        unsupported(
            "conversation",
            responses(conversation="c"),
            text="'conversation' names a stored conversation, which this server does not keep; send its items.",
        ),
        unsupported(
            "conversation",
            responses(conversation={"id": "c"}),
            text="'conversation' names a stored conversation, which this server does not keep; send its items.",
        ),
        unsupported(
            "prompt",
            responses(prompt={"id": "p"}),
            text="'prompt' names a stored prompt, which this server does not have; send its text.",
        ),
        invalid(
            "background",
            responses(background=True, store=False),
            text="Background responses need 'store' to be true.",
        ),
        invalid("include", responses(include=["all"]), "include[0]"),
        refused(
            "max_output_tokens",
            responses(max_output_tokens=0),
            "integer_below_min_value",
            text="Expected a value >= 1, but got 0 instead.",
        ),
        declared(
            "max_output_tokens", responses(max_output_tokens=15), "`max_output_tokens` below 16"
        ),
        refused(
            "max_tool_calls",
            responses(max_tool_calls=0),
            "integer_below_min_value",
            text="Expected a value >= 1, but got 0 instead.",
        ),
        refused(
            "metadata",
            responses(metadata={"a": "x" * 513}),
            "string_above_max_length",
            at="metadata.a",
        ),
        refused(
            "metadata",
            responses(metadata={KEY: ""}),
            "string_above_max_length",
            at=f"metadata.{KEY}",
        ),
        refused(
            "metadata",
            responses(metadata=dict.fromkeys(map(str, range(17)), "")),
            "object_above_max_properties",
            text="too many properties. Expected an object with at most 16 properties, but got an object with 17 properties instead.",
        ),
        noted("moderation", responses(moderation={"model": "m"}), "moderation"),
        refused(
            "previous_response_id",
            responses(previous_response_id="resp_gone"),
            "previous_response_not_found",
            text="Previous response with id 'resp_gone' not found.",
        ),
        declared("prompt_cache_key", responses(prompt_cache_key=LONG), "`prompt_cache_key`"),
        declared(
            "prompt_cache_retention",
            responses(prompt_cache_retention="1y"),
            "`prompt_cache_retention`",
        ),
        declared("safety_identifier", responses(safety_identifier=LONG), "`safety_identifier`"),
        declared("user", responses(user=LONG), "any length and form of `user`"),
        declared("service_tier", responses(service_tier="gold"), "any `service_tier`"),
        declared(
            "stream_options",
            responses(stream_options={}),
            "Chat and Responses: `stream_options` without `stream`",
        ),
        refused("temperature", responses(temperature=-1), "decimal_below_min_value"),
        declared(
            "temperature",
            responses(temperature=0.5, reasoning={"effort": "high"}),
            "beside reasoning",
        ),
        mistyped(
            "temperature",
            responses(temperature="x"),
            text="expected a decimal, but got a string instead.",
        ),
        refused(
            "temperature",
            responses(temperature=3),
            "decimal_above_max_value",
            text="Expected a value <= 2, but got 3 instead.",
        ),
        refused(
            "top_logprobs",
            responses(top_logprobs=21),
            "integer_above_max_value",
            text="Expected a value <= 20, but got 21 instead.",
        ),
        refused("top_p", responses(top_p=2), "decimal_above_max_value"),
        invalid(
            "truncation",
            responses(truncation="some"),
            text="Invalid value: 'some'. Supported values are: 'auto' and 'disabled'.",
        ),
        refused(
            "tool_choice",
            responses(tool_choice="required"),
            text="Tool choice 'required' must be specified with 'tools' parameter.",
        ),
        invalid(
            "tool_choice",
            responses(tool_choice="any", tools=[FUNCTION]),
            text="Invalid value: 'any'. Supported values are: 'none', 'auto', and 'required'.",
        ),
        unsupported(
            "tool_choice",
            responses(tools=[block("web_search")], tool_choice="required"),
            text="'tool_choice' asks for one of web_search, which this server does not run.",
        ),
        unsupported(
            "tool_choice",
            responses(tools=[block("web_search")], tool_choice=block("web_search")),
            text="'tool_choice' asks for 'web_search', which this server does not run.",
        ),
        invalid(
            "tools",
            responses(tools=[FUNCTION, FUNCTION]),
            "tools[1].name",
            text="Tool names must be unique: 'look'.",
        ),
        noted("tools", responses(tools=[block("robot")]), "robot"),
    ],
    "ContextManagement": [
        invalid("type", managed(type="clear"), "context_management[0].type"),
        refused(
            "compact_threshold",
            managed(compact_threshold=0),
            "integer_below_min_value",
            at="context_management[0].compact_threshold",
        ),
        declared(
            "compact_threshold", managed(compact_threshold=None), "without one nothing is compacted"
        ),
        declared("compact_threshold", managed(compact_threshold=5000), "any `compact_threshold`"),
    ],
    "ResponseFormatTextJSONSchemaConfigParam": [
        invalid("name", text_format(name="two words"), "text.format.name"),
        refused("name", text_format(name=KEY), "string_above_max_length", at="text.format.name"),
        missing("name", text_format(name=None), "text.format.name"),
        missing("schema", text_format(schema=None), "text.format.schema"),
        declared("schema", text_format(schema=OPEN_SCHEMA), "JSON Schemas of any form"),
        declared("description", text_format(description="a"), "`description` of an output"),
    ],
    "ResponseFormatJSONObject": [
        declared(
            "type", responses(text={"format": block("json_object")}), 'without the word "json"'
        ),
        invalid(
            "type",
            responses(text={"format": block("xml")}),
            "text.format.type",
            text="Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
        ),
    ],
    "ResponseTextConfigParam": [
        invalid("verbosity", responses(text={"verbosity": "huge"}), "text.verbosity"),
    ],
    "Reasoning": [
        invalid(
            "effort",
            responses(reasoning={"effort": "huge"}),
            "reasoning.effort",
            text="Invalid value: 'huge'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.",
        ),
        invalid("summary", responses(reasoning={"summary": "long"}), "reasoning.summary"),
        invalid("context", responses(reasoning={"context": "some"}), "reasoning.context"),
        declared("mode", responses(reasoning={"mode": "pro"}), "`reasoning.mode`"),
    ],
    "FunctionToolParam": [
        invalid("name", defined(name="a.b"), "tools[0].name", text=f"{PATTERN}"),
        refused("name", defined(name=KEY), "string_above_max_length", at="tools[0].name"),
        declared("parameters", defined(parameters=OPEN_SCHEMA), "`oneOf` at the top"),
        declared(
            "parameters",
            responses(tools=[block("function", name="look")]),
            "a function without `parameters`",
        ),
        noted("strict", defined(strict=True), "strict"),
        declared("strict", defined(strict=None), "a function without `strict`"),
    ],
    "CustomToolParam": [
        missing("name", responses(tools=[block("custom")]), "tools[0].name"),
    ],
    "Grammar": [
        missing("definition", grammar(syntax="lark"), "tools[0].format.definition"),
        invalid(
            "syntax",
            grammar(syntax="bnf", definition="a"),
            "tools[0].format.syntax",
            text="Invalid value: 'bnf'. Supported values are: 'lark' and 'regex'.",
        ),
    ],
    "ToolChoiceFunctionParam": [
        invalid(
            "name",
            responses(tools=[FUNCTION], tool_choice=block("function", name="x")),
            "tool_choice",
            text="Tool choice 'x' not found in 'tools' parameter.",
        ),
    ],
    "ToolChoiceTypesParam": [
        unsupported(
            "type",
            responses(
                tools=[block("file_search", vector_store_ids=[])], tool_choice=block("file_search")
            ),
            "tool_choice",
        ),
    ],
    "ResponseFunctionToolCallParam": [
        mistyped("call_id", responses(function_call(None)), "input[0].call_id"),
        declared("call_id", responses(USER, CALL), "calls without outputs"),
        declared("id", responses(USER, CALL | {"id": "x.1"}, OUTPUT), "ids of any form"),
    ],
    "FunctionCallOutput": [
        invalid("call_id", responses(USER, OUTPUT), "input[1]"),
        declared("call_id", responses(USER, CALL, OUTPUT, OUTPUT), "several outputs of a call"),
    ],
    "ResponseReasoningItemParam": [
        declared(
            "encrypted_content",
            responses(USER, block("reasoning", summary=[], encrypted_content="foreign")),
            "reasoning without the item that followed it",
        ),
        declared(
            "summary",
            responses(USER, block("reasoning", encrypted_content="a"), USER),
            "items without members that decide nothing here",
        ),
    ],
    "ResponseOutputMessageParam": [
        declared(
            "id",
            responses(*[assistant("a", type="message", id="msg_1")] * 2, USER),
            "items with one id",
        ),
    ],
    "EasyInputMessageParam": [
        declared("content", user_part("output_text", text="a"), "content types of another role"),
        invalid("content", user_part("poem"), "input[0].content[0].type"),
        unsupported(
            "content", user_part("input_image", file_id="f"), "input[0].content[0].file_id"
        ),
        invalid(
            "content",
            user_part("input_image", image_url="data:image/png;base64,"),
            "input[0].content[0].image_url",
            text=f"{AN_IMAGE}, but got empty base64-encoded bytes.",
        ),
        unsupported("content", user_part("input_file", file_id="f"), "input[0].content[0].file_id"),
        invalid(
            "role",
            responses(message("tool", "a")),
            "input[0].role",
            text="Invalid value: 'tool'. Supported values are: 'user', 'assistant', 'system', and 'developer'.",
        ),
    ],
    "ResponseCompactionItemParamParam": [
        refused(
            "encrypted_content",
            responses(block("compaction", encrypted_content="a"), USER),
            "invalid_encrypted_content",
            at="input[0].encrypted_content",
            text="The encrypted content of this compaction item could not be verified.",
        ),
    ],
    "CompactionTrigger": [
        invalid("type", responses(block("compaction_trigger"), USER), "input[0]"),
    ],
    "ItemReference": [
        missing("id", responses(block("item_reference")), "input[0].id"),
    ],
    "": [
        declared("", responses(stop=["a"], seed=1), "sampling fields of Chat"),
        declared("", responses(new_field=1), "unknown fields in all APIs"),
        refused(
            "reasoning.max_tokens",
            responses(reasoning={"max_tokens": 2**63}),
            "integer_above_max_value",
            text="Expected a value <= 9223372036854775807.",
        ),
        missing("tools[0].name", responses(tools=[block("function")])),
        missing("tools[0].type", responses(tools=[{"name": "f"}])),
        invalid(
            "tools[1].tools[0].name",
            responses(tools=[NAMESPACE, NAMESPACE]),
            text="Tool names must be unique: 'ns__f'.",
        ),
        invalid(
            "logit_bias",
            responses(logit_bias={"x": 1}),
            text="Invalid key in 'logit_bias': keys must be token ids.",
        ),
        mistyped("input[0]", responses(5), text="expected an object, but got an integer instead."),
        missing("input[0].name", responses(block("function_call", call_id="c"))),
        mistyped(
            "input[0].arguments",
            responses(block("function_call", call_id="c", name="n", arguments={})),
            text="expected a string, but got an object instead.",
        ),
        missing("input[0].content", responses({"role": "user"})),
        missing("input[0].content[0].text", user_part("input_text")),
        invalid(
            "include[1]",
            responses(include=["reasoning.encrypted_content", "everything"]),
            text=f"Invalid value: 'everything'. Supported values are: {INCLUDABLE}.",
        ),
        refused(
            "metadata.actual",
            responses(metadata={"topic": "weather", "actual": "x" * 513}),
            "string_above_max_length",
            text="Expected a string with maximum length 512, but got a string with length 513 instead.",
        ),
        refused(
            f"metadata.{KEY}",
            responses(metadata={"topic": "weather", KEY: ""}),
            "string_above_max_length",
            text="Expected a string with maximum length 64, but got a string with length 65 instead.",
        ),
        mistyped(
            "metadata.a.b",
            responses(metadata={"topic": "weather", "a.b": 5}),
            text="expected a string, but got an integer instead.",
        ),
        refused(
            "presence_penalty",
            responses(presence_penalty=-3),
            "decimal_below_min_value",
            text="Expected a value >= -2, but got -3 instead.",
        ),
        refused("messages", responses(messages=[USER]), "unsupported_parameter"),
        refused("max_tokens", responses(max_tokens=5), "unsupported_parameter"),
        refused(
            "max_completion_tokens", responses(max_completion_tokens=5), "unsupported_parameter"
        ),
        refused(
            "response_format", responses(response_format=block("text")), "unsupported_parameter"
        ),
        refused("reasoning_effort", responses(reasoning_effort="low"), "unsupported_parameter"),
        accepted(defined(name="x" * 64)),
        accepted(responses(include=["web_search_call.action.sources"])),
    ],
}
