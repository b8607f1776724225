"""Responses requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor_cases import LONG, OPEN_SCHEMA, SCHEMA, USER, Case, Json

OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "a"}
FLAT_CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
FLAT_FUNCTION: Json = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}


def responses(*items: Json, **fields: Any) -> Json:
    """A request with these items, or with a text."""
    return {"input": [*items] if items else "Hi.", "store": False} | fields


def text_format(**fields: Any) -> Json:
    return responses(
        text={"format": {"type": "json_schema", "name": "plan", "schema": SCHEMA} | fields}
    )


def managed(**fields: Any) -> Json:
    return responses(
        context_management=[{"type": "compaction", "compact_threshold": 100_000} | fields]
    )


CASES = [
    Case("ResponseCreateParamsStreaming.input", {"model": "m"}, "refused", "input"),
    Case(
        "ResponseCreateParamsStreaming.input", responses(input=[]), "declared", "an empty `input`"
    ),
    Case(
        "ResponseCreateParamsStreaming.conversation",
        responses(conversation="c"),
        "refused",
        "conversation",
    ),
    Case(
        "ResponseCreateParamsStreaming.prompt", responses(prompt={"id": "p"}), "refused", "prompt"
    ),
    Case(
        "ResponseCreateParamsStreaming.background",
        responses(background=True),
        "refused",
        "background",
    ),
    Case(
        "ResponseCreateParamsStreaming.include", responses(include=["all"]), "refused", "include[0]"
    ),
    Case(
        "ResponseCreateParamsStreaming.max_output_tokens",
        responses(max_output_tokens=0),
        "refused",
        "max_output_tokens",
    ),
    Case(
        "ResponseCreateParamsStreaming.max_output_tokens",
        responses(max_output_tokens=15),
        "declared",
        "`max_output_tokens` below 16",
    ),
    Case(
        "ResponseCreateParamsStreaming.max_tool_calls",
        responses(max_tool_calls=0),
        "refused",
        "max_tool_calls",
    ),
    Case(
        "ResponseCreateParamsStreaming.metadata",
        responses(metadata={"a": "x" * 513}),
        "refused",
        "metadata.a",
    ),
    Case(
        "ResponseCreateParamsStreaming.metadata",
        responses(metadata={"k" * 65: ""}),
        "refused",
        "metadata",
    ),
    Case(
        "ResponseCreateParamsStreaming.metadata",
        responses(metadata=dict.fromkeys(map(str, range(17)), "")),
        "refused",
        "metadata",
    ),
    Case(
        "ResponseCreateParamsStreaming.moderation",
        responses(moderation={"model": "m"}),
        "noted",
        "moderation",
    ),
    Case(
        "ResponseCreateParamsStreaming.previous_response_id",
        responses(previous_response_id="resp_gone"),
        "refused",
        "resp_gone",
    ),
    Case(
        "ResponseCreateParamsStreaming.prompt_cache_key",
        responses(prompt_cache_key=LONG),
        "declared",
        "`prompt_cache_key`",
    ),
    Case(
        "ResponseCreateParamsStreaming.prompt_cache_retention",
        responses(prompt_cache_retention="1y"),
        "declared",
        "`prompt_cache_retention`",
    ),
    Case(
        "ResponseCreateParamsStreaming.safety_identifier",
        responses(safety_identifier=LONG),
        "declared",
        "`safety_identifier`",
    ),
    Case(
        "ResponseCreateParamsStreaming.user",
        responses(user=LONG),
        "declared",
        "any length and form of `user`",
    ),
    Case(
        "ResponseCreateParamsStreaming.service_tier",
        responses(service_tier="gold"),
        "declared",
        "any `service_tier`",
    ),
    Case(
        "ResponseCreateParamsStreaming.stream_options",
        responses(stream_options={}),
        "declared",
        "Chat and Responses: `stream_options` without `stream`",
    ),
    Case(
        "ResponseCreateParamsStreaming.temperature",
        responses(temperature=-1),
        "refused",
        "temperature",
    ),
    Case(
        "ResponseCreateParamsStreaming.temperature",
        responses(temperature=0.5, reasoning={"effort": "high"}),
        "declared",
        "beside reasoning",
    ),
    Case(
        "ResponseCreateParamsStreaming.top_logprobs",
        responses(top_logprobs=21),
        "refused",
        "top_logprobs",
    ),
    Case("ResponseCreateParamsStreaming.top_p", responses(top_p=2), "refused", "top_p"),
    Case(
        "ResponseCreateParamsStreaming.truncation",
        responses(truncation="some"),
        "refused",
        "truncation",
    ),
    Case(
        "ResponseCreateParamsStreaming.tool_choice",
        responses(tool_choice="required"),
        "refused",
        "tool_choice",
    ),
    Case(
        "ResponseCreateParamsStreaming.tool_choice",
        responses(tool_choice="any", tools=[FLAT_FUNCTION]),
        "refused",
        "tool_choice",
    ),
    Case(
        "ResponseCreateParamsStreaming.tools",
        responses(tools=[FLAT_FUNCTION, FLAT_FUNCTION]),
        "refused",
        "tools[1].name",
    ),
    Case(
        "ResponseCreateParamsStreaming.tools",
        responses(tools=[{"type": "robot"}]),
        "noted",
        "robot",
    ),
    Case("ContextManagement.type", managed(type="clear"), "refused", "context_management[0].type"),
    Case(
        "ContextManagement.compact_threshold",
        managed(compact_threshold=0),
        "refused",
        "context_management[0].compact_threshold",
    ),
    Case(
        "ContextManagement.compact_threshold",
        managed(compact_threshold=None),
        "declared",
        "without one nothing is compacted",
    ),
    Case(
        "ContextManagement.compact_threshold",
        managed(compact_threshold=5000),
        "declared",
        "any `compact_threshold`",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.name",
        text_format(name="two words"),
        "refused",
        "text.format.name",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.name",
        text_format(name="x" * 65),
        "refused",
        "text.format.name",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.name",
        text_format(name=None),
        "refused",
        "text.format.name",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.schema",
        text_format(schema=None),
        "refused",
        "text.format.schema",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.schema",
        text_format(schema=OPEN_SCHEMA),
        "declared",
        "JSON Schemas of any form",
    ),
    Case(
        "ResponseFormatTextJSONSchemaConfigParam.description",
        text_format(description="a"),
        "declared",
        "`description` of an output",
    ),
    Case(
        "ResponseFormatJSONObject.type",
        responses(text={"format": {"type": "json_object"}}),
        "declared",
        'without the word "json"',
    ),
    Case(
        "ResponseFormatJSONObject.type",
        responses(text={"format": {"type": "xml"}}),
        "refused",
        "text.format.type",
    ),
    Case(
        "ResponseTextConfigParam.verbosity",
        responses(text={"verbosity": "huge"}),
        "refused",
        "text.verbosity",
    ),
    Case(
        "Reasoning.effort", responses(reasoning={"effort": "huge"}), "refused", "reasoning.effort"
    ),
    Case(
        "Reasoning.summary",
        responses(reasoning={"summary": "long"}),
        "refused",
        "reasoning.summary",
    ),
    Case(
        "Reasoning.context",
        responses(reasoning={"context": "some"}),
        "refused",
        "reasoning.context",
    ),
    Case("Reasoning.mode", responses(reasoning={"mode": "pro"}), "declared", "`reasoning.mode`"),
    Case(
        "FunctionToolParam.name",
        responses(tools=[FLAT_FUNCTION | {"name": "a.b"}]),
        "refused",
        "tools[0].name",
    ),
    Case(
        "FunctionToolParam.name",
        responses(tools=[FLAT_FUNCTION | {"name": "x" * 65}]),
        "refused",
        "tools[0].name",
    ),
    Case(
        "FunctionToolParam.parameters",
        responses(tools=[FLAT_FUNCTION | {"parameters": OPEN_SCHEMA}]),
        "declared",
        "`oneOf` at the top",
    ),
    Case(
        "FunctionToolParam.strict",
        responses(tools=[FLAT_FUNCTION | {"strict": True}]),
        "noted",
        "strict",
    ),
    Case(
        "FunctionToolParam.strict",
        responses(tools=[FLAT_FUNCTION | {"strict": None}]),
        "declared",
        "a function without `strict`",
    ),
    Case("CustomToolParam.name", responses(tools=[{"type": "custom"}]), "refused", "tools[0].name"),
    Case(
        "Grammar.definition",
        responses(
            tools=[{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark"}}]
        ),
        "refused",
        "tools[0].format.definition",
    ),
    Case(
        "Grammar.syntax",
        responses(
            tools=[
                {
                    "type": "custom",
                    "name": "p",
                    "format": {"type": "grammar", "syntax": "bnf", "definition": "a"},
                }
            ]
        ),
        "refused",
        "tools[0].format.syntax",
    ),
    Case(
        "ToolChoiceFunctionParam.name",
        responses(tools=[FLAT_FUNCTION], tool_choice={"type": "function", "name": "b"}),
        "refused",
        "tool_choice",
    ),
    Case(
        "ToolChoiceTypesParam.type",
        responses(
            tools=[{"type": "file_search", "vector_store_ids": []}],
            tool_choice={"type": "file_search"},
        ),
        "refused",
        "tool_choice",
    ),
    Case(
        "ResponseFunctionToolCallParam.call_id",
        responses(FLAT_CALL | {"call_id": None}),
        "refused",
        "input[0].call_id",
    ),
    Case(
        "ResponseFunctionToolCallParam.call_id",
        responses(USER, FLAT_CALL),
        "declared",
        "calls without outputs",
    ),
    Case(
        "ResponseFunctionToolCallParam.id",
        responses(USER, FLAT_CALL | {"id": "x.1"}, OUTPUT),
        "declared",
        "ids of any form",
    ),
    Case("FunctionCallOutput.call_id", responses(USER, OUTPUT), "refused", "input[1]"),
    Case(
        "FunctionCallOutput.call_id",
        responses(USER, FLAT_CALL, OUTPUT, OUTPUT),
        "declared",
        "several outputs of a call",
    ),
    Case(
        "ResponseReasoningItemParam.encrypted_content",
        responses(USER, {"type": "reasoning", "summary": [], "encrypted_content": "foreign"}),
        "declared",
        "reasoning without the item that followed it",
    ),
    Case(
        "ResponseOutputMessageParam.id",
        responses(
            *[{"type": "message", "id": "msg_1", "role": "assistant", "content": "a"}] * 2, USER
        ),
        "declared",
        "items with one id",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses({"role": "user", "content": [{"type": "output_text", "text": "a"}]}),
        "declared",
        "content types of another role",
    ),
    Case(
        "EasyInputMessageParam.role",
        responses({"role": "tool", "content": "a"}),
        "refused",
        "input[0].role",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses({"role": "user", "content": [{"type": "poem"}]}),
        "refused",
        "input[0].content[0]",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}),
        "refused",
        "input[0].content[0].file_id",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses(
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}],
            }
        ),
        "refused",
        "input[0].content[0].image_url",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}),
        "refused",
        "input[0].content[0].file_id",
    ),
    Case(
        "ResponseCompactionItemParamParam.encrypted_content",
        responses({"type": "compaction", "encrypted_content": "a"}, USER),
        "refused",
        "input[0].encrypted_content",
    ),
    Case(
        "CompactionTrigger.type",
        responses({"type": "compaction_trigger"}, USER),
        "refused",
        "input[0]",
    ),
    Case("ItemReference.id", responses({"type": "item_reference"}), "refused", "input[0].id"),
    *(
        Case("", responses(**{name: value}), "refused", name)
        for name, value in (
            ("messages", [USER]),
            ("max_tokens", 5),
            ("max_completion_tokens", 5),
            ("response_format", {"type": "text"}),
            ("reasoning_effort", "low"),
        )
    ),
    Case(
        "FunctionToolParam.parameters",
        responses(tools=[{"type": "function", "name": "look"}]),
        "declared",
        "a function without `parameters`",
    ),
    Case(
        "ResponseReasoningItemParam.summary",
        responses(USER, {"type": "reasoning", "encrypted_content": "a"}, USER),
        "declared",
        "items without members that decide nothing here",
    ),
    Case("", responses(stop=["a"], seed=1), "declared", "sampling fields of Chat"),
    Case("", responses(new_field=1), "declared", "unknown fields in all APIs"),
]
