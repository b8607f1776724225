"""Tests how blocks and messages are converted: media, documents, blocks of other servers, changes
of tools, invalid ids."""

import json
from typing import Any

import pytest

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text, ToolReference
from schemas.errors import Invalid
from services.frontend.apis.messages.request import parse
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.content.pdf_document import PDF
from services.frontend.content.pdf_document import make_document as pdf_document
from tests.kit.frontend import messages_as_notes

Json = dict[str, Any]
USE: Json = {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "t1", "content": "seen"}
HI: Json = {"role": "user", "content": "hi"}
TOOLS: list[Json] = [{"name": name, "input_schema": {}} for name in ("look", "find")]


def read_messages(*messages: Json, **fields: Any) -> list[Message]:
    body = json.dumps({"max_tokens": 9, "messages": messages, **fields}).encode()
    return messages_as_notes(parse(body, {}).conversation)


def said(*blocks: Json) -> list[Part]:
    (message,) = read_messages({"role": "user", "content": blocks})
    return message.parts


def refused(*messages: Json, **fields: Any) -> str:
    with pytest.raises(Invalid) as caught:
        read_messages(*messages, **fields)
    return caught.value.info.message


def test_results_precede_the_users_text_in_a_message() -> None:
    result = read_messages(
        HI,
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "text", "text": "and?"}, RESULT]},
    )
    assert result[2:] == [
        Message("tool", [Result("t1", [Text("seen")], name="look")]),
        Message("user", [Text("and?")]),
    ]


def test_messages_of_one_role_stay_separate() -> None:
    assert [
        message.role for message in read_messages(HI, HI, {"role": "system", "content": "x"}, HI)
    ] == [
        "user",
        "user",
        "system",
        "user",
    ]


@pytest.mark.parametrize("flag", [True, False, None])
def test_is_error_has_three_states(flag: bool | None) -> None:
    block = RESULT if flag is None else {**RESULT, "is_error": flag}
    told = read_messages(
        HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [block]}
    )
    (result,) = told[2].parts
    assert isinstance(result, Result)
    assert result.is_error is flag


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("{}", "{}"),
        (
            '{"n": 5000.0, "big": 12345678901234567890, "e": 1e2}',
            '{"n": 5000.0, "big": 12345678901234567890, "e": 1e2}',
        ),
        ('{ "s":"\\u00e9\\/" }', '{ "s":"\\u00e9\\/" }'),
        ('{"a":{"b":[1,{"c":null}]},"a":2}', '{"a":{"b":[1,{"c":null}]},"a":2}'),
    ],
)
def test_arguments_keep_their_spelling(raw: str, kept: str) -> None:
    block = '{"type":"tool_use","id":"t1","name":"look","input":' + raw + "}"
    body = (
        '{"max_tokens":9,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":['
        + block
        + "]}]}"
    )
    assert parse(body.encode(), {}).conversation.messages[1].parts == [Call("t1", "look", kept)]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "thinking", "thinking": "so", "signature": "c2ln"}, Reasoning("so", "c2ln")),
        ({"type": "thinking", "thinking": "so", "signature": ""}, Reasoning("so")),
        ({"type": "thinking", "thinking": "so"}, Reasoning("so")),
        ({"type": "thinking", "thinking": "so", "signature": UNSEALED}, Reasoning("so")),
        ({"type": "thinking", "thinking": "", "signature": "c2ln"}, Reasoning(None, "c2ln")),
        ({"type": "redacted_thinking", "data": "eA=="}, Reasoning(None, "eA==")),
    ],
)
def test_reasoning_is_converted(block: Json, part: Reasoning) -> None:
    assert read_messages(HI, {"role": "assistant", "content": [block]})[1].parts == [part]


