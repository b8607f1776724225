"""Requests with one remarkable value each, by the field of the SDK's types that has it, and what becomes of them.

refused     400 in the API's form; the third member is a part of the message, which names the field
noted       200; a response header names it
declared    200, though the vendor refuses it, or gives it another effect; the third member is a phrase of
            docs/differences.md or of the API's page
"""

from typing import Any, Literal, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]
Outcome: TypeAlias = Literal["refused", "noted", "declared"]
LONG = "x" * 300
PNG = "iVBORw0KGgo="
SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
OPEN_SCHEMA: Json = {"oneOf": [{"type": "object"}, {"type": "object", "properties": {"ä b": {"minLength": 3}}}]}
TOO_MANY = {"type": "ephemeral", "ttl": "1h"}


class Case(NamedTuple):
    """A request, and what becomes of it."""

    field: str
    """`Class.field` of the SDK's types."""
    body: Json
    outcome: Outcome
    text: str


# Messages.

USER: Json = {"role": "user", "content": "Hi."}
TOOL: Json = {"name": "look", "input_schema": SCHEMA}
CALL: Json = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a"}
THINKING: Json = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
ENABLED: Json = {"type": "enabled", "budget_tokens": 1024}


def messages(**fields: Any) -> Json:
    """A request with other or further fields; None removes one."""
    return {"max_tokens": 2048, "messages": [USER]} | fields


def blocks(*content: Json, role: str = "user") -> Json:
    """A message with these blocks, after one of the user if it is the assistant's."""
    before = [USER] if role == "assistant" else []
    return messages(messages=[*before, {"role": role, "content": [*content]}, *([USER] if before else [])])


def loop(*results: Json, calls: tuple[Json, ...] = (CALL,), **fields: Any) -> Json:
    """Calls of the assistant, and results."""
    history = [USER, {"role": "assistant", "content": [*calls]}, {"role": "user", "content": [*results]}]
    return messages(messages=history, **fields)


def edits(*edits: Json) -> Json:
    """A request with context edits."""
    return messages(context_management={"edits": [*edits]})


def prefill(text: str = "So", *before: Json, **fields: Any) -> Json:
    """A request for the continuation of a text."""
    content = [*before, {"type": "text", "text": text}]
    return messages(messages=[USER, {"role": "assistant", "content": content}], **fields)


def source(**fields: Any) -> Json:
    return {"type": "base64", "media_type": "image/png", "data": PNG} | fields


def tool(**fields: Any) -> Json:
    return messages(tools=[TOOL | fields])


CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"

