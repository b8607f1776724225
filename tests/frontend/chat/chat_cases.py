"""Chat Completions requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor_cases import LONG, OPEN_SCHEMA, SCHEMA, USER, Case, Json

FUNCTION: Json = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT_CALL: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
}
CHAT_RESULT: Json = {"role": "tool", "tool_call_id": "call_1", "content": "a"}


def chat(*history: Json, **fields: Any) -> Json:
    """A request with these messages, or with one of the user."""
    return {"messages": [*history] or [USER]} | fields


def calls(*calls: Json) -> Json:
    """A message with calls."""
    return {"role": "assistant", "tool_calls": [*calls]}


def function(**fields: Any) -> Json:
    return chat(tools=[{"type": "function", "function": FUNCTION["function"] | fields}])


def json_schema(**fields: Any) -> Json:
    schema = {"name": "plan", "schema": SCHEMA} | fields
    return chat(response_format={"type": "json_schema", "json_schema": schema})


def user_part(**part: Any) -> Json:
    return chat({"role": "user", "content": [part]})


CASES = [
    Case("CompletionCreateParamsStreaming.messages", {"messages": []}, "refused", "'messages'"),
    Case(
        "CompletionCreateParamsStreaming.frequency_penalty",
        chat(frequency_penalty=3),
        "refused",
        "frequency_penalty",
    ),
    Case(
        "CompletionCreateParamsStreaming.presence_penalty",
        chat(presence_penalty=-3),
        "refused",
        "presence_penalty",
    ),
    Case(
        "CompletionCreateParamsStreaming.temperature",
        chat(temperature=2.5),
        "refused",
        "temperature",
    ),
    Case(
        "CompletionCreateParamsStreaming.temperature",
        chat(temperature=0.5, reasoning_effort="low"),
        "declared",
        "sampling fields, `logprobs` and `stop` beside reasoning",
    ),
    Case("CompletionCreateParamsStreaming.top_p", chat(top_p=1.5), "refused", "top_p"),
    Case("CompletionCreateParamsStreaming.n", chat(n=0), "refused", "'n'"),
    Case("CompletionCreateParamsStreaming.n", chat(n=129), "refused", "'n'"),
    Case(
        "CompletionCreateParamsStreaming.seed",
        chat(seed=2**70),
        "declared",
        "a `seed` of more than 64 bits",
    ),
    Case("CompletionCreateParamsStreaming.stop", chat(stop=[""]), "refused", "'stop'"),
    Case(
        "CompletionCreateParamsStreaming.stop",
        chat(stop=list("abcde")),
        "declared",
        "more than four `stop` strings",
    ),
    Case(
        "CompletionCreateParamsStreaming.logit_bias",
        chat(logit_bias={"5": 101}),
        "declared",
        "`logit_bias` beyond",
    ),
    Case(
        "CompletionCreateParamsStreaming.logit_bias",
        chat(logit_bias={"foo": 1}),
        "declared",
        "keys other than token",
    ),
    Case(
        "CompletionCreateParamsStreaming.top_logprobs",
        chat(top_logprobs=2),
        "refused",
        "top_logprobs",
    ),
    Case(
        "CompletionCreateParamsStreaming.top_logprobs",
        chat(logprobs=True, top_logprobs=21),
        "refused",
        "top_logprobs",
    ),
    Case(
        "CompletionCreateParamsStreaming.max_tokens", chat(max_tokens=-1), "refused", "max_tokens"
    ),
    Case(
        "CompletionCreateParamsStreaming.max_tokens",
        chat(max_tokens=0),
        "declared",
        "`max_tokens` or `max_completion_tokens` of 0",
    ),
    Case(
        "CompletionCreateParamsStreaming.max_completion_tokens",
        chat(max_tokens=5, max_completion_tokens=6),
        "declared",
        "`max_tokens` beside `max_completion_tokens`",
    ),
    Case(
        "CompletionCreateParamsStreaming.metadata",
        chat(metadata={"a": LONG * 2}),
        "declared",
        "any `metadata`",
    ),
    Case(
        "CompletionCreateParamsStreaming.modalities",
        chat(modalities=["image"]),
        "refused",
        "modalities",
    ),
    Case(
        "CompletionCreateParamsStreaming.modalities",
        chat(modalities=["text", "audio"]),
        "refused",
        "modalities",
    ),
    Case(
        "CompletionCreateParamsStreaming.moderation",
        chat(moderation={"model": "m"}),
        "noted",
        "moderation",
    ),
    Case("CompletionCreateParamsStreaming.store", chat(store=True), "noted", "store"),
    Case(
        "CompletionCreateParamsStreaming.web_search_options",
        chat(web_search_options={}),
        "noted",
        "web_search_options",
    ),
    Case(
        "CompletionCreateParamsStreaming.parallel_tool_calls",
        chat(parallel_tool_calls=True),
        "declared",
        "`parallel_tool_calls` without tools",
    ),
    Case(
        "CompletionCreateParamsStreaming.prompt_cache_key",
        chat(prompt_cache_key=LONG),
        "declared",
        "any length and form of `user`, `safety_identifier`, `prompt_cache_key`",
    ),
    Case(
        "CompletionCreateParamsStreaming.safety_identifier",
        chat(safety_identifier=LONG),
        "declared",
        "`safety_identifier`",
    ),
    Case(
        "CompletionCreateParamsStreaming.user",
        chat(user=5),
        "declared",
        "any length and form of `user`",
    ),
    Case(
        "CompletionCreateParamsStreaming.prompt_cache_retention",
        chat(prompt_cache_retention="1y"),
        "declared",
        "`prompt_cache_retention`",
    ),
    Case(
        "CompletionCreateParamsStreaming.service_tier",
        chat(service_tier="gold"),
        "declared",
        "any `service_tier`",
    ),
    Case(
        "CompletionCreateParamsStreaming.reasoning_effort",
        chat(reasoning_effort="huge"),
        "refused",
        "reasoning_effort",
    ),
    Case(
        "CompletionCreateParamsStreaming.verbosity", chat(verbosity="huge"), "refused", "verbosity"
    ),
    Case(
        "CompletionCreateParamsStreaming.stream_options",
        chat(stream_options={"include_usage": True}),
        "declared",
        "`stream_options` without `stream`",
    ),
    Case("CompletionCreateParamsStreaming.tools", chat(tools=[]), "declared", "empty `tools`"),
    Case(
        "CompletionCreateParamsStreaming.tools",
        chat(tools=[FUNCTION, FUNCTION]),
        "declared",
        "two tools with one name",
    ),
    Case(
        "CompletionCreateParamsStreaming.tool_choice",
        chat(tool_choice="required"),
        "refused",
        "tool_choice",
    ),
    Case(
        "CompletionCreateParamsStreaming.tool_choice",
        chat(tool_choice="any", tools=[FUNCTION]),
        "refused",
        "tool_choice",
    ),
    Case(
        "CompletionCreateParamsStreaming.tool_choice",
        chat(tool_choice="auto"),
        "declared",
        "(`auto` or `none`)",
    ),
    Case(
        "CompletionCreateParamsStreaming.tool_choice",
        chat(tool_choice="required", tools=[FUNCTION], reasoning_effort="high"),
        "declared",
        "the turn begins with the call, without a thought",
    ),
    Case(
        "CompletionCreateParamsStreaming.function_call",
        chat(function_call={"name": "look"}),
        "refused",
        "function_call",
    ),
    Case(
        "CompletionCreateParamsStreaming.function_call",
        chat(function_call="always", functions=[{"name": "look"}]),
        "refused",
        "function_call",
    ),
    Case(
        "CompletionCreateParamsStreaming.functions",
        chat(functions=[{"name": "a b"}]),
        "refused",
        "functions[0].name",
    ),
    Case(
        "ChatCompletionNamedToolChoiceParam.function",
        chat(tool_choice={"type": "function", "function": {"name": "b"}}, tools=[FUNCTION]),
        "refused",
        "tool_choice",
    ),
    Case(
        "ChatCompletionAllowedToolsParam.tools",
        chat(
            tool_choice={
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "b"}}],
                },
            },
            tools=[FUNCTION],
        ),
        "refused",
        "tool_choice.allowed_tools.tools[0]",
    ),
    Case(
        "FunctionDefinition.name", function(name="two words"), "refused", "tools[0].function.name"
    ),
    Case("FunctionDefinition.name", function(name="x" * 65), "refused", "tools[0].function.name"),
    Case(
        "FunctionDefinition.parameters",
        function(parameters=OPEN_SCHEMA),
        "declared",
        "`oneOf` at the top",
    ),
    Case(
        "FunctionDefinition.description",
        function(description=100 * LONG),
        "declared",
        "descriptions of any length",
    ),
    Case("FunctionDefinition.strict", function(strict=True), "noted", "strict"),
    Case(
        "CustomFormatGrammarGrammar.definition",
        chat(
            tools=[
                {
                    "type": "custom",
                    "custom": {
                        "name": "patch",
                        "format": {
                            "type": "grammar",
                            "grammar": {"syntax": "lark", "definition": "x"},
                        },
                    },
                }
            ]
        ),
        "refused",
        "tools[0].custom.format.grammar.definition",
    ),
    Case(
        "JSONSchema.name",
        json_schema(name="two words"),
        "refused",
        "response_format.json_schema.name",
    ),
    Case(
        "JSONSchema.name", json_schema(name="x" * 65), "refused", "response_format.json_schema.name"
    ),
    Case("JSONSchema.name", json_schema(name=None), "declared", "a `json_schema` without `name`"),
    Case(
        "JSONSchema.schema", json_schema(schema=OPEN_SCHEMA), "declared", "JSON Schemas of any form"
    ),
    Case(
        "JSONSchema.description",
        json_schema(description="A plan."),
        "declared",
        "`name` and `description` of an",
    ),
    Case(
        "ResponseFormatJSONSchema.type",
        chat(response_format={"type": "yaml"}),
        "refused",
        "response_format",
    ),
    Case(
        "ResponseFormatJSONSchema.json_schema",
        chat(response_format={"type": "json_schema"}),
        "refused",
        "response_format.json_schema",
    ),
    Case(
        "ResponseFormatJSONObject.type",
        chat(response_format={"type": "json_object"}),
        "declared",
        'without the word "json"',
    ),
    Case(
        "ChatCompletionUserMessageParam.content",
        chat({"role": "user"}),
        "refused",
        "messages[0].content",
    ),
    Case(
        "ChatCompletionUserMessageParam.role",
        chat({"role": "robot", "content": "a"}),
        "refused",
        "messages[0].role",
    ),
    Case(
        "ChatCompletionUserMessageParam.name",
        chat(USER | {"name": "a <b>"}),
        "declared",
        "names of participants with any characters",
    ),
    Case(
        "ChatCompletionSystemMessageParam.content",
        chat(
            {
                "role": "system",
                "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}],
            },
            USER,
        ),
        "declared",
        "images in messages of any role",
    ),
    Case(
        "ChatCompletionAssistantMessageParam.content",
        chat(USER, {"role": "assistant"}, USER),
        "declared",
        "without content",
    ),
    Case(
        "ChatCompletionAssistantMessageParam.audio",
        chat(USER, {"role": "assistant", "audio": {"id": "audio_1"}}, USER),
        "refused",
        "messages[1].audio",
    ),
    Case(
        "ChatCompletionAssistantMessageParam.tool_calls",
        chat(USER, calls(CHAT_CALL), USER),
        "declared",
        "calls without results",
    ),
    Case(
        "ChatCompletionMessageFunctionToolCallParam.id",
        chat(USER, calls(CHAT_CALL, CHAT_CALL), CHAT_RESULT),
        "refused",
        "messages[1].tool_calls[1].id",
    ),
    Case(
        "ChatCompletionMessageFunctionToolCallParam.id",
        chat(USER, calls(CHAT_CALL | {"id": LONG}), CHAT_RESULT | {"tool_call_id": LONG}),
        "declared",
        "ids of any form and length",
    ),
    Case(
        "ChatCompletionToolMessageParam.tool_call_id",
        chat(USER, {"role": "tool", "content": "a"}),
        "refused",
        "tool_call_id",
    ),
    Case(
        "ChatCompletionToolMessageParam.tool_call_id",
        chat(USER, CHAT_RESULT),
        "refused",
        "messages with role 'tool'",
    ),
    Case(
        "ChatCompletionToolMessageParam.tool_call_id",
        chat(USER, calls(CHAT_CALL), USER, CHAT_RESULT),
        "declared",
        "results later than after their call",
    ),
    Case(
        "ChatCompletionToolMessageParam.content",
        chat(USER, calls(CHAT_CALL), {"role": "tool", "tool_call_id": "call_1"}),
        "declared",
        "a result without content",
    ),
    Case(
        "ChatCompletionFunctionMessageParam.name",
        chat(USER, {"role": "function", "content": "a"}),
        "refused",
        "name",
    ),
    Case(
        "ImageURL.url",
        user_part(type="image_url", image_url={"url": "data:text/plain;base64,aGk="}),
        "refused",
        "messages[0].content[0].image_url.url",
    ),
    Case(
        "InputAudio.format",
        user_part(type="input_audio", input_audio={"data": "", "format": "aac"}),
        "declared",
        "audio of any format",
    ),
    Case(
        "FileFile.file_id",
        user_part(type="file", file={"file_id": "f"}),
        "refused",
        "messages[0].content[0].file",
    ),
    Case(
        "FileFile.file_data",
        user_part(type="file", file={"file_data": "?"}),
        "refused",
        "messages[0].content[0].file.file_data",
    ),
    Case(
        "ChatCompletionContentPartTextParam.type",
        user_part(type="poem", poem="a"),
        "refused",
        "messages[0].content[0]",
    ),
    *(
        Case("", chat(**{name: "a"}), "refused", name)
        for name in ("system", "instructions", "max_output_tokens", "stop_sequences")
    ),
    Case("", chat(new_field=1), "declared", "unknown fields in all APIs"),
]
