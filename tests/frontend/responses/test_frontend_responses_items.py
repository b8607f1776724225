"""Tests how input items become messages, each kind by itself and together."""

import base64
import json
from typing import Any

import pytest
from msgspec import Raw

from schemas.conversation import Call, Media, Message, Reasoning, Result, Text, ToolReference
from schemas.errors import Invalid, NotFound
from services.frontend.apis.responses.dialect import ConvertedRequest, Responses
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.request.compaction import COMPACTED, seal_summary
from services.frontend.content.pdf_document import make_document
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.frontend import messages_as_notes

USER = {"role": "user", "content": "Hi."}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1.0}'}


class Box:
    """A sealer for tests."""

    def seal(self, text: str) -> str:
        return "box:" + text

    def open(self, blob: str) -> str | None:
        return blob.removeprefix("box:") if blob.startswith("box:") else None


def ask(*items: Any, **options: Any) -> ConvertedRequest:
    body, stored = options.pop("body", {}), options.pop("stored", None)
    request = decode(json.dumps({"model": "m", "input": list(items), **body}).encode())
    if stored is not None:
        request = request.with_references(stored)
    return Responses().convert(request, {}, **options)


def read_messages(*items: Any, **options: Any) -> list[Message]:
    return messages_as_notes(ask(*items, **options).conversation)


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def test_all_forms_of_a_user_message_are_equal() -> None:
    part = {"type": "input_text", "text": "Hi."}
    forms: list[list[dict[str, Any]]] = [
        [USER],
        [{**USER, "type": "message", "id": "msg_1"}],
        [{"role": "user", "content": [part]}],
        [
            {
                "role": "user",
                "content": [{**part, "prompt_cache_breakpoint": {"mode": "explicit"}}],
                "status": "completed",
            }
        ],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi."}],
                "internal_chat_message_metadata_passthrough": {},
            }
        ],
    ]
    assert all(read_messages(*form) == [Message("user", [Text("Hi.")])] for form in forms)
    assert Responses().convert(
        decode(b'{"model":"m","input":"Hi."}'), {}
    ).conversation.messages == read_messages(USER)


def test_assistant_message_has_the_ids_of_its_items() -> None:
    reply = {"type": "message", "role": "assistant", "id": "msg_1", "content": "Hello."}
    empty = {"type": "reasoning", "id": "rs_1", "summary": []}
    found = read_messages(USER, empty, reply, USER, {**reply, "id": None})
    assert [message.ids for message in found] == [[], ["rs_1", "msg_1"], [], []]


def test_instructions_keep_their_place_and_role() -> None:
    found = read_messages(
        {"role": "developer", "content": "A"}, USER, {"role": "system", "content": "B"}, USER
    )
    assert [message.role for message in found] == ["developer", "user", "system", "user"]
    assert read_messages({"role": "developer", "content": ""}, USER) == read_messages(USER)


def test_consecutive_items_of_the_model_are_one_message() -> None:
    found = read_messages(
        USER,
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "A"}],
        },
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "B", "annotations": []}],
            "phase": "commentary",
        },
        CALL,
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "seal"},
        {
            "type": "custom_tool_call",
            "call_id": "c2",
            "name": "patch",
            "input": 'a "b"\n',
            "namespace": "ns",
            "id": "ctc",
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "two"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "one"}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    )
    assert found[1] == Message(
        "assistant",
        [
            Reasoning("A", id="rs_1"),
            Text("B"),
            Call("c1", "look", '{"at": 1.0}'),
            Reasoning(None, "seal"),
            Call("c2", "patch", '{"input":"a \\"b\\"\\n"}', "custom", "ns", "ctc"),
        ],
    )
    assert found[2] == Message(
        "tool",
        [Result("c1", [Text("one")], name="look"), Result("c2", [Text("two")], name="ns__patch")],
    )
    assert found[3] == Message("assistant", [Text("No.")])