MESSAGES = [
    Case("MessageCreateParamsStreaming.max_tokens", messages(max_tokens=None), "refused", "max_tokens: Field required"),
    Case("MessageCreateParamsStreaming.max_tokens", messages(max_tokens=-1), "refused", "max_tokens: "),
    Case("MessageCreateParamsStreaming.max_tokens", messages(max_tokens=10**9), "declared", "reduced, not refused"),
    Case("MessageCreateParamsStreaming.messages", messages(messages=[]), "refused", "messages: "),
    Case(
        "MessageCreateParamsStreaming.messages",
        messages(messages=[{"role": "assistant", "content": "a"}, USER]),
        "declared",
        "a first message of the assistant",
    ),
    Case("MessageCreateParamsStreaming.cache_control", messages(cache_control=TOO_MANY), "declared", "with any `ttl`"),
    Case("MessageCreateParamsStreaming.stop_sequences", messages(stop_sequences=[""]), "refused", "stop_sequences: "),
    Case(
        "MessageCreateParamsStreaming.stop_sequences",
        messages(stop_sequences=[" "]),
        "declared",
        "`stop_sequences` of white space",
    ),
    Case(
        "MessageCreateParamsStreaming.system", messages(system=[{"type": "text", "text": ""}]), "declared", "empty text"
    ),
    Case("MessageCreateParamsStreaming.container", messages(container="c_1"), "refused", "container: "),
    Case("MessageCreateParamsStreaming.mcp_servers", messages(mcp_servers=[{"url": "u"}]), "refused", "mcp_servers: "),
    Case("MessageCreateParamsStreaming.thread", messages(thread={"type": "create"}), "refused", "thread: "),
    Case(
        "MessageCreateParamsStreaming.compaction", messages(compaction={"type": "summarize"}), "refused", "compaction: "
    ),
    Case("MessageCreateParamsStreaming.service_tier", messages(service_tier="flex"), "declared", "any `service_tier`"),
    Case("MessageCreateParamsStreaming.speed", messages(speed="fast"), "declared", "`speed`"),
    Case("MessageCreateParamsStreaming.inference_geo", messages(inference_geo="eu"), "declared", "`inference_geo`"),
    Case("MessageCreateParamsStreaming.fallbacks", messages(fallbacks=[{"model": "b"}]), "declared", "`fallbacks`"),
    Case(
        "MessageCreateParamsStreaming.fallback_credit_token",
        messages(fallback_credit_token="t"),
        "declared",
        "`fallback_credit_token`",
    ),
    Case(
        "MessageCreateParamsStreaming.billing_policy",
        messages(billing_policy={"type": "billing_policy"}),
        "declared",
        "`billing_policy`",
    ),
    Case("MessageCreateParamsStreaming.diagnostics", messages(diagnostics={}), "declared", "`diagnostics`"),
    Case("MetadataParam.user_id", messages(metadata={"user_id": LONG}), "declared", "Messages: of `metadata.user_id`"),
    Case(
        "TokenTaskBudgetParam.total",
        messages(output_config={"task_budget": {"type": "tokens", "total": 1}}),
        "declared",
        "`task_budget`",
    ),
    Case("OutputConfigParam.effort", messages(output_config={"effort": "huge"}), "refused", "output_config.effort: "),
    Case(
        "JSONOutputFormatParam.type",
        messages(output_config={"format": {"type": "json", "schema": {}}}),
        "refused",
        "output_config.format: ",
    ),
    Case(
        "JSONOutputFormatParam.schema",
        messages(output_config={"format": {"type": "json_schema"}}),
        "refused",
        "output_config.format.schema: ",
    ),
    Case(
        "JSONOutputFormatParam.schema",
        messages(output_config={"format": {"type": "json_schema", "schema": OPEN_SCHEMA}}),
        "declared",
        "objects without `additionalProperties: false`",
    ),
    Case(
        "JSONOutputFormatParam.schema",
        prefill(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}),
        "declared",
        "with `output_config.format`",
    ),
    Case(
        "JSONOutputFormatParam.schema",
        messages(
            output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
            output_format={"type": "json_schema", "schema": {"type": "object"}},
        ),
        "refused",
        "output_format: ",
    ),
    # Thinking.
    Case("ThinkingConfigEnabledParam.type", messages(thinking={"type": "on"}), "refused", "thinking: "),
    Case(
        "ThinkingConfigEnabledParam.budget_tokens",
        messages(thinking={"type": "enabled"}),
        "refused",
        "thinking.enabled.budget_tokens: Field required",
    ),
    Case(
        "ThinkingConfigEnabledParam.budget_tokens",
        messages(thinking=ENABLED | {"budget_tokens": 1023}),
        "refused",
        "thinking.enabled.budget_tokens: ",
    ),
    Case(
        "ThinkingConfigEnabledParam.budget_tokens",
        messages(thinking=ENABLED | {"budget_tokens": 2048}),
        "refused",
        "`thinking.budget_tokens`",
    ),
    Case("ThinkingConfigEnabledParam.display", messages(thinking=ENABLED | {"display": "x"}), "refused", "display: "),
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(thinking=ENABLED, temperature=0.5),
        "declared",
        "with thinking on (natively only `temperature` 1",
    ),
    Case("ThinkingConfigEnabledParam.type", messages(thinking=ENABLED, top_k=5), "declared", "with thinking on"),
    Case("ThinkingConfigEnabledParam.type", messages(thinking=ENABLED, top_p=0.5), "declared", "`top_p` from 0.95"),
    Case(
        "ThinkingConfigEnabledParam.type",
        prefill(thinking=ENABLED),
        "refused",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`",
    ),
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(messages=[USER, {"role": "assistant", "content": "So"}], thinking=ENABLED),
        "refused",
        "messages.1.content.0.type: ",
    ),
    Case(
        "ThinkingConfigEnabledParam.type",
        loop(RESULT, thinking=ENABLED),
        "declared",
        "missing before a call while thinking is on",
    ),
    Case(
        "ThinkingConfigAdaptiveParam.type",
        prefill(thinking={"type": "adaptive"}),
        "declared",
        "continues an assistant's message, with `adaptive` thinking",
    ),
    Case(
        "ThinkingBlockBindingParam.prefix_mismatch_behavior",
        messages(thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}),
        "declared",
        "`thinking.block_binding`",
    ),
    Case(
        "ThinkingBlockParam.signature",
        messages(
            messages=[USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, CALL]}, USER]
        ),
        "declared",
        "thinking without a signature",
    ),
    Case(
        "ThinkingBlockParam.thinking",
        blocks(THINKING | {"thinking": "Other."}, CALL, role="assistant"),
        "declared",
        "with other text than was signed",
    ),
    Case("ThinkingBlockParam.thinking", blocks(THINKING), "refused", "`thinking` blocks can only be in `assistant`"),
    Case(
        "ThinkingBlockParam.thinking",
        messages(messages=[USER, {"role": "assistant", "content": [THINKING]}]),
        "declared",
        "a last message of the assistant that ends in thinking",
    ),
    Case(
        "RedactedThinkingBlockParam.data",
        blocks({"type": "redacted_thinking", "data": "foreign"}, role="assistant"),
        "declared",
        "signatures of other servers",
    ),
    # Messages and blocks.
    Case(
        "UserMessageParam.role", messages(messages=[{"role": "tool", "content": "a"}]), "refused", "messages.0.role: "
    ),
    Case("UserMessageParam.content", messages(messages=[{"role": "user"}]), "refused", "messages.0.content: "),
    Case(
        "UserMessageParam.content",
        messages(messages=[{"role": "user", "content": []}]),
        "declared",
        "messages with empty content",
    ),
    Case("AssistantMessageParam.content", prefill("So "), "refused", "trailing whitespace"),
    Case("SystemMessageParam.content", blocks(CALL, role="system"), "refused", "`tool_use` blocks are not allowed"),
    Case(
        "SystemMessageParam.clear_at",
        messages(messages=[USER, {"role": "system", "content": "a", "clear_at": "soon"}]),
        "refused",
        "clear_at: ",
    ),
    Case("TextBlockParam.text", blocks({"type": "text"}), "refused", "messages.0.content.0.text.text: Field required"),
    Case("TextBlockParam.text", blocks({"type": "text", "text": " "}), "declared", "text of white space"),
    Case(
        "TextBlockParam.cache_control",
        blocks(*[{"type": "text", "text": "a", "cache_control": TOO_MANY}] * 5),
        "declared",
        "`cache_control` in any number",
    ),
    Case(
        "TextBlockParam.citations", blocks({"type": "text", "text": "a", "citations": []}), "declared", "unknown fields"
    ),
    Case("ImageBlockParam.source", blocks({"type": "image"}), "refused", "messages.0.content.0.image.source: "),
    Case(
        "ImageBlockParam.transformations",
        blocks({"type": "image", "source": source(), "transformations": {"oversized_image": "error"}}),
        "declared",
        "the size of inline data are not checked",
    ),
    Case(
        "Base64ImageSourceParam.media_type",
        blocks({"type": "image", "source": source(media_type="image/bmp")}),
        "refused",
        "media_type: ",
    ),
    Case(
        "Base64ImageSourceParam.data",
        blocks({"type": "image", "source": source(data="?")}),
        "refused",
        "invalid base64 data",
    ),
    Case(
        "URLImageSourceParam.url",
        blocks({"type": "image", "source": {"type": "url", "url": "data:image/png;base64,AA=="}}),
        "declared",
        "by `data:` or `http:` URL",
    ),
    Case(
        "FileImageSourceParam.file_id",
        blocks({"type": "image", "source": {"type": "file", "file_id": "f"}}),
        "refused",
        "messages.0.content.0.source: file references",
    ),
    Case(
        "Base64PDFSourceParam.media_type",
        blocks({"type": "document", "source": source(media_type="application/msword")}),
        "refused",
        "media_type: ",
    ),
    Case(
        "Base64PDFSourceParam.data",
        blocks({"type": "document", "source": source(media_type="application/pdf", data="?")}),
        "refused",
        "The PDF specified was not valid",
    ),
    Case(
        "FileDocumentSourceParam.file_id",
        blocks({"type": "document", "source": {"type": "file", "file_id": "f"}}),
        "refused",
        "messages.0.content.0.source: file references",
    ),
    Case(
        "ContainerUploadBlockParam.file_id",
        blocks({"type": "container_upload", "file_id": "f"}),
        "refused",
        "messages.0.content.0: container uploads",
    ),
    Case(
        "CompactionBlockParam.content",
        blocks({"type": "compaction", "content": ""}, role="assistant"),
        "declared",
        "an empty summary",
    ),
    # Calls and results.
    Case("ToolUseBlockParam.input", loop(RESULT, calls=(CALL | {"input": 5},)), "refused", "tool_use.input: "),
    Case("ToolUseBlockParam.id", loop(RESULT, calls=(CALL, CALL)), "refused", "`tool_use` ids must be unique"),
    Case(
        "ToolUseBlockParam.id",
        loop(RESULT | {"tool_use_id": "a.b:c"}, calls=(CALL | {"id": "a.b:c"},)),
        "declared",
        "ids of any form",
    ),
    Case(
        "ToolUseBlockParam.id",
        messages(messages=[*loop(RESULT)["messages"], *loop(RESULT)["messages"]]),
        "declared",
        "calls of two messages with one id",
    ),
    Case(
        "ToolUseBlockParam.name",
        loop(RESULT, calls=(CALL | {"name": "two words"},)),
        "declared",
        "names of calls that no tool may have",
    ),
    Case("ToolUseBlockParam.input", blocks(CALL), "refused", "`tool_use` blocks can only be in `assistant` messages"),
    Case("ToolUseBlockParam.id", blocks(CALL, role="assistant"), "declared", "calls without results"),
    Case(
        "ToolResultBlockParam.tool_use_id",
        loop(RESULT | {"tool_use_id": "b"}),
        "refused",
        "messages.2.content.0: unexpected `tool_use_id`",
    ),
    Case("ToolResultBlockParam.tool_use_id", loop(RESULT, RESULT), "declared", "several results of a call"),
    Case(
        "ToolResultBlockParam.tool_use_id",
        messages(messages=[*loop(RESULT)["messages"][:2], USER, {"role": "user", "content": [RESULT]}]),
        "declared",
        "results later than in the next message",
    ),
    Case(
        "ToolResultBlockParam.content",
        loop({"type": "text", "text": "a"}, RESULT),
        "declared",
        "text before results",
    ),
    Case(
        "ToolReferenceBlockParam.tool_name",
        loop(RESULT | {"content": [{"type": "tool_reference", "tool_name": "gone"}]}, tools=[TOOL]),
        "declared",
        "a `tool_reference` to an unknown tool",
    ),
    # Tools.
    Case("ToolParam.name", tool(name="two words"), "refused", "tools.0.custom.name: "),
    Case("ToolParam.name", tool(name="x" * 129), "refused", "tools.0.custom.name: "),
    Case("ToolParam.name", messages(tools=[TOOL, TOOL]), "refused", "Tool names must be unique"),
    Case("ToolParam.input_schema", messages(tools=[{"name": "look"}]), "refused", "tools.0.custom.input_schema: "),
    Case("ToolParam.input_schema", tool(input_schema=OPEN_SCHEMA), "declared", "`oneOf` at the top"),
    Case("ToolParam.input_schema", tool(input_schema={}), "declared", "an `input_schema` without `type: object`"),
    Case("ToolParam.description", tool(description=100 * LONG), "declared", "descriptions of any length"),
    Case("ToolParam.type", tool(type="robot_20250101"), "refused", "tools.0: Input tag 'robot_20250101'"),
    Case("ToolParam.defer_loading", tool(defer_loading=True), "declared", "tools that all have `defer_loading`"),
    Case(
        "ToolParam.cache_control",
        messages(tools=[TOOL, TOOL | {"name": "b", "defer_loading": True, "cache_control": TOO_MANY}]),
        "declared",
        "`cache_control` in any number, order, place and form",
    ),
    Case("ToolParam.strict", tool(strict=True), "noted", "strict"),
    Case(
        "ToolChoiceAnyParam.type",
        messages(tool_choice={"type": "any"}),
        "refused",
        "tool_choice: may only be specified while providing tools",
    ),
    Case("ToolChoiceAnyParam.type", messages(tool_choice={"type": "all"}, tools=[TOOL]), "refused", "tool_choice: "),
    Case(
        "ToolChoiceAnyParam.type",
        messages(tool_choice={"type": "any"}, tools=[TOOL], thinking=ENABLED),
        "refused",
        "Thinking may not be enabled when tool_choice forces tool use",
    ),
    Case(
        "ToolChoiceAnyParam.type",
        messages(tool_choice={"type": "any"}, tools=[TOOL], thinking={"type": "adaptive"}),
        "declared",
        "`tool_choice` `any` or `tool` with `thinking.type` `adaptive`",
    ),
    Case(
        "ToolChoiceToolParam.name",
        messages(tool_choice={"type": "tool", "name": "b"}, tools=[TOOL]),
        "refused",
        "tool_choice.tool.name: ",
    ),
    Case(
        "ToolChoiceToolParam.type",
        messages(tool_choice={"type": "tool", "name": "look"}, tools=[TOOL], thinking=ENABLED),
        "refused",
        "Thinking may not be enabled when tool_choice forces tool use",
    ),
    # Context edits.
    Case("ContextManagementConfigParam.edits", edits({"type": "clear_all_2099"}), "declared", "edits of unknown types"),
    Case(
        "ContextManagementConfigParam.edits",
        edits({"type": CLEAR_TOOLS}, {"type": CLEAR_THINKING}),
        "declared",
        "context edits in any order",
    ),
    *(
        Case(f"{name}.type", edits({"type": type}, {"type": type}), "refused", f"'{type}' may be set only once")
        for name, type in (
            ("ClearToolUses20250919EditParam", CLEAR_TOOLS),
            ("ClearThinking20251015EditParam", CLEAR_THINKING),
            ("Compact20260112EditParam", COMPACT),
        )
    ),
    Case(
        "ClearThinking20251015EditParam.keep",
        edits({"type": CLEAR_THINKING, "keep": {"type": "thinking_turns", "value": 0}}),
        "refused",
        f"{CLEAR_THINKING}.keep: ",
    ),
    Case(
        "ClearThinking20251015EditParam.keep",
        edits({"type": CLEAR_THINKING, "keep": "all"}),
        "declared",
        "`clear_thinking_20251015` without `thinking`",
    ),
    Case(
        "ClearToolUses20250919EditParam.keep",
        edits({"type": CLEAR_TOOLS, "keep": {"type": "thinking_turns", "value": 1}}),
        "refused",
        f"{CLEAR_TOOLS}.keep: ",
    ),
    Case(
        "ClearToolUses20250919EditParam.clear_at_least",
        edits({"type": CLEAR_TOOLS, "clear_at_least": {"type": "tool_uses", "value": 1}}),
        "refused",
        f"{CLEAR_TOOLS}.clear_at_least: ",
    ),
    Case(
        "Compact20260112EditParam.trigger",
        edits({"type": COMPACT, "trigger": {"type": "tool_uses", "value": 1}}),
        "refused",
        f"{COMPACT}.trigger: ",
    ),
    Case(
        "Compact20260112EditParam.trigger",
        edits({"type": COMPACT, "trigger": {"type": "input_tokens", "value": 10_000}}),
        "declared",
        "with a `trigger` below 50,000 tokens",
    ),
    # Not in the SDK's types: fields of older versions, of other servers, and of other APIs.
    Case("", messages(temperature=1.5), "declared", "`temperature` from 1 to 2"),
    Case("", messages(temperature=2.5), "refused", "temperature: "),
    Case("", messages(top_p=1.5), "refused", "top_p: "),
    Case("", messages(top_k=-2), "refused", "top_k: "),
    Case("", messages(temperature=1.0, top_p=0.9), "declared", "together"),
    Case("", messages(stop=["a"]), "refused", "stop: Extra inputs are not permitted"),
    Case("", messages(response_format={"type": "json_object"}), "refused", "response_format: Extra inputs"),
    Case(
        "DocumentBlockParam.citations",
        blocks(
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "a"},
                "citations": {"enabled": True},
            }
        ),
        "declared",
        "and of documents (`citations.enabled`)",
    ),
    Case(
        "ToolParam.allowed_callers", tool(allowed_callers=["code_execution_20260120"]), "declared", "`allowed_callers`"
    ),
    Case("", messages(new_field=1), "declared", "unknown fields in all APIs"),
]


# Chat Completions.

FUNCTION: Json = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT_CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
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


CHAT = [
    Case("CompletionCreateParamsStreaming.messages", {"messages": []}, "refused", "'messages'"),
    Case(
        "CompletionCreateParamsStreaming.frequency_penalty", chat(frequency_penalty=3), "refused", "frequency_penalty"
    ),
    Case("CompletionCreateParamsStreaming.presence_penalty", chat(presence_penalty=-3), "refused", "presence_penalty"),
    Case("CompletionCreateParamsStreaming.temperature", chat(temperature=2.5), "refused", "temperature"),
    Case(
        "CompletionCreateParamsStreaming.temperature",
        chat(temperature=0.5, reasoning_effort="low"),
        "declared",
        "sampling fields, `logprobs` and `stop` beside reasoning",
    ),
    Case("CompletionCreateParamsStreaming.top_p", chat(top_p=1.5), "refused", "top_p"),
    Case("CompletionCreateParamsStreaming.n", chat(n=0), "refused", "'n'"),
    Case("CompletionCreateParamsStreaming.n", chat(n=129), "refused", "'n'"),
    Case("CompletionCreateParamsStreaming.seed", chat(seed=2**70), "declared", "a `seed` of more than 64 bits"),
    Case("CompletionCreateParamsStreaming.stop", chat(stop=[""]), "refused", "'stop'"),
    Case("CompletionCreateParamsStreaming.stop", chat(stop=list("abcde")), "declared", "more than four `stop` strings"),
    Case("CompletionCreateParamsStreaming.logit_bias", chat(logit_bias={"5": 101}), "declared", "`logit_bias` beyond"),
    Case(
        "CompletionCreateParamsStreaming.logit_bias", chat(logit_bias={"foo": 1}), "declared", "keys other than token"
    ),
    Case("CompletionCreateParamsStreaming.top_logprobs", chat(top_logprobs=2), "refused", "top_logprobs"),
    Case(
        "CompletionCreateParamsStreaming.top_logprobs", chat(logprobs=True, top_logprobs=21), "refused", "top_logprobs"
    ),
    Case("CompletionCreateParamsStreaming.max_tokens", chat(max_tokens=-1), "refused", "max_tokens"),
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
    Case("CompletionCreateParamsStreaming.metadata", chat(metadata={"a": LONG * 2}), "declared", "any `metadata`"),
    Case("CompletionCreateParamsStreaming.modalities", chat(modalities=["image"]), "refused", "modalities"),
    Case("CompletionCreateParamsStreaming.modalities", chat(modalities=["text", "audio"]), "refused", "modalities"),
    Case("CompletionCreateParamsStreaming.moderation", chat(moderation={"model": "m"}), "noted", "moderation"),
    Case("CompletionCreateParamsStreaming.store", chat(store=True), "noted", "store"),
    Case(
        "CompletionCreateParamsStreaming.web_search_options", chat(web_search_options={}), "noted", "web_search_options"
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
    Case("CompletionCreateParamsStreaming.user", chat(user=5), "declared", "any length and form of `user`"),
    Case(
        "CompletionCreateParamsStreaming.prompt_cache_retention",
        chat(prompt_cache_retention="1y"),
        "declared",
        "`prompt_cache_retention`",
    ),
    Case("CompletionCreateParamsStreaming.service_tier", chat(service_tier="gold"), "declared", "any `service_tier`"),
    Case(
        "CompletionCreateParamsStreaming.reasoning_effort", chat(reasoning_effort="huge"), "refused", "reasoning_effort"
    ),
    Case("CompletionCreateParamsStreaming.verbosity", chat(verbosity="huge"), "refused", "verbosity"),
    Case(
        "CompletionCreateParamsStreaming.stream_options",
        chat(stream_options={"include_usage": True}),
        "declared",
        "`stream_options` without `stream`",
    ),
    Case("CompletionCreateParamsStreaming.tools", chat(tools=[]), "declared", "empty `tools`"),
    Case(
        "CompletionCreateParamsStreaming.tools", chat(tools=[FUNCTION, FUNCTION]), "declared", "two tools with one name"
    ),
    Case("CompletionCreateParamsStreaming.tool_choice", chat(tool_choice="required"), "refused", "tool_choice"),
    Case(
        "CompletionCreateParamsStreaming.tool_choice",
        chat(tool_choice="any", tools=[FUNCTION]),
        "refused",
        "tool_choice",
    ),
    Case("CompletionCreateParamsStreaming.tool_choice", chat(tool_choice="auto"), "declared", "(`auto` or `none`)"),
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
        "CompletionCreateParamsStreaming.functions", chat(functions=[{"name": "a b"}]), "refused", "functions[0].name"
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
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "b"}}]},
            },
            tools=[FUNCTION],
        ),
        "refused",
        "tool_choice.allowed_tools.tools[0]",
    ),
    Case("FunctionDefinition.name", function(name="two words"), "refused", "tools[0].function.name"),
    Case("FunctionDefinition.name", function(name="x" * 65), "refused", "tools[0].function.name"),
    Case("FunctionDefinition.parameters", function(parameters=OPEN_SCHEMA), "declared", "`oneOf` at the top"),
    Case("FunctionDefinition.description", function(description=100 * LONG), "declared", "descriptions of any length"),
    Case("FunctionDefinition.strict", function(strict=True), "noted", "strict"),
    Case(
        "CustomFormatGrammarGrammar.definition",
        chat(
            tools=[
                {
                    "type": "custom",
                    "custom": {
                        "name": "patch",
                        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
                    },
                }
            ]
        ),
        "refused",
        "tools[0].custom.format.grammar.definition",
    ),
    Case("JSONSchema.name", json_schema(name="two words"), "refused", "response_format.json_schema.name"),
    Case("JSONSchema.name", json_schema(name="x" * 65), "refused", "response_format.json_schema.name"),
    Case("JSONSchema.name", json_schema(name=None), "declared", "a `json_schema` without `name`"),
    Case("JSONSchema.schema", json_schema(schema=OPEN_SCHEMA), "declared", "JSON Schemas of any form"),
    Case("JSONSchema.description", json_schema(description="A plan."), "declared", "`name` and `description` of an"),
    Case("ResponseFormatJSONSchema.type", chat(response_format={"type": "yaml"}), "refused", "response_format"),
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
    Case("ChatCompletionUserMessageParam.content", chat({"role": "user"}), "refused", "messages[0].content"),
    Case("ChatCompletionUserMessageParam.role", chat({"role": "robot", "content": "a"}), "refused", "messages[0].role"),
    Case(
        "ChatCompletionUserMessageParam.name",
        chat(USER | {"name": "a <b>"}),
        "declared",
        "names of participants with any characters",
    ),
    Case(
        "ChatCompletionSystemMessageParam.content",
        chat({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}]}, USER),
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
        "ChatCompletionToolMessageParam.tool_call_id", chat(USER, CHAT_RESULT), "refused", "messages with role 'tool'"
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
        "ChatCompletionFunctionMessageParam.name", chat(USER, {"role": "function", "content": "a"}), "refused", "name"
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
    Case("FileFile.file_id", user_part(type="file", file={"file_id": "f"}), "refused", "messages[0].content[0].file"),
    Case(
        "FileFile.file_data",
        user_part(type="file", file={"file_data": "?"}),
        "refused",
        "messages[0].content[0].file.file_data",
    ),
    Case(
        "ChatCompletionContentPartTextParam.type", user_part(type="poem", poem="a"), "refused", "messages[0].content[0]"
    ),
    *(
        Case("", chat(**{name: "a"}), "refused", name)
        for name in ("system", "instructions", "max_output_tokens", "stop_sequences")
    ),
    Case("", chat(new_field=1), "declared", "unknown fields in all APIs"),
]


# Responses.

OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "a"}
FLAT_CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
FLAT_FUNCTION: Json = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}


def responses(*items: Json, **fields: Any) -> Json:
    """A request with these items, or with a text."""
    return {"input": [*items] if items else "Hi.", "store": False} | fields


def text_format(**fields: Any) -> Json:
    return responses(text={"format": {"type": "json_schema", "name": "plan", "schema": SCHEMA} | fields})


def managed(**fields: Any) -> Json:
    return responses(context_management=[{"type": "compaction", "compact_threshold": 100_000} | fields])


RESPONSES = [
    Case("ResponseCreateParamsStreaming.input", {"model": "m"}, "refused", "input"),
    Case("ResponseCreateParamsStreaming.input", responses(input=[]), "declared", "an empty `input`"),
    Case("ResponseCreateParamsStreaming.conversation", responses(conversation="c"), "refused", "conversation"),
    Case("ResponseCreateParamsStreaming.prompt", responses(prompt={"id": "p"}), "refused", "prompt"),
    Case("ResponseCreateParamsStreaming.background", responses(background=True), "refused", "background"),
    Case("ResponseCreateParamsStreaming.include", responses(include=["all"]), "refused", "include[0]"),
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
    Case("ResponseCreateParamsStreaming.max_tool_calls", responses(max_tool_calls=0), "refused", "max_tool_calls"),
    Case("ResponseCreateParamsStreaming.metadata", responses(metadata={"a": "x" * 513}), "refused", "metadata.a"),
    Case("ResponseCreateParamsStreaming.metadata", responses(metadata={"k" * 65: ""}), "refused", "metadata"),
    Case(
        "ResponseCreateParamsStreaming.metadata",
        responses(metadata=dict.fromkeys(map(str, range(17)), "")),
        "refused",
        "metadata",
    ),
    Case("ResponseCreateParamsStreaming.moderation", responses(moderation={"model": "m"}), "noted", "moderation"),
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
    Case("ResponseCreateParamsStreaming.user", responses(user=LONG), "declared", "any length and form of `user`"),
    Case(
        "ResponseCreateParamsStreaming.service_tier", responses(service_tier="gold"), "declared", "any `service_tier`"
    ),
    Case(
        "ResponseCreateParamsStreaming.stream_options",
        responses(stream_options={}),
        "declared",
        "Chat and Responses: `stream_options` without `stream`",
    ),
    Case("ResponseCreateParamsStreaming.temperature", responses(temperature=-1), "refused", "temperature"),
    Case(
        "ResponseCreateParamsStreaming.temperature",
        responses(temperature=0.5, reasoning={"effort": "high"}),
        "declared",
        "beside reasoning",
    ),
    Case("ResponseCreateParamsStreaming.top_logprobs", responses(top_logprobs=21), "refused", "top_logprobs"),
    Case("ResponseCreateParamsStreaming.top_p", responses(top_p=2), "refused", "top_p"),
    Case("ResponseCreateParamsStreaming.truncation", responses(truncation="some"), "refused", "truncation"),
    Case("ResponseCreateParamsStreaming.tool_choice", responses(tool_choice="required"), "refused", "tool_choice"),
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
    Case("ResponseCreateParamsStreaming.tools", responses(tools=[{"type": "robot"}]), "noted", "robot"),
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
    Case("ContextManagement.compact_threshold", managed(compact_threshold=5000), "declared", "any `compact_threshold`"),
    Case("ResponseFormatTextJSONSchemaConfigParam.name", text_format(name="two words"), "refused", "text.format.name"),
    Case("ResponseFormatTextJSONSchemaConfigParam.name", text_format(name="x" * 65), "refused", "text.format.name"),
    Case("ResponseFormatTextJSONSchemaConfigParam.name", text_format(name=None), "refused", "text.format.name"),
    Case("ResponseFormatTextJSONSchemaConfigParam.schema", text_format(schema=None), "refused", "text.format.schema"),
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
    Case("ResponseFormatJSONObject.type", responses(text={"format": {"type": "xml"}}), "refused", "text.format.type"),
    Case("ResponseTextConfigParam.verbosity", responses(text={"verbosity": "huge"}), "refused", "text.verbosity"),
    Case("Reasoning.effort", responses(reasoning={"effort": "huge"}), "refused", "reasoning.effort"),
    Case("Reasoning.summary", responses(reasoning={"summary": "long"}), "refused", "reasoning.summary"),
    Case("Reasoning.context", responses(reasoning={"context": "some"}), "refused", "reasoning.context"),
    Case("Reasoning.mode", responses(reasoning={"mode": "pro"}), "declared", "`reasoning.mode`"),
    Case("FunctionToolParam.name", responses(tools=[FLAT_FUNCTION | {"name": "a.b"}]), "refused", "tools[0].name"),
    Case("FunctionToolParam.name", responses(tools=[FLAT_FUNCTION | {"name": "x" * 65}]), "refused", "tools[0].name"),
    Case(
        "FunctionToolParam.parameters",
        responses(tools=[FLAT_FUNCTION | {"parameters": OPEN_SCHEMA}]),
        "declared",
        "`oneOf` at the top",
    ),
    Case("FunctionToolParam.strict", responses(tools=[FLAT_FUNCTION | {"strict": True}]), "noted", "strict"),
    Case(
        "FunctionToolParam.strict",
        responses(tools=[FLAT_FUNCTION | {"strict": None}]),
        "declared",
        "a function without `strict`",
    ),
    Case("CustomToolParam.name", responses(tools=[{"type": "custom"}]), "refused", "tools[0].name"),
    Case(
        "Grammar.definition",
        responses(tools=[{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark"}}]),
        "refused",
        "tools[0].format.definition",
    ),
    Case(
        "Grammar.syntax",
        responses(
            tools=[{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "bnf", "definition": "a"}}]
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
        responses(tools=[{"type": "file_search", "vector_store_ids": []}], tool_choice={"type": "file_search"}),
        "refused",
        "tool_choice",
    ),
    Case(
        "ResponseFunctionToolCallParam.call_id", responses(FLAT_CALL | {"call_id": None}), "refused", "input[0].call_id"
    ),
    Case("ResponseFunctionToolCallParam.call_id", responses(USER, FLAT_CALL), "declared", "calls without outputs"),
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
        responses(*[{"type": "message", "id": "msg_1", "role": "assistant", "content": "a"}] * 2, USER),
        "declared",
        "items with one id",
    ),
    Case(
        "EasyInputMessageParam.content",
        responses({"role": "user", "content": [{"type": "output_text", "text": "a"}]}),
        "declared",
        "content types of another role",
    ),
    Case("EasyInputMessageParam.role", responses({"role": "tool", "content": "a"}), "refused", "input[0].role"),
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
        responses({"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,"}]}),
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
    Case("CompactionTrigger.type", responses({"type": "compaction_trigger"}, USER), "refused", "input[0]"),
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
