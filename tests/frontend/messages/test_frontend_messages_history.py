"""Tests how blocks and messages are converted: media, documents, blocks of other servers, changes
of tools."""

import json
from typing import Any

from schemas.conversation import Call, Conversation, Message, Reasoning, Result, Text
from services.frontend.apis.messages.wire import UNSEALED
from tests.kit.bodies import (
    MESSAGES,
    SCHEMA,
    USER,
    Json,
    assistant,
    block,
    message,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.kit.every import for_rows
from tests.kit.frontend import messages_as_notes

CALLED = assistant(tool_use("t1"))
HI = Message("user", [Text("Hi.")])
TOOLS = [tool("look"), tool("find")]
LATE = tool("late", defer_loading=True, input_schema={})


def read_messages(*messages: Json, **fields: Any) -> list[Message]:
    return messages_as_notes(MESSAGES.read(*messages, **fields))


def roles(conversation: Conversation) -> list[str]:
    return [message.role for message in conversation.messages]


def test_results_precede_the_users_text_in_a_message() -> None:
    for fields in ({"is_error": True}, {"is_error": False}, {}):
        found = read_messages(USER, CALLED, user(text("and?"), tool_result("t1", **fields)))
        wanted = Result("t1", [Text("seen")], name="look", is_error=fields.get("is_error"))
        assert found[2:] == [Message("tool", [wanted]), Message("user", [Text("and?")])]


def test_arguments_keep_their_spelling() -> None:
    body = json.dumps(MESSAGES.body(USER, assistant(tool_use("t1", input="§"))))
    for arguments in ('{"n": 5000.0, "big": 12345678901234567890}', '{ "s":"\\u00e9\\/" , "s":2}'):
        found = MESSAGES.parse(body.replace('"\\u00a7"', arguments).encode())
        assert found.conversation.messages[1].parts == [Call("t1", "look", arguments)]


@for_rows(
    [
        (block("thinking", thinking="so", signature="c2ln"), Reasoning("so", "c2ln")),
        (block("thinking", thinking="so", signature=UNSEALED), Reasoning("so")),
        (block("thinking", thinking="", signature="c2ln"), Reasoning(None, "c2ln")),
        (block("redacted_thinking", data="eA=="), Reasoning(None, "eA==")),
    ],
)
def test_reasoning_is_converted(content: Json, part: Reasoning) -> None:
    assert read_messages(USER, assistant(content))[1].parts == [part]


def test_blocks_of_other_servers_tools_become_text() -> None:
    page = block("web_search_result", title="T", url="https://x", encrypted_content="opaque")
    output = block("bash_code_execution_result", stdout="ok", stderr="", return_code=0)
    blocks = [
        block("server_tool_use", id="s1", name="web_search", input={"query": "q"}),
        block("web_search_tool_result", tool_use_id="s1", content=[page]),
        block("bash_code_execution_tool_result", tool_use_id="s3", content=output),
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        text("So."),
    ]
    (_, read) = read_messages(USER, assistant(*blocks))
    assert read.parts == [
        Text('[web_search {"query": "q"}]'),
        Text("[web_search result]\nT https://x"),
        Text("[bash_code_execution result]\nok 0"),
        Text("So."),
    ]


def test_compaction_replaces_everything_before_it() -> None:
    compacted = assistant(block("compaction", content="Summary."), text("Go"))
    first, second, third = read_messages(USER, compacted, user("more"))
    assert first == Message("user", [Text("Summary.")])
    assert (second.parts, third.parts) == ([Text("Go")], [Text("more")])


def change(kind: str, name: str) -> Json:
    """A block that adds or removes a tool of the request."""
    return block(kind, tool=block("tool_reference", name=name))


def added(name: str) -> Json:
    """A block that adds a new tool."""
    return block("tool_addition", tool=block("tool_definition", definition=tool(name)))


def listed(conversation: Conversation) -> list[tuple[str, bool]]:
    return [(tool.name, tool.deferred) for tool in conversation.tools]


def test_tool_changes_are_described_where_they_happen() -> None:
    mcp = block("tool_addition", tool=block("mcp_toolset_reference", server_name="s"))
    changes = [change("tool_removal", "find"), added("fly"), change("tool_addition", "late"), mcp]
    result = MESSAGES.read(
        USER, message("system", text("Tools changed."), *changes), tools=[*TOOLS, LATE]
    )
    front = [("look", False), ("find", False), ("late", True), ("fly", True)]
    assert listed(result) == front

    def available(name: str, schema: Json) -> Text:
        function = {"name": name, "description": "", "parameters": schema}
        described = json.dumps({"type": "function", "function": function})
        return Text(f"From here on this tool is available, too:\n{described}")

    assert result.messages[1].parts == [
        Text("Tools changed."),
        Text("From here on the tool `find` is not available any more."),
        available("fly", SCHEMA),
        available("late", {"type": "object", "properties": {}}),
    ]


def test_compaction_moves_its_changes_to_the_prompts_head() -> None:
    changes = [change("tool_addition", "late"), change("tool_removal", "look")]
    compacted = assistant(block("compaction", content="Summary.", tool_changes=changes))
    removed = message("system", change("tool_removal", "find"))
    result = MESSAGES.read(USER, removed, compacted, USER, tools=[*TOOLS, LATE])
    assert listed(result) == [("find", False), ("late", False)]
    assert roles(result) == ["user", "user"]


def test_results_are_sorted_by_their_calls() -> None:
    called = assistant(*(tool_use(id) for id in ("c", "b", "d")))
    answered = user(*(tool_result(id) for id in ("d", "b", "c")))
    *_, results = read_messages(USER, called, answered)
    ids = [result.call_id for result in results.parts if isinstance(result, Result)]
    assert ids == ["c", "b", "d"]


def test_cleared_system_message_disappears_after_the_next_user_message() -> None:
    note = message("system", "for now", clear_at="next_user_message")
    assert len(read_messages(USER, note)) == 2
    assert read_messages(USER, note, USER) == [HI] * 2