@pytest.mark.parametrize(
    ("item", "with_key", "expected"),
    [
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "A"}], "encrypted_content": "box:B"}, True, ("A", "box:B", [])),
        ({"summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "box:B"}, True, ("B", "box:B", ["S"])),
        ({"summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "foreign"}, True, ("S", "foreign", [])),
        ({"summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "box:B"}, False, (None, "box:B", ["S"])),
        ({"summary": [{"type": "summary_text", "text": "S"}, {"type": "summary_text", "text": "T"}]}, False, ("S\n\nT", None, [])),
        ({"encrypted_content": "box:B"}, True, (None, "box:B", [])),
    ],
)  # fmt: skip
def test_thought_is_its_text_else_its_seal_else_its_summary(
    item: Any, with_key: bool, expected: Any
) -> None:
    found = read_messages(
        USER, {"type": "reasoning", **item}, CALL, sealer=Box() if with_key else None
    )[1].parts[0]
    assert isinstance(found, Reasoning)
    assert (found.text, found.seal, found.summary) == expected


def test_empty_thought_is_dropped() -> None:
    assert read_messages(USER, {"type": "reasoning", "summary": []}) == read_messages(USER)


def test_result_without_its_call_is_refused() -> None:
    output = {"type": "function_call_output", "call_id": "c9", "output": "x"}
    with pytest.raises(
        Invalid, match="No tool call found for function call output with call_id c9"
    ):
        read_messages(USER, output)
    assert read_messages(USER, output, counting=True)[1].role == "tool"
    assert read_messages(output, history=[raw({**CALL, "call_id": "c9"})])[1].parts == [
        Result("c9", [Text("x")], name="look")
    ]
    nameless = {"type": "function_call_output", "output": "x", "name": "look", "namespace": "ns"}
    assert read_messages(USER, nameless)[1].parts == [Result("", [Text("x")], name="ns__look")]


def test_shell_and_patch_calls_are_calls_of_their_rendered_tools() -> None:
    found = read_messages(
        USER,
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "a", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "shell_call", "call_id": "b", "action": {"commands": ["ls", "pwd"], "timeout_ms": 5}},
        {"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": {"type": "delete_file", "path": "x"}},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "one"},
        {"type": "shell_call_output", "call_id": "b", "output": [{"stdout": "x\n", "stderr": "y", "outcome": {"type": "exit", "exit_code": 2}}, {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}}]},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "failed"},
    )  # fmt: skip
    calls = [
        (part.name, json.loads(part.arguments)) for part in found[1].parts if isinstance(part, Call)
    ]
    assert calls == [
        ("local_shell", {"command": ["ls"], "env": {}}),
        ("shell", {"commands": ["ls", "pwd"], "timeout_ms": 5}),
        ("apply_patch", {"type": "delete_file", "path": "x"}),
    ]
    assert found[2].parts == [
        Result("a", [Text("one")], name="local_shell"),
        Result("b", [Text("x\ny\n[exit code 2]"), Text("[timed out]")], name="shell"),
        Result("c", [Text("The patch could not be applied.")], is_error=True, name="apply_patch"),
    ]


def test_local_shell_outputs_are_matched_by_item_id() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    calls = [
        {"type": "local_shell_call", "id": f"lsh_{at}", "call_id": at, "action": action}
        for at in "ab"
    ]
    outputs = [{"type": "local_shell_call_output", "id": f"lsh_{at}", "output": at} for at in "ba"]
    assert read_messages(USER, *calls, *outputs)[2].parts == [
        Result(at, [Text(at)], name="local_shell") for at in "ab"
    ]  # fmt: skip


def test_tools_from_a_search_are_available_after_it() -> None:
    found = {
        "type": "namespace",
        "name": "ns",
        "description": "About.",
        "tools": [{"type": "function", "name": "f", "description": "F."}],
    }
    spoken = ask(
        USER,
        {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {"query": "f"}},
        {"type": "tool_search_output", "call_id": "s1", "execution": "client", "status": "completed", "tools": [found]},
        {"type": "tool_search_call", "call_id": "s2", "execution": "client", "arguments": {"query": "g"}},
        {"type": "tool_search_output", "call_id": "s2", "tools": []},
        {"type": "tool_search_call", "call_id": "s3", "execution": "client", "arguments": {"query": "f"}},
        {"type": "tool_search_output", "call_id": "s3", "tools": [found]},
        body={"tools": [{"type": "tool_search", "execution": "client"}]},
    )  # fmt: skip
    results = [
        part
        for message in spoken.conversation.messages
        for part in message.parts
        if isinstance(part, Result)
    ]
    assert [result.parts for result in results] == [
        [ToolReference("ns__f")],
        [Text("No tools were found.")],
        [ToolReference("ns__f")],
    ]
    search, loaded = spoken.conversation.tools
    assert (search.name, search.deferred) == ("tool_search", False)
    assert (loaded.namespace, loaded.name, loaded.deferred, loaded.description) == (
        "ns",
        "f",
        True,
        "ns: About.\n\nF.",
    )


def test_loaded_tools_stay_at_their_search_without_declared_tools() -> None:
    (tool,) = ask(
        {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {}},
        {
            "type": "tool_search_output",
            "call_id": "s1",
            "tools": [{"type": "function", "name": "f"}],
        },
    ).conversation.tools
    assert tool.deferred


