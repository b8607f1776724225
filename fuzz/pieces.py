"""A request of each API with many of its members, as clients send them: what fuzzed bodies are
made of."""

from typing import Any, Final

Part = dict[str, Any]


def part(type: str, **fields: Any) -> Part:
    """A block, an item or a tool."""
    return {"type": type, **fields}


def message(role: str, *content: Any, **fields: Any) -> Part:
    """A message with a text, or with parts."""
    plain = len(content) == 1 and not isinstance(content[0], dict)
    return {"role": role, "content": content[0] if plain else [*content], **fields}


IMAGE: Final = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
IMAGE_URL: Final = {"url": "data:image/png;base64,AAAA"}
CALL: Final = part("function", id="c1", function={"name": "n", "arguments": '{"a": 1}'})
CUSTOM: Final = part("custom", id="c2", custom={"name": "p", "input": "raw"})
DETAIL: Final = part("reasoning.encrypted", data="d", id="c1", format="turnwire-v1", index=0)
GRAMMAR: Final = {"syntax": "lark", "definition": 'start: "x"'}
FUNCTION: Final = {"name": "n", "parameters": {"type": "object"}}
TEXT: Final = part("text", text="x")
THINKING: Final = part("thinking", thinking="t", signature="s")
SEARCHED: Final = {"title": "t", "url": "u", "encrypted_content": "e"}

MESSAGES: Final = [
    message("user", TEXT, part("image", source=IMAGE)),
    message("assistant", THINKING, TEXT, part("tool_use", id="t1", name="n", input={})),
    message("user", part("tool_result", tool_use_id="t1")),
    message("assistant", part("web_search_tool_result", content=[SEARCHED])),
]
CHAT: Final = [
    message("system", TEXT),
    message("assistant", None, reasoning_content="a", tool_calls=[CALL, CUSTOM]),
    message("tool", "seen", tool_call_id="c1"),
    message("assistant", "x", thinking_blocks=[THINKING], reasoning_details=[DETAIL]),
    message("assistant", None, function_call={"name": "n", "arguments": "{}"}),
    message("user", part("image_url", image_url=IMAGE_URL)),
    message("user", part("file", file={"file_data": "AAAA", "filename": "f"})),
]
RESPONSES: Final = [
    message("user", part("input_text", text="hi"), part("input_image", image_url=IMAGE_URL["url"])),
    message("assistant", part("output_text", text="ho"), part("refusal", refusal="no")),
    part("reasoning", id="rs", summary=[part("summary_text", text="s")], encrypted_content="e"),
    part("function_call", call_id="c", name="n", arguments="{}", namespace="ns"),
    part("function_call_output", call_id="c", output=[part("input_file", file_data="AAAA")]),
    part("custom_tool_call", call_id="d", name="p", input="x"),
    part("local_shell_call", id="l", call_id="e", action=part("exec", command=["ls"])),
    part("shell_call_output", call_id="f", output=[{"stdout": "o", "outcome": {"exit_code": 1}}]),
    part("apply_patch_call", call_id="g", operation=part("delete_file", path="x")),
    part("tool_search_output", call_id="h", tools=[part("function", name="found")]),
    part("additional_tools", role="developer", tools=[part("custom", name="more")]),
    part("compaction", encrypted_content="mine"),
    part("item_reference", id="known"),
    part("web_search_call", id="w", action={"query": "q"}),
]

WHOLE: Final[dict[str, Part]] = {
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 10,
        "tools": [{"name": "n", "input_schema": {"type": "object", "properties": {}}}],
        "thinking": {"type": "adaptive"},
        "system": [part("text", text="x", cache_control={"type": "ephemeral", "ttl": "1h"})],
    },
    "/v1/chat/completions": {
        "messages": CHAT,
        "tools": [
            part("function", function=FUNCTION),
            part("custom", custom={"name": "p", "format": part("grammar", grammar=GRAMMAR)}),
        ],
        "tool_choice": "auto",
        "n": 2,
        "stop": ["x", 5],
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": part("json_schema", json_schema={"name": "n", "schema": {}}),
        "chat_template_kwargs": {"a": 1},
        "thinking": {"type": "enabled"},
    },
    "/v1/completions": {"prompt": [[1], [2, 3]], "n": 2, "echo": True, "max_tokens": 3},
    "/v1/responses": {
        "input": RESPONSES,
        "instructions": "i",
        "tools": [
            part("function", **FUNCTION, defer_loading=True),
            part("custom", name="p", format=part("grammar", **GRAMMAR)),
            part("namespace", name="ns", description="d", tools=[part("function", name="n")]),
            part("tool_search", execution="client"),
            part("shell", environment={"type": "local"}),
        ],
        "tool_choice": "required",
        "reasoning": {"effort": "high", "summary": "auto", "context": "all_turns"},
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "text": {"format": part("json_schema", name="n", schema={}), "verbosity": "low"},
        "top_logprobs": 2,
        "context_management": [part("compaction")],
    },
}
