"""Messages requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor.case import LONG, OPEN_SCHEMA, Case, accepted, declared, noted
from tests.kit.bodies import (
    PNG,
    SCHEMA,
    USER,
    Json,
    assistant,
    block,
    message,
    messages,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)

TOO_MANY = block("ephemeral", ttl="1h")
TOOL = tool()
CALL = tool_use()
RESULT = tool_result()
THINKING = block("thinking", thinking="Hm.", signature="c2ln")
ENABLED = block("enabled", budget_tokens=1024)
SEARCH = block("web_search_20250305", name="web_search")
CLEAR_THINKING = "clear_thinking_20251015"
CLEAR_TOOLS = "clear_tool_uses_20250919"
COMPACT = "compact_20260112"
PATTERN = "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
IMAGE_TYPES = "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
TURNS = "Input should be 'all' or a number of `thinking_turns` from 1"
LIFETIMES = "Input should be '5m' or '1h'"
NO_FILES = "file references are not supported by this server; send the content itself"
NOT_RUN = "this server does not run 'web_search', which the choice requires"
ALL_BLOCKS = (
    "text image document search_result thinking redacted_thinking tool_use tool_result "
    "server_tool_use mcp_tool_use web_search_tool_result web_fetch_tool_result "
    "code_execution_tool_result bash_code_execution_tool_result "
    "text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_result "
    "mcp_tool_listing advisor_tool_result fallback container_upload compaction "
    "tool_addition tool_removal"
)
RESULT_BLOCKS = "text image document search_result tool_reference browser_state"


def refused(field: str, body: Any, text: str, at: str = "") -> Case:
    """`text`: begins with a colon for the field's own place."""
    return Case(field, body, "refused", field + text if text.startswith(":") else text, at)


def tags(place: str, tag: str, known: str) -> str:
    """The message for an unknown type."""
    names = ", ".join(f"'{name}'" for name in known.split())
    return (
        f"{place}: Input tag '{tag}' found using 'type' does not match any of the expected tags: "
        f"{names}"
    )


def blocks(*content: Any, role: str = "user") -> Json:
    """A message with these blocks, after one of the user if it is the assistant's."""
    around = [USER] if role == "assistant" else []
    return messages(*around, message(role, *content), *around)


def loop(*results: Json, calls: tuple[Json, ...] = (CALL,), **fields: Any) -> Json:
    """Calls of the assistant, and results."""
    return messages(USER, assistant(*calls), user(*results), **fields)


def edits(*edits: Json) -> Json:
    """A request with context edits."""
    return messages(context_management={"edits": [*edits]})


def prefill(said: str = "So", **fields: Any) -> Json:
    """A request for the continuation of a text."""
    return messages(USER, assistant(text(said)), **fields)


def source(**fields: Any) -> Json:
    return {"type": "base64", "media_type": "image/png", "data": PNG} | fields


def image(media_type: str, data: str) -> Json:
    return block("image", source=source(media_type=media_type, data=data))


def document(media_type: str, data: str) -> Json:
    return block("document", source=source(media_type=media_type, data=data))


def in_block(field: str, content: Any, text: str, at: str = "") -> Case:
    """A content block of the user; the message names its place before the text."""
    place = "messages.0.content.0"
    return refused(field, blocks(content), place + text, at and place + at)


def at_place(place: str, body: Any, text: str) -> Case:
    in_content = not place or place.startswith(".")
    return in_block("", body, text) if in_content else refused("", body, text)


def in_edit(field: str, type: str, text: str, **fields: Any) -> Case:
    """A context edit; the message names its type before the text."""
    return refused(field, edits(block(type, **fields)), f"context_management.edits.{type}{text}")


def offered(**fields: Any) -> Json:
    return messages(tools=[tool(**fields)])


def enabled(**fields: Any) -> Json:
    return messages(thinking=ENABLED | fields)


def answer_format(type: str, **fields: Any) -> Json:
    return messages(output_config={"format": block(type, **fields)})