def test_search_run_by_a_server_adds_only_its_tools() -> None:
    found = ask(
        USER,
        {"type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {"paths": ["f"]}},
        {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": [{"type": "function", "name": "f"}]},
    )  # fmt: skip
    assert found.conversation.messages == read_messages(USER)
    assert [(tool.name, tool.deferred) for tool in found.conversation.tools] == [("f", False)]


def test_additional_tools_and_configuration_updates_apply() -> None:
    found = ask(
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [{"type": "custom", "name": "exec"}]}]},
        USER,
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"type": "configuration_update", "reasoning": {"effort": "low"}, "text": {"format": {"type": "json_object"}}},
        body={"reasoning": {"effort": "medium", "context": "all_turns"}, "text": {"verbosity": "low"}},
    ).conversation  # fmt: skip
    (tool,) = found.tools
    assert (tool.kind, tool.namespace, tool.name) == ("custom", "functions", "exec")
    assert (found.thinking.mode, found.thinking.effort, found.thinking.history) == (
        "enabled",
        "low",
        "keep",
    )
    assert found.format is not None
    assert found.format.kind == "json_object"
    assert found.verbosity == "low"
    assert found.messages == read_messages(USER)


def test_returned_compaction_becomes_its_summary() -> None:
    item = {
        "type": "compaction",
        "id": "cmp_1",
        "encrypted_content": seal_summary(Box(), "All is well."),
    }
    found = read_messages({"role": "developer", "content": "Base."}, item, USER, sealer=Box())
    assert found[1] == Message("user", [Text(COMPACTED + "All is well.")])
    assert [message.role for message in found] == ["developer", "user", "user"]
    for sealer, blob in (
        (Box(), "foreign"),
        (Box(), Box().seal("a thought")),
        (None, item["encrypted_content"]),
    ):
        with pytest.raises(Invalid) as refused:
            read_messages(USER, {"type": "compaction", "encrypted_content": blob}, sealer=sealer)
        assert refused.value.info.code == "invalid_encrypted_content"
        assert refused.value.info.param == "input[1].encrypted_content"


def test_compaction_trigger_requests_a_summary() -> None:
    tools = {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}
    found = ask(USER, {"type": "compaction_trigger"}, sealer=Box(), body=tools)
    assert found.sealer is not None
    assert found.conversation.messages[-1] == Message("user", [Text(SUMMARIZE)])
    assert found.conversation.tool_choice.mode == "none"
    assert found.conversation.tools
    assert (
        ask(USER, sealer=Box(), compacting=True).conversation.messages
        == found.conversation.messages
    )
    with pytest.raises(Invalid, match="last item"):
        ask({"type": "compaction_trigger"}, USER, sealer=Box())
    with pytest.raises(Invalid, match="no key"):
        ask(USER, {"type": "compaction_trigger"})
    over = read_messages(USER, history=[raw(USER), raw({"type": "compaction_trigger"})])
    assert over == [*read_messages(USER), *read_messages(USER)]


def test_references_are_replaced_by_their_items() -> None:
    stored = {
        "msg_1": raw({"type": "message", "role": "user", "content": "Stored."}),
        "fc_1": raw(CALL),
    }
    found = read_messages(
        {"type": "item_reference", "id": "msg_1"},
        {"id": "fc_1"},
        {"type": None, "id": "msg_1"},
        stored=stored,
    )
    assert [message.role for message in found] == ["user", "assistant", "user"]
    assert found[0].parts == [Text("Stored.")]
    assert decode(b'{"input":[{"type":"item_reference","id":"a"},{"id":"b"}]}').references == [
        "a",
        "b",
    ]
    for items in (stored, None):
        with pytest.raises(NotFound, match=r"Item with id 'x' not found\."):
            read_messages(USER, {"type": "item_reference", "id": "x"}, stored=items)
    with pytest.raises(Invalid) as refused:
        read_messages(USER, {"type": "item_reference", "id": None}, stored=stored)
    assert (refused.value.info.param, refused.value.info.code) == (
        "input[1].id",
        "missing_required_parameter",
    )