@pytest.mark.parametrize(
    ("source", "media"),
    [
        (
            {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="},
            Media("image", media_type="image/png", size_bytes=5),
        ),
        (
            {"type": "base64", "media_type": "image/png", "data": "aGVsbG8h"},
            Media("image", media_type="image/png", size_bytes=6),
        ),
        ({"type": "url", "url": "https://x/y.png"}, Media("image", url="https://x/y.png")),
        ({"type": "url", "url": "data:image/gif;base64,aGVsbG8="}, Media("image", "image/gif", 5)),
        ({"type": "url", "url": "DATA:image/svg+xml,%3Csvg"}, Media("image", "image/svg+xml", 4)),
    ],
)
def test_images_keep_only_type_and_size(source: Json, media: Media) -> None:
    assert said({"type": "image", "source": source}) == [media]


def test_escaped_slashes_in_base64_do_not_count() -> None:
    image = (
        '{"type":"image","source":{"type":"base64","media_type":"image/png","data":"\\/\\/\\/\\/"}}'
    )
    body = '{"max_tokens":9,"messages":[{"role":"user","content":[' + image + "]}]}"
    assert messages_as_notes(parse(body.encode(), {}).conversation)[0].parts == [
        Media("image", "image/png", 3)
    ]


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        ({"source": {"type": "text", "media_type": "text/plain", "data": "body"}}, [Text("body")]),
        (
            {"source": {"type": "text", "data": "body"}, "title": "a.txt", "context": "old"},
            [Text("Title: a.txt\nContext: old\n\nbody")],
        ),
        ({"source": {"type": "content", "content": "body"}}, [Text("body")]),
        (
            {
                "source": {
                    "type": "content",
                    "content": [
                        {"type": "text", "text": "one"},
                        {"type": "image", "source": {"type": "url", "url": "u"}},
                    ],
                },
                "title": "t",
            },
            [Text("Title: t\n\n"), Text("one"), Media("image", url="u")],
        ),
        (
            {
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
                "title": "p.pdf",
            },
            [pdf_document(PDF, "JVBERg==", 4, "p.pdf", "Title: p.pdf\n\n")],
        ),
        (
            {"source": {"type": "url", "url": "https://x/p.pdf"}},
            [Media("document", url="https://x/p.pdf")],
        ),
        (
            {
                "source": {"type": "base64", "media_type": "text/markdown", "data": "IyBoaQ=="},
                "title": "a.md",
            },
            [Text("Title: a.md\n\n# hi")],
        ),
        (
            {"source": {"type": "base64", "media_type": "text/plain", "data": "/w=="}},
            [Media("document", "text/plain", 1)],
        ),
    ],
)
def test_documents_are_converted(document: Json, parts: list[Part]) -> None:
    assert said({"type": "document", **document}) == parts


def test_search_result_becomes_text() -> None:
    block = {
        "type": "search_result",
        "title": "Doc",
        "source": "https://x",
        "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    }
    assert said(block) == [Text("Title: Doc\nSource: https://x\n\none\ntwo")]


def test_blocks_inside_a_result_are_converted() -> None:
    block = {
        **RESULT,
        "content": [
            {"type": "text", "text": "shot"},
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"},
            },
            {"type": "document", "source": {"type": "text", "data": "doc"}},
            {"type": "tool_reference", "tool_name": "CronList"},
            {"type": "browser_state", "tabs": [{"id": 1}]},
        ],
    }
    result = read_messages(
        HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [block]}
    )
    assert result[2].parts == [
        Result(
            "t1",
            [
                Text("shot"),
                Media("image", "image/jpeg", 3),
                Text("doc"),
                ToolReference("CronList"),
                Text('Open tabs: [{"id": 1}]'),
            ],
            name="look",
        )
    ]


def test_empty_text_is_dropped() -> None:
    assert said({"type": "text", "text": ""}, {"type": "text", "text": " "}) == [Text(" ")]