def marked(**fields: Any) -> Json:
    return text("x", cache_control=block("ephemeral", **fields))


REFUSED_VALUES: dict[str, list[tuple[str, Any]]] = {
    "Field required": [
        ("messages.1.content", messages(USER, {"role": "system"})),
        ("tools.0.custom.name", messages(tools=[{"input_schema": {}}])),
        ("messages.0.role", messages({"content": "x"})),
        (".tool_use.name", block("tool_use", id="a", input={})),
        (
            ".tool_result.content.0.text.text",
            block("tool_result", tool_use_id="a", content=[block("text")]),
        ),
        (".image.source.base64.data", block("image", source=block("base64"))),
        ("tool_choice.tool.name", messages(tools=[TOOL], tool_choice=block("tool"))),
    ],
    "Input should be a valid dictionary": [
        ("messages.0", messages(5)),
        ("messages.0.content.0", messages({"role": "user", "content": ["x"]})),
        ("tools.0.input_schema", messages(tools=[{"input_schema": []}])),
        ("context_management", messages(context_management=[])),
        ("context_management.edits.0", messages(context_management={"edits": [5]})),
    ],
    "Input should be '5m' or '1h'": [
        ("system.0.cache_control.ephemeral.ttl", messages(system=[marked(ttl="2h")])),
        (".text.cache_control.ephemeral.ttl", marked(ttl=3600)),
        ("tools.0.cache_control.ephemeral.ttl", offered(cache_control=block("ephemeral", ttl="x"))),
    ],
    "Input should be a valid string": [
        (
            ".image.source.base64.data",
            block("image", source=block("base64", media_type="image/png", data=5)),
        ),
        (".text.text", text(1)),
    ],
    "Unable to extract tag using discriminator 'type'": [
        ("", {"text": "x"}),
        ("context_management.edits.0", messages(context_management={"edits": [{}]})),
    ],
    "Extra inputs are not permitted": [("stop", messages(stop=["a"]))],
    "`tool_result` blocks can only be in `user` messages": [
        ("messages.1", messages(USER, assistant(RESULT)))
    ],
    "`tool_result` blocks are not allowed in `system` messages": [
        ("messages.1.content.0", messages(USER, message("system", RESULT)))
    ],
    "`tool_removal` blocks can only be in `system` messages": [
        ("", block("tool_removal", tool=block("tool_reference", name="x")))
    ],
    "Tool names must be unique.": [("tools", messages(tools=[TOOL, tool(description="again")]))],
    "Input should be a valid string or list": [("messages.0.content", messages(user(5)))],
    "Input should be a valid boolean": [("stream", messages(stream="yes"))],
    "Input should be a valid number": [("temperature", messages(temperature="hot"))],
    "Input should be a valid list": [
        ("context_management.edits", messages(context_management={"edits": 1}))
    ],
    "Input should be greater than or equal to 1024": [
        ("thinking.adaptive.budget_tokens", messages(thinking=block("adaptive", budget_tokens=64)))
    ],
}
"""Messages of refusals, each with places that it names first, and bodies. Where the place is "" or
begins with a dot, it is in the first content block, and the body is that block."""
UNKNOWN_TYPES: list[tuple[str, Any, str]] = [
    ("system.0", messages(system=[block("x")]), "text"),
    (".source", block("image", source=block("x")), "base64 url file"),
    (".source", block("document", source=block("x")), "base64 url file text content"),
    (
        ".source.content.0",
        block("document", source=block("content", content=[block("x")])),
        "text image",
    ),
    (".content.0", block("search_result", content=[block("x")]), "text"),
    (
        ".tool",
        block("tool_addition", tool=block("x")),
        "tool_reference tool_definition mcp_tool_reference mcp_toolset_reference",
    ),
]
"""Places and bodies, as above, with a type `x`, and the types that are known there."""

