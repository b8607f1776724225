"""Messages requests with one remarkable value each, and what becomes of them."""

from typing import Any

from tests.frontend.vendor.case import LONG, OPEN_SCHEMA, Case, Cases, accepted, declared, noted
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


def refused(field: str, text: str, at: str = "") -> Case:
    """`text`: begins with a colon for the field's own place."""
    return Case(field, "refused", field + text if text.startswith(":") else text, at)


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


def in_block(field: str, text: str, at: str = "") -> Case:
    """The body is a content block of the user; the message names its place before the text."""
    place = "messages.0.content.0"
    return Case(field, "refused", place + text, at and place + at, wrap=blocks)


def at_place(place: str, text: str) -> Case:
    in_content = not place or place.startswith(".")
    return in_block("", text) if in_content else refused("", text)


def in_edit(field: str, type: str, text: str) -> Case:
    """The body has the fields of a context edit; the message names its type before the text."""
    place = f"context_management.edits.{type}"
    return Case(field, "refused", place + text, wrap=lambda fields: edits(block(type, **fields)))


def offered(**fields: Any) -> Json:
    return messages(tools=[tool(**fields)])


def thinking(type: str, **fields: Any) -> Json:
    return messages(thinking=block(type, **fields))


def choosing(type: str, *, thinking: Any = None, tools: Any = (TOOL,), **fields: Any) -> Json:
    """A request with a tool choice."""
    return messages(tools=tools, tool_choice=block(type, **fields), thinking=thinking)


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