def test_blocks_of_other_servers_tools_become_text() -> None:
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "s1",
        "content": [
            {
                "type": "web_search_result",
                "title": "T",
                "url": "https://x",
                "encrypted_content": "opaque",
            },
            {"type": "web_search_result", "title": "U", "url": "https://y", "page_age": "1d"},
        ],
    }
    failed = {
        "type": "code_execution_tool_result",
        "tool_use_id": "s2",
        "content": {"type": "code_execution_tool_result_error", "error_code": "unavailable"},
    }
    ran = {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "s3",
        "content": {
            "type": "bash_code_execution_result",
            "stdout": "ok",
            "stderr": "",
            "return_code": 0,
        },
    }
    listed = {
        "type": "mcp_tool_result",
        "tool_use_id": "s4",
        "content": [{"type": "text", "text": "from mcp"}],
    }
    (_, told) = read_messages(
        HI,
        {
            "role": "assistant",
            "content": [
                {
                    "type": "server_tool_use",
                    "id": "s1",
                    "name": "web_search",
                    "input": {"query": "q"},
                },
                found,
                failed,
                ran,
                listed,
                {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
                {"type": "text", "text": "So."},
            ],
        },
    )
    assert told.parts == [
        Text('[web_search {"query": "q"}]'),
        Text("[web_search result]\nT https://x\nU https://y"),
        Text("[code_execution result]\nunavailable"),
        Text("[bash_code_execution result]\nok 0"),
        Text("[mcp result]\nfrom mcp"),
        Text("So."),
    ]


def test_compaction_replaces_everything_before_it() -> None:
    result = read_messages(
        HI,
        {
            "role": "assistant",
            "content": [
                {"type": "compaction", "content": "Summary."},
                {"type": "text", "text": "Go"},
            ],
        },
        {"role": "user", "content": "more"},
    )
    assert result == [
        Message("user", [Text("Summary.")]),
        Message("assistant", [Text("Go")]),
        Message("user", [Text("more")]),
    ]


def test_failed_compaction_is_dropped() -> None:
    result = read_messages(
        HI, {"role": "assistant", "content": [{"type": "compaction", "content": None}]}, HI
    )
    assert [message.role for message in result] == ["user", "user"]


def test_tool_changes_are_described_where_they_happen() -> None:
    change = {
        "role": "system",
        "content": [
            {"type": "text", "text": "Tools changed."},
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "find"}},
            {
                "type": "tool_addition",
                "tool": {
                    "type": "tool_definition",
                    "definition": {"name": "fly", "input_schema": {"type": "object"}},
                },
            },
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}},
            {
                "type": "tool_addition",
                "tool": {"type": "mcp_toolset_reference", "server_name": "s"},
            },
        ],
    }
    late = {"name": "late", "input_schema": {}, "defer_loading": True}
    body = {"max_tokens": 9, "messages": [HI, change], "tools": [*TOOLS, late]}
    result = parse(json.dumps(body).encode(), {}).conversation
    front = [(tool.name, tool.deferred) for tool in result.tools]
    assert front == [("look", False), ("find", False), ("late", True), ("fly", True)]
    fly = {"name": "fly", "description": "", "parameters": {"type": "object"}}
    assert result.messages[1] == Message(
        "system",
        [
            Text("Tools changed."),
            Text("From here on the tool `find` is not available any more."),
            Text(
                f"From here on this tool is available, too:\n{json.dumps({'type': 'function', 'function': fly})}"
            ),
            Text(
                'From here on this tool is available, too:\n{"type": "function", "function": {"name": "late", '
                '"description": "", "parameters": {"type": "object", "properties": {}}}}'
            ),
        ],
    )


def changing(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "role": "system",
        "content": [{"type": kind, "tool": {"type": "tool_reference", "name": name}}],
        **more,
    }


def test_returning_tool_keeps_its_place_and_is_described_again() -> None:
    body = {
        "max_tokens": 9,
        "messages": [
            HI,
            changing("tool_removal", "find"),
            HI,
            changing("tool_addition", "find"),
            HI,
        ],
        "tools": TOOLS,
    }
    result = parse(json.dumps(body).encode(), {}).conversation
    assert [tool.name for tool in result.tools] == ["look", "find"]
    gone, back = (message for message in result.messages if message.role == "system")
    assert gone.parts == [Text("From here on the tool `find` is not available any more.")]
    assert isinstance(back.parts[0], Text)
    assert '"name": "find"' in back.parts[0].text


def test_known_and_unknown_tools_are_not_described() -> None:
    messages = [HI, changing("tool_addition", "look"), changing("tool_removal", "nope"), HI]
    body = {"max_tokens": 9, "messages": messages, "tools": TOOLS}
    result = parse(json.dumps(body).encode(), {}).conversation
    assert [message.role for message in result.messages] == ["user", "user"]


def test_change_stays_when_its_message_is_cleared() -> None:
    messages = [HI, changing("tool_removal", "look", clear_at="next_user_message"), HI]
    result = parse(
        json.dumps({"max_tokens": 9, "messages": messages, "tools": TOOLS}).encode(), {}
    ).conversation
    assert [message.role for message in result.messages] == ["user", "system", "user"]