CASES: dict[str, list[Case]] = {
    "MessageCreateParamsStreaming": [
        refused("max_tokens", messages(max_tokens=None), ": Field required"),
        refused(
            "max_tokens", messages(max_tokens=-1), ": Input should be greater than or equal to 0"
        ),
        declared("max_tokens", messages(max_tokens=10**9), "reduced, not refused"),
        refused("max_tokens", messages(max_tokens="9"), ": Input should be a valid integer"),
        refused("messages", messages(messages=[]), ": at least one message is required"),
        declared("messages", messages(assistant("a"), USER), "a first message of the assistant"),
        refused("messages", {}, ": Field required"),
        refused("messages", messages(messages="x"), ": Input should be a valid list"),
        declared(
            "cache_control",
            messages(cache_control=TOO_MANY),
            "`cache_control` in any number, order",
        ),
        refused("cache_control", messages(cache_control=block("x")), tags("", "x", "ephemeral")),
        refused(
            "stop_sequences",
            messages(stop_sequences=[""]),
            ": each stop sequence must be non-empty",
        ),
        declared(
            "stop_sequences", messages(stop_sequences=[" "]), "`stop_sequences` of white space"
        ),
        declared("system", messages(system=[text("")]), "empty text"),
        refused("system", messages(system=5), ": Input should be a valid string or list"),
        refused("container", messages(container="c_1"), ": ..."),
        refused(
            "container",
            messages(
                container={"id": "c"},
                tools=[block("code_execution_20250825", name="code_execution")],
            ),
            ": not supported by this server",
        ),
        refused("mcp_servers", messages(mcp_servers=[{"url": "u"}]), ": ..."),
        refused("thread", messages(thread=block("create")), ": ..."),
        refused(
            "compaction", messages(compaction=block("summarize")), ": not supported by this server"
        ),
        declared("service_tier", messages(service_tier="flex"), "any `service_tier`"),
        declared("speed", messages(speed="fast"), "`speed`"),
        declared("inference_geo", messages(inference_geo="eu"), "`inference_geo`"),
        declared("fallbacks", messages(fallbacks=[{"model": "b"}]), "`fallbacks`"),
        declared(
            "fallback_credit_token", messages(fallback_credit_token="t"), "`fallback_credit_token`"
        ),
        declared(
            "billing_policy", messages(billing_policy=block("billing_policy")), "`billing_policy`"
        ),
        declared("diagnostics", messages(diagnostics={}), "`diagnostics`"),
    ],
    "MetadataParam": [
        declared(
            "user_id", messages(metadata={"user_id": LONG}), "Messages: of `metadata.user_id`"
        ),
    ],
    "TokenTaskBudgetParam": [
        declared(
            "total",
            messages(output_config={"task_budget": block("tokens", total=1)}),
            "`task_budget`",
        ),
    ],
    "OutputConfigParam": [
        refused(
            "effort",
            messages(output_config={"effort": "huge"}),
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ),
    ],
    "JSONOutputFormatParam": [
        refused("type", answer_format("json", schema={}), "output_config.format: ..."),
        refused("schema", answer_format("json_schema"), "output_config.format.schema: ..."),
        declared(
            "schema",
            answer_format("json_schema", schema=OPEN_SCHEMA),
            "objects without `additionalProperties: false`",
        ),
        declared(
            "schema",
            prefill(output_config={"format": block("json_schema", schema=SCHEMA)}),
            "with `output_config.format`",
        ),
        refused(
            "schema",
            messages(
                output_config={"format": block("json_schema", schema=SCHEMA)},
                output_format=block("json_schema", schema={}),
            ),
            "output_format: ...",
        ),
    ],
    "ThinkingConfigEnabledParam": [
        refused("type", messages(thinking=block("on")), "thinking: ..."),
        declared(
            "type",
            messages(thinking=ENABLED, temperature=0.5),
            "with thinking on (natively only `temperature` 1",
        ),
        declared("type", messages(thinking=ENABLED, top_k=5), "with thinking on"),
        declared("type", messages(thinking=ENABLED, top_p=0.5), "`top_p` from 0.95"),
        refused(
            "type",
            prefill(thinking=ENABLED),
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`...",
        ),
        refused(
            "type",
            messages(USER, assistant("So"), thinking=ENABLED),
            "messages.1.content.0.type: ...",
        ),
        declared(
            "type", loop(RESULT, thinking=ENABLED), "missing before a call while thinking is on"
        ),
        refused(
            "budget_tokens",
            messages(thinking=block("enabled")),
            "thinking.enabled.budget_tokens: Field required",
        ),
        refused(
            "budget_tokens",
            enabled(budget_tokens=1023),
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ),
        refused(
            "budget_tokens",
            enabled(budget_tokens=4096),
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
        ),
        refused("display", enabled(display="x"), "thinking.enabled.display: ..."),
    ],
    "ThinkingConfigAdaptiveParam": [
        declared(
            "type",
            prefill(thinking=block("adaptive")),
            "continues an assistant's message, with `adaptive` thinking",
        ),
    ],
    "ThinkingBlockBindingParam": [
        declared(
            "prefix_mismatch_behavior",
            messages(
                thinking=block("adaptive", block_binding={"prefix_mismatch_behavior": "error"})
            ),
            "`thinking.block_binding`",
        ),
    ],
    "ThinkingBlockParam": [
        declared(
            "signature",
            messages(USER, assistant(block("thinking", thinking="Hm."), CALL), USER),
            "thinking without a signature",
        ),
        declared(
            "thinking",
            blocks(THINKING | {"thinking": "Other."}, CALL, role="assistant"),
            "with other text than was signed",
        ),
        refused(
            "thinking",
            blocks(THINKING),
            "messages.0: `thinking` blocks can only be in `assistant`...",
        ),
        declared(
            "thinking",
            messages(USER, assistant(THINKING)),
            "a last message of the assistant that ends in thinking",
        ),
    ],
    "RedactedThinkingBlockParam": [
        declared(
            "data",
            blocks(block("redacted_thinking", data="foreign"), role="assistant"),
            "signatures of other servers",
        ),
    ],
    "UserMessageParam": [
        refused("role", messages(message("tool", "a")), "messages.0.role: ..."),
        refused("content", messages({"role": "user"}), "messages.0.content: Field required"),
        declared("content", messages(user()), "messages with empty content"),
    ],
    "AssistantMessageParam": [
        refused(
            "content",
            prefill("So "),
            "messages: final assistant content cannot end with trailing whitespace",
        ),
    ],
    "SystemMessageParam": [
        refused(
            "content",
            blocks(CALL, role="system"),
            "messages.0.content.0: `tool_use` blocks are not allowed...",
        ),
        refused(
            "clear_at",
            messages(USER, message("system", "a", clear_at="soon")),
            "messages.1.clear_at: ...",
        ),
    ],
    "TextBlockParam": [
        in_block("text", block("text"), ".text.text: Field required"),
        declared("text", blocks(text(" ")), "text of white space"),
        declared(
            "cache_control",
            blocks(*[text("a", cache_control=TOO_MANY)] * 5),
            "`cache_control` in any number",
        ),
        declared("citations", blocks(text("a", citations=[])), "unknown fields"),
    ],
    "ImageBlockParam": [
        in_block("source", block("image"), ".image.source: ..."),
        declared(
            "transformations",
            blocks(block("image", source=source(), transformations={"oversized_image": "error"})),
            "any content and size of inline data",
        ),
    ],
    "Base64ImageSourceParam": [
        in_block(
            "media_type",
            image("image/bmp", PNG),
            f".image.source.base64.media_type: {IMAGE_TYPES}",
            at=".source.media_type",
        ),
        in_block(
            "data",
            block("image", source=source(data="?")),
            ".image.source.base64: invalid base64 data",
        ),
    ],
    "URLImageSourceParam": [
        declared(
            "url",
            blocks(block("image", source=block("url", url="data:image/png;base64,AA=="))),
            "by `data:` or `http:` URL",
        ),
    ],
    "FileImageSourceParam": [
        in_block(
            "file_id", block("image", source=block("file", file_id="f")), f".source: {NO_FILES}"
        ),
    ],
    "Base64PDFSourceParam": [
        in_block(
            "media_type",
            document("application/msword", PNG),
            ".document.source.base64.media_type: Input should be 'application/pdf'",
            at=".source.media_type",
        ),
        in_block(
            "data",
            block("document", source=source(media_type="application/pdf", data="?")),
            ".pdf.source.base64.data: The PDF specified was not valid.",
        ),
    ],
    "FileDocumentSourceParam": [
        in_block(
            "file_id", block("document", source=block("file", file_id="f")), f".source: {NO_FILES}"
        ),
    ],
    "ContainerUploadBlockParam": [
        in_block(
            "file_id",
            block("container_upload", file_id="f"),
            ": container uploads are not supported by this server",
        ),
    ],
    "CompactionBlockParam": [
        declared(
            "content", blocks(block("compaction", content=""), role="assistant"), "an empty summary"
        ),
    ],
    "ToolUseBlockParam": [
        refused(
            "input",
            loop(RESULT, calls=(tool_use(input=5),)),
            "messages.1.content.0.tool_use.input: ...",
        ),
        refused(
            "input",
            blocks(CALL),
            "messages.0: `tool_use` blocks can only be in `assistant` messages",
        ),
        refused(
            "id",
            loop(RESULT, calls=(CALL, CALL)),
            "messages.1.content.1: `tool_use` ids must be unique",
        ),
        declared(
            "id", loop(tool_result(id="a.b:c"), calls=(tool_use(id="a.b:c"),)), "ids of any form"
        ),
        declared(
            "id",
            messages(*loop(RESULT)["messages"], *loop(RESULT)["messages"]),
            "calls of two messages with one id",
        ),
        declared("id", blocks(CALL, role="assistant"), "calls without results"),
        declared(
            "name",
            loop(RESULT, calls=(tool_use(name="two words"),)),
            "names of calls that no tool may have",
        ),
    ],
    "ToolResultBlockParam": [
        refused(
            "tool_use_id",
            loop(tool_result(id="b")),
            "messages.2.content.0: unexpected `tool_use_id`...",
        ),
        declared("tool_use_id", loop(RESULT, RESULT), "several results of a call"),
        declared(
            "tool_use_id",
            messages(*loop(RESULT)["messages"][:2], USER, user(RESULT)),
            "results later than in the next message",
        ),
        declared("content", loop(text("a"), RESULT), "text before results"),
    ],
    "ToolReferenceBlockParam": [
        declared(
            "tool_name",
            loop(tool_result(content=[block("tool_reference", tool_name="gone")]), tools=[TOOL]),
            "a `tool_reference` to an unknown tool",
        ),
    ],
    "ToolParam": [
        refused(
            "name", offered(name="two words"), f"tools.0.custom.name: {PATTERN}", at="tools.0.name"
        ),
        refused(
            "name", offered(name="x" * 129), f"tools.0.custom.name: {PATTERN}", at="tools.0.name"
        ),
        refused("name", messages(tools=[TOOL, TOOL]), "tools: Tool names must be unique."),
        refused(
            "input_schema", messages(tools=[{"name": "look"}]), "tools.0.custom.input_schema: ..."
        ),
        declared("input_schema", offered(input_schema=OPEN_SCHEMA), "`oneOf` at the top"),
        declared(
            "input_schema", offered(input_schema={}), "an `input_schema` without `type: object`"
        ),
        declared("description", offered(description=100 * LONG), "descriptions of any length"),
        refused("type", offered(type="robot_20250101"), "tools.0: Input tag 'robot_20250101'..."),
        declared(
            "defer_loading", offered(defer_loading=True), "tools that all have `defer_loading`"
        ),
        declared(
            "cache_control",
            messages(tools=[TOOL, tool(name="b", defer_loading=True, cache_control=TOO_MANY)]),
            "`cache_control` in any number, order and place",
        ),
        noted("strict", offered(strict=True), "strict"),
        declared(
            "allowed_callers",
            offered(allowed_callers=["code_execution_20260120"]),
            "`allowed_callers`",
        ),
    ],
    "ToolChoiceAnyParam": [
        refused(
            "type",
            messages(tool_choice=block("any")),
            "tool_choice: may only be specified while providing tools.",
        ),
        refused("type", messages(tool_choice=block("all"), tools=[TOOL]), "tool_choice: ..."),
        refused(
            "type",
            messages(tool_choice=block("any"), tools=[TOOL], thinking=ENABLED),
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
        declared(
            "type",
            messages(tool_choice=block("any"), tools=[TOOL], thinking=block("adaptive")),
            "`tool_choice` `any` or `tool` with `thinking.type` `adaptive`",
        ),
    ],
    "ToolChoiceToolParam": [
        refused(
            "name",
            messages(tool_choice=block("tool", name="b"), tools=[TOOL]),
            "tool_choice.tool.name: ...",
        ),
        refused(
            "type",
            messages(tool_choice=block("tool", name="look"), tools=[TOOL], thinking=ENABLED),
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
    ],
    "ContextManagementConfigParam": [
        declared("edits", edits(block("clear_all_2099")), "edits of unknown types"),
        declared(
            "edits", edits(block(CLEAR_TOOLS), block(CLEAR_THINKING)), "context edits in any order"
        ),
    ],
    "ClearThinking20251015EditParam": [
        in_edit("keep", CLEAR_THINKING, ".keep: ...", keep=block("thinking_turns", value=0)),
        declared(
            "keep",
            edits(block(CLEAR_THINKING, keep="all")),
            "`clear_thinking_20251015` without `thinking`",
        ),
        refused(
            "type",
            edits(block(CLEAR_THINKING), block(CLEAR_THINKING)),
            "context_management.edits: 'clear_thinking_20251015' may be set only once",
        ),
    ],
    "ClearToolUses20250919EditParam": [
        in_edit("keep", CLEAR_TOOLS, ".keep: ...", keep=block("thinking_turns", value=1)),
        in_edit(
            "clear_at_least",
            CLEAR_TOOLS,
            ".clear_at_least: ...",
            clear_at_least=block("tool_uses", value=1),
        ),
        refused(
            "type",
            edits(block(CLEAR_TOOLS), block(CLEAR_TOOLS)),
            "context_management.edits: 'clear_tool_uses_20250919' may be set only once",
        ),
    ],
    "Compact20260112EditParam": [
        in_edit("trigger", COMPACT, ".trigger: ...", trigger=block("tool_uses", value=1)),
        declared(
            "trigger",
            edits(block(COMPACT, trigger=block("input_tokens", value=10000))),
            "with a `trigger` below 50,000 tokens",
        ),
        refused(
            "type",
            edits(block(COMPACT), block(COMPACT)),
            "context_management.edits: 'compact_20260112' may be set only once",
        ),
    ],
    "DocumentBlockParam": [
        declared(
            "citations",
            blocks(
                block(
                    "document",
                    source=block("text", media_type="text/plain", data="a"),
                    citations={"enabled": True},
                )
            ),
            "and of documents (`citations.enabled`)",
        ),
    ],
    "": [
        in_block("", block("hologram"), tags("", "hologram", ALL_BLOCKS)),
        in_block(
            "",
            tool_result(content=[block("thinking", thinking="")]),
            tags(".content.0", "thinking", RESULT_BLOCKS),
        ),
        declared("", messages(temperature=1.5), "`temperature` from 1 to 2"),
        refused(
            "",
            messages(temperature=2.5),
            "temperature: Input should be less than or equal to 2",
            at="temperature",
        ),
        refused("", messages(top_p=1.5), "top_p: ..."),
        refused("", messages(top_k=-2), "top_k: ..."),
        declared("", messages(temperature=1.0, top_p=0.9), "together"),
        refused(
            "", messages(response_format=block("json_object")), "response_format: Extra inputs..."
        ),
        declared("", messages(new_field=1), "unknown fields in all APIs"),
        refused("", [], "The request body must be a JSON object."),
        refused("", "x", "The request body must be a JSON object."),
        refused("", None, "The request body must be a JSON object."),
        refused(
            "",
            loop(tool_result(content=[block("image", source=source(media_type="image/svg+xml"))])),
            f"messages.2.content.0.tool_result.content.0.image.source.base64.media_type: {IMAGE_TYPES}",
            at="messages.2.content.0.tool_result.content.0.source.media_type",
        ),
        in_block(
            "",
            image("image/png", "!!!"),
            ".image.source.base64: invalid base64 data",
            at=".source.data",
        ),
        in_block(
            "",
            image("image/png", "iVBORw0KGgo"),
            ".image.source.base64: invalid base64 data",
            at=".source.data",
        ),
        in_block(
            "",
            image("image/png", ""),
            ".image.source.base64: image cannot be empty",
            at=".source.data",
        ),
        in_block(
            "",
            document("application/pdf", "JVBER"),
            ".pdf.source.base64.data: The PDF specified was not valid.",
            at=".source.data",
        ),
        refused(
            "",
            messages(top_p=-0.5),
            "top_p: Input should be greater than or equal to 0",
            at="top_p",
        ),
        refused(
            "",
            messages(repetition_penalty=0),
            "repetition_penalty: Input should be greater than 0",
            at="repetition_penalty",
        ),
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}", keep="some"),
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}", keep=block("thinking_turns")),
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}", keep=block("x")),
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}", keep=3),
        in_edit("", CLEAR_TOOLS, ".keep: Input should be a number of `tool_uses`", keep=3),
        refused(
            "",
            edits(block(CLEAR_TOOLS, trigger=block("input_tokens", value=-3))),
            "context_management.edits.0.clear_tool_uses_20250919.trigger.value: Input should be greater than or equal to 0",
            at="context_management.edits.0.trigger.value",
        ),
        refused(
            "",
            edits(block(CLEAR_TOOLS, clear_tool_inputs="all")),
            "context_management.edits.0.clear_tool_uses_20250919.clear_tool_inputs: Input should be a valid boolean or list",
            at="context_management.edits.0.clear_tool_inputs",
        ),
        in_edit(
            "",
            COMPACT,
            ".trigger: Input should be a number of `input_tokens` from 1",
            trigger=block("input_tokens", value=0),
        ),
        refused(
            "",
            messages(tools=[SEARCH], tool_choice=block("any")),
            f"tool_choice: {NOT_RUN}",
            at="tool_choice",
        ),
        refused(
            "",
            messages(tools=[SEARCH], tool_choice=block("tool", name="web_search")),
            f"tool_choice: {NOT_RUN}",
            at="tool_choice",
        ),
        refused(
            "",
            messages(tools=[SEARCH, TOOL], tool_choice=block("tool", name="web_search")),
            f"tool_choice: {NOT_RUN}",
            at="tool_choice",
        ),
        accepted(blocks(image("image/png", PNG))),
        accepted(blocks(document("text/plain", "aGk="))),
        accepted(offered(name="mcp__server__" + "x" * 115)),
        accepted(messages(temperature=1.5, top_k=-1)),
        accepted(
            messages(
                tools=[{"name": "look", "input_schema": {}}],
                context_management={"edits": [block(CLEAR_THINKING, keep="all")]},
            )
        ),
        accepted(messages(user())),
        *(
            refused(
                "",
                messages(tools=[TOOL, block(kind, name="x")]),
                f"tools.1: Input tag '{kind}' found...",
            )
            for kind in (
                "computer_20250124",
                "computer_toolset_20260801",
                "browser_toolset_20260801",
            )
        ),
        *(
            at_place(place, body, f"{place}: {phrase}")
            for phrase, bodies in REFUSED_VALUES.items()
            for place, body in bodies
        ),
        *(at_place(place, body, tags(place, "x", known)) for place, body, known in UNKNOWN_TYPES),
    ],
}