CASES: Cases = {
    "MessageCreateParamsStreaming": {
        refused("max_tokens", ": Field required"): messages(max_tokens=None),
        refused("max_tokens", ": Input should be greater than or equal to 0"): messages(
            max_tokens=-1
        ),
        declared("max_tokens", "reduced, not refused"): messages(max_tokens=10**9),
        refused("max_tokens", ": Input should be a valid integer"): messages(max_tokens="9"),
        refused("messages", ": at least one message is required"): messages(messages=[]),
        declared("messages", "a first message of the assistant"): messages(assistant("a"), USER),
        refused("messages", ": Field required"): {},
        refused("messages", ": Input should be a valid list"): messages(messages="x"),
        declared("cache_control", "`cache_control` in any number, order"): messages(
            cache_control=TOO_MANY
        ),
        refused("cache_control", tags("", "x", "ephemeral")): messages(cache_control=block("x")),
        refused("stop_sequences", ": each stop sequence must be non-empty"): messages(
            stop_sequences=[""]
        ),
        declared("stop_sequences", "`stop_sequences` of white space"): messages(
            stop_sequences=[" "]
        ),
        declared("system", "empty text"): messages(system=[text("")]),
        refused("system", ": Input should be a valid string or list"): messages(system=5),
        refused("container", ": ..."): messages(container="c_1"),
        refused("container", ": not supported by this server"): messages(
            container={"id": "c"}, tools=[block("code_execution_20250825", name="code_execution")]
        ),
        refused("mcp_servers", ": ..."): messages(mcp_servers=[{"url": "u"}]),
        refused("thread", ": ..."): messages(thread=block("create")),
        refused("compaction", ": not supported by this server"): messages(
            compaction=block("summarize")
        ),
        declared("service_tier", "any `service_tier`"): messages(service_tier="flex"),
        declared("speed", "`speed`"): messages(speed="fast"),
        declared("inference_geo", "`inference_geo`"): messages(inference_geo="eu"),
        declared("fallbacks", "`fallbacks`"): messages(fallbacks=[{"model": "b"}]),
        declared("fallback_credit_token", "`fallback_credit_token`"): messages(
            fallback_credit_token="t"
        ),
        declared("billing_policy", "`billing_policy`"): messages(
            billing_policy=block("billing_policy")
        ),
        declared("diagnostics", "`diagnostics`"): messages(diagnostics={}),
    },
    "MetadataParam": {
        declared("user_id", "Messages: of `metadata.user_id`"): messages(metadata={"user_id": LONG})
    },
    "TokenTaskBudgetParam": {
        declared("total", "`task_budget`"): messages(
            output_config={"task_budget": block("tokens", total=1)}
        )
    },
    "OutputConfigParam": {
        refused(
            "effort",
            "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
        ): messages(output_config={"effort": "huge"})
    },
    "JSONOutputFormatParam": {
        refused("type", "output_config.format: ..."): answer_format("json", schema={}),
        refused("schema", "output_config.format.schema: ..."): answer_format("json_schema"),
        declared("schema", "objects without `additionalProperties: false`"): answer_format(
            "json_schema", schema=OPEN_SCHEMA
        ),
        declared("schema", "with `output_config.format`"): prefill(
            output_config={"format": block("json_schema", schema=SCHEMA)}
        ),
        refused("schema", "output_format: ..."): messages(
            output_config={"format": block("json_schema", schema=SCHEMA)},
            output_format=block("json_schema", schema={}),
        ),
    },
    "ThinkingConfigEnabledParam": {
        refused("type", "thinking: ..."): messages(thinking=block("on")),
        declared("type", "with thinking on (natively only `temperature` 1"): messages(
            thinking=ENABLED, temperature=0.5
        ),
        declared("type", "with thinking on"): messages(thinking=ENABLED, top_k=5),
        declared("type", "`top_p` from 0.95"): messages(thinking=ENABLED, top_p=0.5),
        refused(
            "type",
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`...",
        ): prefill(thinking=ENABLED),
        refused("type", "messages.1.content.0.type: ..."): messages(
            USER, assistant("So"), thinking=ENABLED
        ),
        declared("type", "missing before a call while thinking is on"): loop(
            RESULT, thinking=ENABLED
        ),
        refused("budget_tokens", "thinking.enabled.budget_tokens: Field required"): thinking(
            "enabled"
        ),
        refused(
            "budget_tokens",
            "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        ): enabled(budget_tokens=1023),
        refused(
            "budget_tokens", "`max_tokens` must be greater than `thinking.budget_tokens`."
        ): enabled(budget_tokens=4096),
        refused("display", "thinking.enabled.display: ..."): enabled(display="x"),
    },
    "ThinkingConfigAdaptiveParam": {
        declared("type", "continues an assistant's message, with `adaptive` thinking"): prefill(
            thinking=block("adaptive")
        )
    },
    "ThinkingBlockBindingParam": {
        declared("prefix_mismatch_behavior", "`thinking.block_binding`"): thinking(
            "adaptive", block_binding={"prefix_mismatch_behavior": "error"}
        )
    },
    "ThinkingBlockParam": {
        declared("signature", "thinking without a signature"): messages(
            USER, assistant(block("thinking", thinking="Hm."), CALL), USER
        ),
        declared("thinking", "with other text than was signed"): blocks(
            THINKING | {"thinking": "Other."}, CALL, role="assistant"
        ),
        refused("thinking", "messages.0: `thinking` blocks can only be in `assistant`..."): blocks(
            THINKING
        ),
        declared("thinking", "a last message of the assistant that ends in thinking"): messages(
            USER, assistant(THINKING)
        ),
    },
    "RedactedThinkingBlockParam": {
        declared("data", "signatures of other servers"): blocks(
            block("redacted_thinking", data="foreign"), role="assistant"
        )
    },
    "UserMessageParam": {
        refused("role", "messages.0.role: ..."): messages(message("tool", "a")),
        refused("content", "messages.0.content: Field required"): messages({"role": "user"}),
        declared("content", "messages with empty content"): messages(user()),
    },
    "AssistantMessageParam": {
        refused(
            "content", "messages: final assistant content cannot end with trailing whitespace"
        ): prefill("So ")
    },
    "SystemMessageParam": {
        refused("content", "messages.0.content.0: `tool_use` blocks are not allowed..."): blocks(
            CALL, role="system"
        ),
        refused("clear_at", "messages.1.clear_at: ..."): messages(
            USER, message("system", "a", clear_at="soon")
        ),
    },
    "TextBlockParam": {
        in_block("text", ".text.text: Field required"): block("text"),
        declared("text", "text of white space"): blocks(text(" ")),
        declared("cache_control", "`cache_control` in any number"): blocks(
            *[text("a", cache_control=TOO_MANY)] * 5
        ),
        declared("citations", "unknown fields"): blocks(text("a", citations=[])),
    },
    "ImageBlockParam": {
        in_block("source", ".image.source: ..."): block("image"),
        declared("transformations", "any content and size of inline data"): blocks(
            block("image", source=source(), transformations={"oversized_image": "error"})
        ),
    },
    "Base64ImageSourceParam": {
        in_block(
            "media_type", f".image.source.base64.media_type: {IMAGE_TYPES}", at=".source.media_type"
        ): image("image/bmp", PNG),
        in_block("data", ".image.source.base64: invalid base64 data"): block(
            "image", source=source(data="?")
        ),
    },
    "URLImageSourceParam": {
        declared("url", "by `data:` or `http:` URL"): blocks(
            block("image", source=block("url", url="data:image/png;base64,AA=="))
        )
    },
    "FileImageSourceParam": {
        in_block("file_id", f".source: {NO_FILES}"): block(
            "image", source=block("file", file_id="f")
        )
    },
    "Base64PDFSourceParam": {
        in_block(
            "media_type",
            ".document.source.base64.media_type: Input should be 'application/pdf'",
            at=".source.media_type",
        ): document("application/msword", PNG),
        in_block("data", ".pdf.source.base64.data: The PDF specified was not valid."): block(
            "document", source=source(media_type="application/pdf", data="?")
        ),
    },
    "FileDocumentSourceParam": {
        in_block("file_id", f".source: {NO_FILES}"): block(
            "document", source=block("file", file_id="f")
        )
    },
    "ContainerUploadBlockParam": {
        in_block("file_id", ": container uploads are not supported by this server"): block(
            "container_upload", file_id="f"
        )
    },
    "CompactionBlockParam": {
        declared("content", "an empty summary"): blocks(
            block("compaction", content=""), role="assistant"
        )
    },
    "ToolUseBlockParam": {
        refused("input", "messages.1.content.0.tool_use.input: ..."): loop(
            RESULT, calls=(tool_use(input=5),)
        ),
        refused(
            "input", "messages.0: `tool_use` blocks can only be in `assistant` messages"
        ): blocks(CALL),
        refused("id", "messages.1.content.1: `tool_use` ids must be unique"): loop(
            RESULT, calls=(CALL, CALL)
        ),
        declared("id", "ids of any form"): loop(
            tool_result(id="a.b:c"), calls=(tool_use(id="a.b:c"),)
        ),
        declared("id", "calls of two messages with one id"): messages(
            *loop(RESULT)["messages"], *loop(RESULT)["messages"]
        ),
        declared("id", "calls without results"): blocks(CALL, role="assistant"),
        declared("name", "names of calls that no tool may have"): loop(
            RESULT, calls=(tool_use(name="two words"),)
        ),
    },
    "ToolResultBlockParam": {
        refused("tool_use_id", "messages.2.content.0: unexpected `tool_use_id`..."): loop(
            tool_result(id="b")
        ),
        declared("tool_use_id", "several results of a call"): loop(RESULT, RESULT),
        declared("tool_use_id", "results later than in the next message"): messages(
            *loop(RESULT)["messages"][:2], USER, user(RESULT)
        ),
        declared("content", "text before results"): loop(text("a"), RESULT),
    },
    "ToolReferenceBlockParam": {
        declared("tool_name", "a `tool_reference` to an unknown tool"): loop(
            tool_result(content=[block("tool_reference", tool_name="gone")]), tools=[TOOL]
        )
    },
    "ToolParam": {
        refused("name", f"tools.0.custom.name: {PATTERN}", at="tools.0.name"): offered(
            name="two words"
        ),
        refused("name", f"tools.0.custom.name: {PATTERN}", at="tools.0.name"): offered(
            name="x" * 129
        ),
        refused("name", "tools: Tool names must be unique."): messages(tools=[TOOL, TOOL]),
        refused("input_schema", "tools.0.custom.input_schema: ..."): messages(
            tools=[{"name": "look"}]
        ),
        declared("input_schema", "`oneOf` at the top"): offered(input_schema=OPEN_SCHEMA),
        declared("input_schema", "an `input_schema` without `type: object`"): offered(
            input_schema={}
        ),
        declared("description", "descriptions of any length"): offered(description=100 * LONG),
        refused("type", "tools.0: Input tag 'robot_20250101'..."): offered(type="robot_20250101"),
        declared("defer_loading", "tools that all have `defer_loading`"): offered(
            defer_loading=True
        ),
        declared("cache_control", "`cache_control` in any number, order and place"): messages(
            tools=[TOOL, tool(name="b", defer_loading=True, cache_control=TOO_MANY)]
        ),
        noted("strict", "strict"): offered(strict=True),
        declared("allowed_callers", "`allowed_callers`"): offered(
            allowed_callers=["code_execution_20260120"]
        ),
    },
    "ToolChoiceAnyParam": {
        refused("type", "tool_choice: may only be specified while providing tools."): messages(
            tool_choice=block("any")
        ),
        refused("type", "tool_choice: ..."): messages(tool_choice=block("all"), tools=[TOOL]),
        refused("type", "Thinking may not be enabled when tool_choice forces tool use."): choosing(
            "any", thinking=ENABLED
        ),
        declared("type", "`tool_choice` `any` or `tool` with `thinking.type` `adaptive`"): choosing(
            "any", thinking=block("adaptive")
        ),
    },
    "ToolChoiceToolParam": {
        refused("name", "tool_choice.tool.name: ..."): choosing("tool", name="b"),
        refused("type", "Thinking may not be enabled when tool_choice forces tool use."): choosing(
            "tool", name="look", thinking=ENABLED
        ),
    },
    "ContextManagementConfigParam": {
        declared("edits", "edits of unknown types"): edits(block("clear_all_2099")),
        declared("edits", "context edits in any order"): edits(
            block(CLEAR_TOOLS), block(CLEAR_THINKING)
        ),
    },
    "ClearThinking20251015EditParam": {
        in_edit("keep", CLEAR_THINKING, ".keep: ..."): {"keep": block("thinking_turns", value=0)},
        declared("keep", "`clear_thinking_20251015` without `thinking`"): edits(
            block(CLEAR_THINKING, keep="all")
        ),
        refused(
            "type", "context_management.edits: 'clear_thinking_20251015' may be set only once"
        ): edits(block(CLEAR_THINKING), block(CLEAR_THINKING)),
    },
    "ClearToolUses20250919EditParam": {
        in_edit("keep", CLEAR_TOOLS, ".keep: ..."): {"keep": block("thinking_turns", value=1)},
        in_edit("clear_at_least", CLEAR_TOOLS, ".clear_at_least: ..."): {
            "clear_at_least": block("tool_uses", value=1)
        },
        refused(
            "type", "context_management.edits: 'clear_tool_uses_20250919' may be set only once"
        ): edits(block(CLEAR_TOOLS), block(CLEAR_TOOLS)),
    },
    "Compact20260112EditParam": {
        in_edit("trigger", COMPACT, ".trigger: ..."): {"trigger": block("tool_uses", value=1)},
        declared("trigger", "with a `trigger` below 50,000 tokens"): edits(
            block(COMPACT, trigger=block("input_tokens", value=10000))
        ),
        refused("type", "context_management.edits: 'compact_20260112' may be set only once"): edits(
            block(COMPACT), block(COMPACT)
        ),
    },
    "DocumentBlockParam": {
        declared("citations", "and of documents (`citations.enabled`)"): blocks(
            block(
                "document",
                source=block("text", media_type="text/plain", data="a"),
                citations={"enabled": True},
            )
        )
    },
    "": {
        in_block("", tags("", "hologram", ALL_BLOCKS)): block("hologram"),
        in_block("", tags(".content.0", "thinking", RESULT_BLOCKS)): tool_result(
            content=[block("thinking", thinking="")]
        ),
        declared("", "`temperature` from 1 to 2"): messages(temperature=1.5),
        refused(
            "", "temperature: Input should be less than or equal to 2", at="temperature"
        ): messages(temperature=2.5),
        refused("", "top_p: ..."): messages(top_p=1.5),
        refused("", "top_k: ..."): messages(top_k=-2),
        declared("", "together"): messages(temperature=1.0, top_p=0.9),
        refused("", "response_format: Extra inputs..."): messages(
            response_format=block("json_object")
        ),
        declared("", "unknown fields in all APIs"): messages(new_field=1),
        refused("", "The request body must be a JSON object."): [],
        refused("", "The request body must be a JSON object."): "x",
        refused("", "The request body must be a JSON object."): None,
        refused(
            "",
            f"messages.2.content.0.tool_result.content.0.image.source.base64.media_type: {IMAGE_TYPES}",
            at="messages.2.content.0.tool_result.content.0.source.media_type",
        ): loop(tool_result(content=[block("image", source=source(media_type="image/svg+xml"))])),
        in_block("", ".image.source.base64: invalid base64 data", at=".source.data"): image(
            "image/png", "!!!"
        ),
        in_block("", ".image.source.base64: invalid base64 data", at=".source.data"): image(
            "image/png", "iVBORw0KGgo"
        ),
        in_block("", ".image.source.base64: image cannot be empty", at=".source.data"): image(
            "image/png", ""
        ),
        in_block(
            "", ".pdf.source.base64.data: The PDF specified was not valid.", at=".source.data"
        ): document("application/pdf", "JVBER"),
        refused("", "top_p: Input should be greater than or equal to 0", at="top_p"): messages(
            top_p=-0.5
        ),
        refused(
            "", "repetition_penalty: Input should be greater than 0", at="repetition_penalty"
        ): messages(repetition_penalty=0),
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}"): {"keep": "some"},
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}"): {"keep": block("thinking_turns")},
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}"): {"keep": block("x")},
        in_edit("", CLEAR_THINKING, f".keep: {TURNS}"): {"keep": 3},
        in_edit("", CLEAR_TOOLS, ".keep: Input should be a number of `tool_uses`"): {"keep": 3},
        refused(
            "",
            "context_management.edits.0.clear_tool_uses_20250919.trigger.value: Input should be greater than or equal to 0",
            at="context_management.edits.0.trigger.value",
        ): edits(block(CLEAR_TOOLS, trigger=block("input_tokens", value=-3))),
        refused(
            "",
            "context_management.edits.0.clear_tool_uses_20250919.clear_tool_inputs: Input should be a valid boolean or list",
            at="context_management.edits.0.clear_tool_inputs",
        ): edits(block(CLEAR_TOOLS, clear_tool_inputs="all")),
        in_edit("", COMPACT, ".trigger: Input should be a number of `input_tokens` from 1"): {
            "trigger": block("input_tokens", value=0)
        },
        refused("", f"tool_choice: {NOT_RUN}", at="tool_choice"): choosing("any", tools=[SEARCH]),
        refused("", f"tool_choice: {NOT_RUN}", at="tool_choice"): choosing(
            "tool", name="web_search", tools=[SEARCH]
        ),
        refused("", f"tool_choice: {NOT_RUN}", at="tool_choice"): choosing(
            "tool", name="web_search", tools=[SEARCH, TOOL]
        ),
        accepted(): blocks(image("image/png", PNG)),
        accepted(): blocks(document("text/plain", "aGk=")),
        accepted(): offered(name="mcp__server__" + "x" * 115),
        accepted(): messages(temperature=1.5, top_k=-1),
        accepted(): messages(
            tools=[{"name": "look", "input_schema": {}}],
            context_management={"edits": [block(CLEAR_THINKING, keep="all")]},
        ),
        accepted(): messages(user()),
        **{
            refused("", f"tools.1: Input tag '{kind}' found..."): messages(
                tools=[TOOL, block(kind, name="x")]
            )
            for kind in (
                "computer_20250124",
                "computer_toolset_20260801",
                "browser_toolset_20260801",
            )
        },
        **{
            at_place(place, f"{place}: {phrase}"): body
            for phrase, bodies in REFUSED_VALUES.items()
            for place, body in bodies
        },
        **{at_place(place, tags(place, "x", known)): body for place, body, known in UNKNOWN_TYPES},
    },
}