def test_first_added_tools_are_listed_in_the_prompts_head() -> None:
    definition = {"name": "fly", "input_schema": {"type": "object"}}
    change = {
        "role": "system",
        "content": [
            {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
        ],
    }
    result = parse(
        json.dumps({"max_tokens": 9, "messages": [HI, change]}).encode(), {}
    ).conversation
    assert [(tool.name, tool.deferred) for tool in result.tools] == [("fly", False)]
    assert [message.role for message in result.messages] == ["user"]


def test_withdrawn_tool_cannot_be_forced() -> None:
    body = {
        "max_tokens": 9,
        "messages": [HI, changing("tool_removal", "find")],
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "find"},
    }
    with pytest.raises(Invalid, match="Tool 'find' not found"):
        parse(json.dumps(body).encode(), {})


def test_compaction_moves_its_changes_to_the_prompts_head() -> None:
    late = {"name": "late", "input_schema": {}, "defer_loading": True}
    block = {
        "type": "compaction",
        "content": "Summary.",
        "tool_changes": [
            {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}},
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
        ],
    }
    messages = [HI, changing("tool_removal", "find"), {"role": "assistant", "content": [block]}, HI]
    result = parse(
        json.dumps({"max_tokens": 9, "messages": messages, "tools": [*TOOLS, late]}).encode(), {}
    ).conversation
    assert [(tool.name, tool.deferred) for tool in result.tools] == [
        ("find", False),
        ("late", False),
    ]
    assert [message.role for message in result.messages] == ["user", "user"]


def test_results_are_sorted_by_their_calls() -> None:
    def called(*ids: str) -> Json:
        return {"role": "assistant", "content": [{**USE, "id": each} for each in ids]}

    def answered(*ids: str) -> Json:
        return {"role": "user", "content": [{**RESULT, "tool_use_id": each} for each in ids]}

    result = read_messages(
        HI, called("b", "a"), answered("a", "b"), called("c", "b", "d"), answered("d", "b", "c")
    )
    ids = [
        [part.call_id for part in message.parts if isinstance(part, Result)]
        for message in result
        if message.role == "tool"
    ]
    assert ids == [["b", "a"], ["c", "b", "d"]]


def test_cleared_system_message_disappears_after_the_next_user_message() -> None:
    note = {"role": "system", "content": "for now", "clear_at": "next_user_message"}
    assert len(read_messages(HI, note)) == 2
    assert read_messages(HI, note, HI) == [Message("user", [Text("hi")])] * 2


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (
            [HI, {"role": "user", "content": [RESULT]}],
            "messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t1. "
            "Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
        ),
        (
            [HI, {"role": "assistant", "content": [USE, USE]}],
            "messages.1.content.1: `tool_use` ids must be unique",
        ),
        (
            [HI, {"role": "assistant", "content": [RESULT]}],
            "messages.1: `tool_result` blocks can only be in `user` messages",
        ),
        (
            [{"role": "user", "content": [USE]}],
            "messages.0: `tool_use` blocks can only be in `assistant` messages",
        ),
        (
            [HI, {"role": "assistant", "content": [{**USE, "input": [1]}]}],
            "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        ),
        (
            [HI, {"role": "system", "content": [RESULT]}],
            "messages.1.content.0: `tool_result` blocks are not allowed in `system` messages",
        ),
        ([HI, {"role": "system"}], "messages.1.content: Field required"),
        ([{"role": "user"}], "messages.0.content: Field required"),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}],
                }
            ],
            "messages.0.content.0.source: file references are not supported by this server; send the content itself",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}],
                }
            ],
            "messages.0.content.0.source: file references are not supported by this server; send the content itself",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": 5},
                        }
                    ],
                }
            ],
            "messages.0.content.0.image.source.base64.data: Input should be a valid string",
        ),
        (
            [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}],
            "messages.0.content.0: container uploads are not supported by this server",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}},
                    ],
                }
            ],
            "messages.0.content.0: `tool_removal` blocks can only be in `system` messages",
        ),
    ],
)
def test_invalid_request_is_refused(messages: list[Json], message: str) -> None:
    assert refused(*messages) == message


def test_calls_without_results_are_accepted() -> None:
    result = read_messages(
        HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": "never mind"}
    )
    assert [message.role for message in result] == ["user", "assistant", "user"]


def test_id_may_occur_again_in_a_later_message() -> None:
    asked = {"role": "assistant", "content": [USE]}
    answered = {"role": "user", "content": [RESULT]}
    assert len(read_messages(HI, asked, answered, asked, answered)) == 5