def test_images_and_files_become_media() -> None:
    image = "data:image/png;base64," + base64.b64encode(b"x" * 30).decode()
    notes = "data:text/markdown;base64," + base64.b64encode("# Ü\n".encode()).decode()
    pdf = base64.b64encode(b"%PDF-").decode()
    content = [
        {"type": "input_image", "image_url": image, "detail": "auto"},
        {"type": "input_image", "image_url": "https://x/y.png"},
        {"type": "input_file", "file_data": notes, "filename": "a.md"},
        {"type": "input_file", "file_data": pdf, "filename": "b.pdf"},
        {"type": "input_file", "file_url": "https://x/z.pdf"},
        {"type": "input_file", "file_data": "data:text/plain;base64,/w==", "filename": "bad.txt"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}},
    ]
    expected = [
        Media("image", "image/png", 30),
        Media("image", url="https://x/y.png"),
        Text("Title: a.md\n\n# Ü\n"),
        make_document("application/pdf", pdf, 5, "b.pdf", "Title: b.pdf\n\n"),
        Media("document", url="https://x/z.pdf"),
        Media("document", "text/plain", 1, title="bad.txt"),
        Media("audio"),
    ]
    assert read_messages({"role": "user", "content": content})[0].parts == expected
    output = {"type": "function_call_output", "call_id": "c1", "output": content}
    assert read_messages(CALL, output)[1].parts == [Result("c1", expected, name="look")]  # type: ignore[arg-type]
    for part in (
        {"type": "input_image", "file_id": "f"},
        {"type": "input_file", "file_id": "f"},
        {"type": "input_file"},
    ):
        with pytest.raises(Invalid) as refused:
            read_messages({"role": "user", "content": [part]})
        assert str(refused.value.info.param).startswith("input[0].content[0]")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "cats", "sources": [{"type": "url", "url": "https://x"}]}}, "[web_search_call cats https://x]"),
        ({"type": "file_search_call", "id": "fs", "queries": ["a", "b"], "results": [{"file_id": "f", "filename": "n.md", "text": "found", "score": 0.5}]}, "[file_search_call a b]\nn.md found"),
        ({"type": "code_interpreter_call", "id": "ci", "code": "1+1", "container_id": "c", "outputs": [{"type": "logs", "logs": "2"}]}, "[code_interpreter_call 1+1]\n2"),
        ({"type": "mcp_call", "id": "m", "server_label": "git", "name": "log", "arguments": "{}", "output": "x"}, "[mcp_call git log {}]\nx"),
        ({"type": "image_generation_call", "id": "i", "status": "completed", "result": "AAAA", "revised_prompt": "a cat"}, "[image_generation_call a cat]"),
        ({"type": "computer_call", "id": "c", "call_id": "x", "action": {"type": "click", "x": 1, "y": 2}}, "[computer_call 1 2]"),
        ({"type": "program", "id": "p", "call_id": "x", "code": "f()", "fingerprint": "z"}, "[program f()]"),
        ({"type": "program_output", "id": "p", "call_id": "x", "result": "ok"}, "[program_output]\nok"),
    ],
)  # fmt: skip
def test_items_of_other_servers_tools_become_text(item: Any, text: str) -> None:
    assert read_messages(USER, item) == [*read_messages(USER), Message("assistant", [Text(text)])]


def test_screenshot_is_an_image_and_tool_lists_are_dropped() -> None:
    shot = {
        "type": "computer_call_output",
        "call_id": "x",
        "output": {"type": "computer_screenshot", "image_url": "https://x"},
    }
    assert read_messages(shot) == [Message("user", [Media("image", url="https://x")])]
    silent = [
        {"type": kind, "id": "x"}
        for kind in ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")
    ]
    found = ask(USER, *silent)
    assert (found.conversation.messages, found.notes) == (read_messages(USER), [])


def test_unknown_item_is_dropped_and_named() -> None:
    found = ask(USER, {"type": "from_the_future", "x": [1]})
    assert (found.conversation.messages, found.notes) == (read_messages(USER), ["from_the_future"])


def test_assistant_message_is_never_a_prefill() -> None:
    assert not ask(USER, {"role": "assistant", "content": "Half"}).conversation.prefill


@pytest.mark.parametrize(
    ("item", "message", "param"),
    [
        (5, "Invalid type for 'input[0]': expected an object, but got an integer instead.", "input[0]"),
        ({"type": "function_call", "call_id": "c"}, "Missing required parameter: 'input[0].name'.", "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "n", "arguments": {}}, "Invalid type for 'input[0].arguments': expected a string, but got an object instead.", "input[0].arguments"),
        ({"role": "user"}, "Missing required parameter: 'input[0].content'.", "input[0].content"),
        ({"role": "robot", "content": ""}, "Invalid value: 'robot'. Supported values are: 'user', 'assistant', 'system', and 'developer'.", "input[0].role"),
        ({"role": "user", "content": [{"type": "x"}]}, None, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "Missing required parameter: 'input[0].content[0].text'.", "input[0].content[0].text"),
    ],
)  # fmt: skip
def test_malformed_items_are_refused_in_native_wording(
    item: Any, message: str | None, param: str
) -> None:
    with pytest.raises(Invalid) as refused:
        ask(item)
    assert refused.value.info.param == param
    if message is not None:
        assert refused.value.info.message == message
