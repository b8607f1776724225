"""Messages requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor_cases import LONG, OPEN_SCHEMA, PNG, SCHEMA, USER, Case, Json

TOO_MANY = {"type": "ephemeral", "ttl": "1h"}
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
    return messages(
        messages=[*before, {"role": role, "content": [*content]}, *([USER] if before else [])]
    )


def loop(*results: Json, calls: tuple[Json, ...] = (CALL,), **fields: Any) -> Json:
    """Calls of the assistant, and results."""
    history = [
        USER,
        {"role": "assistant", "content": [*calls]},
        {"role": "user", "content": [*results]},
    ]
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

CASES = [
    Case(
        "MessageCreateParamsStreaming.max_tokens",
        messages(max_tokens=None),
        "refused",
        "max_tokens: Field required",
    ),
    Case(
        "MessageCreateParamsStreaming.max_tokens",
        messages(max_tokens=-1),
        "refused",
        "max_tokens: ",
    ),
    Case(
        "MessageCreateParamsStreaming.max_tokens",
        messages(max_tokens=10**9),
        "declared",
        "reduced, not refused",
    ),
    Case("MessageCreateParamsStreaming.messages", messages(messages=[]), "refused", "messages: "),
    Case(
        "MessageCreateParamsStreaming.messages",
        messages(messages=[{"role": "assistant", "content": "a"}, USER]),
        "declared",
        "a first message of the assistant",
    ),
    Case(
        "MessageCreateParamsStreaming.cache_control",
        messages(cache_control=TOO_MANY),
        "declared",
        "`cache_control` in any number, order",
    ),
    Case(
        "MessageCreateParamsStreaming.stop_sequences",
        messages(stop_sequences=[""]),
        "refused",
        "stop_sequences: ",
    ),
    Case(
        "MessageCreateParamsStreaming.stop_sequences",
        messages(stop_sequences=[" "]),
        "declared",
        "`stop_sequences` of white space",
    ),
    Case(
        "MessageCreateParamsStreaming.system",
        messages(system=[{"type": "text", "text": ""}]),
        "declared",
        "empty text",
    ),
    Case(
        "MessageCreateParamsStreaming.container",
        messages(container="c_1"),
        "refused",
        "container: ",
    ),
    Case(
        "MessageCreateParamsStreaming.mcp_servers",
        messages(mcp_servers=[{"url": "u"}]),
        "refused",
        "mcp_servers: ",
    ),
    Case(
        "MessageCreateParamsStreaming.thread",
        messages(thread={"type": "create"}),
        "refused",
        "thread: ",
    ),
    Case(
        "MessageCreateParamsStreaming.compaction",
        messages(compaction={"type": "summarize"}),
        "refused",
        "compaction: ",
    ),
    Case(
        "MessageCreateParamsStreaming.service_tier",
        messages(service_tier="flex"),
        "declared",
        "any `service_tier`",
    ),
    Case("MessageCreateParamsStreaming.speed", messages(speed="fast"), "declared", "`speed`"),
    Case(
        "MessageCreateParamsStreaming.inference_geo",
        messages(inference_geo="eu"),
        "declared",
        "`inference_geo`",
    ),
    Case(
        "MessageCreateParamsStreaming.fallbacks",
        messages(fallbacks=[{"model": "b"}]),
        "declared",
        "`fallbacks`",
    ),
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
    Case(
        "MessageCreateParamsStreaming.diagnostics",
        messages(diagnostics={}),
        "declared",
        "`diagnostics`",
    ),
    Case(
        "MetadataParam.user_id",
        messages(metadata={"user_id": LONG}),
        "declared",
        "Messages: of `metadata.user_id`",
    ),
    Case(
        "TokenTaskBudgetParam.total",
        messages(output_config={"task_budget": {"type": "tokens", "total": 1}}),
        "declared",
        "`task_budget`",
    ),
    Case(
        "OutputConfigParam.effort",
        messages(output_config={"effort": "huge"}),
        "refused",
        "output_config.effort: ",
    ),
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
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(thinking={"type": "on"}),
        "refused",
        "thinking: ",
    ),
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
    Case(
        "ThinkingConfigEnabledParam.display",
        messages(thinking=ENABLED | {"display": "x"}),
        "refused",
        "display: ",
    ),
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(thinking=ENABLED, temperature=0.5),
        "declared",
        "with thinking on (natively only `temperature` 1",
    ),
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(thinking=ENABLED, top_k=5),
        "declared",
        "with thinking on",
    ),
    Case(
        "ThinkingConfigEnabledParam.type",
        messages(thinking=ENABLED, top_p=0.5),
        "declared",
        "`top_p` from 0.95",
    ),
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
        messages(
            thinking={"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}
        ),
        "declared",
        "`thinking.block_binding`",
    ),
    Case(
        "ThinkingBlockParam.signature",
        messages(
            messages=[
                USER,
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, CALL]},
                USER,
            ]
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
    Case(
        "ThinkingBlockParam.thinking",
        blocks(THINKING),
        "refused",
        "`thinking` blocks can only be in `assistant`",
    ),
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
        "UserMessageParam.role",
        messages(messages=[{"role": "tool", "content": "a"}]),
        "refused",
        "messages.0.role: ",
    ),
    Case(
        "UserMessageParam.content",
        messages(messages=[{"role": "user"}]),
        "refused",
        "messages.0.content: ",
    ),
    Case(
        "UserMessageParam.content",
        messages(messages=[{"role": "user", "content": []}]),
        "declared",
        "messages with empty content",
    ),
    Case("AssistantMessageParam.content", prefill("So "), "refused", "trailing whitespace"),
    Case(
        "SystemMessageParam.content",
        blocks(CALL, role="system"),
        "refused",
        "`tool_use` blocks are not allowed",
    ),
    Case(
        "SystemMessageParam.clear_at",
        messages(messages=[USER, {"role": "system", "content": "a", "clear_at": "soon"}]),
        "refused",
        "clear_at: ",
    ),
    Case(
        "TextBlockParam.text",
        blocks({"type": "text"}),
        "refused",
        "messages.0.content.0.text.text: Field required",
    ),
    Case(
        "TextBlockParam.text",
        blocks({"type": "text", "text": " "}),
        "declared",
        "text of white space",
    ),
    Case(
        "TextBlockParam.cache_control",
        blocks(*[{"type": "text", "text": "a", "cache_control": TOO_MANY}] * 5),
        "declared",
        "`cache_control` in any number",
    ),
    Case(
        "TextBlockParam.citations",
        blocks({"type": "text", "text": "a", "citations": []}),
        "declared",
        "unknown fields",
    ),
    Case(
        "ImageBlockParam.source",
        blocks({"type": "image"}),
        "refused",
        "messages.0.content.0.image.source: ",
    ),
    Case(
        "ImageBlockParam.transformations",
        blocks(
            {"type": "image", "source": source(), "transformations": {"oversized_image": "error"}}
        ),
        "declared",
        "any content and size of inline data",
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
    Case(
        "ToolUseBlockParam.input",
        loop(RESULT, calls=(CALL | {"input": 5},)),
        "refused",
        "tool_use.input: ",
    ),
    Case(
        "ToolUseBlockParam.id",
        loop(RESULT, calls=(CALL, CALL)),
        "refused",
        "`tool_use` ids must be unique",
    ),
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
    Case(
        "ToolUseBlockParam.input",
        blocks(CALL),
        "refused",
        "`tool_use` blocks can only be in `assistant` messages",
    ),
    Case(
        "ToolUseBlockParam.id", blocks(CALL, role="assistant"), "declared", "calls without results"
    ),
    Case(
        "ToolResultBlockParam.tool_use_id",
        loop(RESULT | {"tool_use_id": "b"}),
        "refused",
        "messages.2.content.0: unexpected `tool_use_id`",
    ),
    Case(
        "ToolResultBlockParam.tool_use_id",
        loop(RESULT, RESULT),
        "declared",
        "several results of a call",
    ),
    Case(
        "ToolResultBlockParam.tool_use_id",
        messages(
            messages=[*loop(RESULT)["messages"][:2], USER, {"role": "user", "content": [RESULT]}]
        ),
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
    Case(
        "ToolParam.input_schema",
        messages(tools=[{"name": "look"}]),
        "refused",
        "tools.0.custom.input_schema: ",
    ),
    Case(
        "ToolParam.input_schema", tool(input_schema=OPEN_SCHEMA), "declared", "`oneOf` at the top"
    ),
    Case(
        "ToolParam.input_schema",
        tool(input_schema={}),
        "declared",
        "an `input_schema` without `type: object`",
    ),
    Case(
        "ToolParam.description",
        tool(description=100 * LONG),
        "declared",
        "descriptions of any length",
    ),
    Case(
        "ToolParam.type",
        tool(type="robot_20250101"),
        "refused",
        "tools.0: Input tag 'robot_20250101'",
    ),
    Case(
        "ToolParam.defer_loading",
        tool(defer_loading=True),
        "declared",
        "tools that all have `defer_loading`",
    ),
    Case(
        "ToolParam.cache_control",
        messages(
            tools=[TOOL, TOOL | {"name": "b", "defer_loading": True, "cache_control": TOO_MANY}]
        ),
        "declared",
        "`cache_control` in any number, order and place",
    ),
    Case("ToolParam.strict", tool(strict=True), "noted", "strict"),
    Case(
        "ToolChoiceAnyParam.type",
        messages(tool_choice={"type": "any"}),
        "refused",
        "tool_choice: may only be specified while providing tools",
    ),
    Case(
        "ToolChoiceAnyParam.type",
        messages(tool_choice={"type": "all"}, tools=[TOOL]),
        "refused",
        "tool_choice: ",
    ),
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
    Case(
        "ContextManagementConfigParam.edits",
        edits({"type": "clear_all_2099"}),
        "declared",
        "edits of unknown types",
    ),
    Case(
        "ContextManagementConfigParam.edits",
        edits({"type": CLEAR_TOOLS}, {"type": CLEAR_THINKING}),
        "declared",
        "context edits in any order",
    ),
    *(
        Case(
            f"{name}.type",
            edits({"type": type}, {"type": type}),
            "refused",
            f"'{type}' may be set only once",
        )
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
    Case(
        "",
        messages(response_format={"type": "json_object"}),
        "refused",
        "response_format: Extra inputs",
    ),
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
        "ToolParam.allowed_callers",
        tool(allowed_callers=["code_execution_20260120"]),
        "declared",
        "`allowed_callers`",
    ),
    Case("", messages(new_field=1), "declared", "unknown fields in all APIs"),
]
