"""Tests how input items become messages, each kind by itself and together."""

import base64
import json
from typing import Any

import pytest
from msgspec import Raw

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text, ToolReference
from schemas.errors import Invalid, NotFound
from services.frontend.apis.responses.parse.body import decode
from services.frontend.apis.responses.parse.compaction import COMPACTED, seal_summary
from services.frontend.apis.responses.request import Responses, ResponsesRequest
from services.frontend.content.pdf_document import make_document
from services.frontend.turns.compaction import SUMMARIZE
from tests.kit.bodies import (
    USER,
    Json,
    assistant,
    block,
    function,
    function_call,
    function_output,
    message,
    responses,
    user,
)
from tests.kit.every import for_rows
from tests.kit.frontend import messages_as_notes

CALL = function_call(arguments='{"at": 1.0}')


class Box:
    """A sealer for tests."""

    def seal(self, text: str) -> str:
        return "box:" + text

    def open(self, blob: str) -> str | None:
        return blob.removeprefix("box:") if blob.startswith("box:") else None


def ask(
    *items: Any, body: Json | None = None, stored: Any = None, **options: Any
) -> ResponsesRequest:
    request = decode(json.dumps(responses(*items, **(body or {}))).encode())
    if stored is not None:
        request = request.with_references(stored)
    return Responses().convert(request, {}, **options)


def read_messages(*items: Any, **options: Any) -> list[Message]:
    return messages_as_notes(ask(*items, **options).conversation)


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def roles(messages: list[Message]) -> list[str]:
    return [message.role for message in messages]


def test_all_forms_of_a_user_message_are_equal() -> None:
    marked = block("input_text", text="Hi.", prompt_cache_breakpoint=block("", mode="explicit"))
    forms = [
        USER,
        user("Hi.", type="message", id="msg_1"),
        user(block("input_text", text="Hi.")),
        user(marked, status="completed"),
        user(block("text", text="Hi."), internal_chat_message_metadata_passthrough={}),
    ]
    for form in forms:
        assert read_messages(form) == [Message("user", [Text("Hi.")])], form
    assert read_messages() == read_messages(USER)


FOO = block("foo", id="foo_1")
UNKNOWN_QUESTION = user(block("input_smell", smell="x"))
TOOLS = block("mcp_list_tools", server_label="s", tools=[])


@for_rows(
    [
        ([FOO], "'foo'"),
        ([FOO, FOO, block("bar")], "'bar', 'foo'"),
        ([TOOLS], "'mcp_list_tools'"),
        ([UNKNOWN_QUESTION, FOO], "'foo', 'message'"),
        ([FOO, block("computer_call_output", call_id="c", output=block("smell"))], "'computer_"),
        ([FOO, UNKNOWN_QUESTION], "'input_smell'"),
    ]
)
def test_input_of_which_nothing_remains_is_refused(items: list[Any], named: str) -> None:
    """It would ask nothing, also after an earlier response."""
    for history in ((), [raw(USER), raw(assistant("Hi."))]):
        with pytest.raises(Invalid) as refused:
            ask(*items, history=history)
        assert refused.value.info.code == "invalid_value"
        assert named in refused.value.info.message


def test_unknown_item_beside_others_is_left_out() -> None:
    for items in ((FOO, USER), (USER, FOO)):
        asked = ask(*items)
        assert asked.notes == ["foo"]
        assert asked.conversation.messages == [Message("user", [Text("Hi.")])]


def test_assistant_message_has_the_ids_of_its_items() -> None:
    reply = assistant("Hello.", type="message", id="msg_1")
    empty = block("reasoning", id="rs_1", summary=[])
    found = read_messages(USER, empty, reply, USER, {**reply, "id": None})
    assert [message.ids for message in found] == [[], ["rs_1", "msg_1"], [], []]
    assert read_messages(USER, {**empty, "id": None}) == read_messages(USER)


def test_consecutive_items_of_the_model_are_one_message() -> None:
    patch = {"call_id": "c2", "name": "patch", "input": 'a "b"\n', "namespace": "ns", "id": "ctc"}
    found = read_messages(
        USER,
        block("reasoning", id="rs_1", summary=[], content=[block("reasoning_text", text="A")]),
        assistant(block("output_text", text="B", annotations=[]), phase="commentary"),
        CALL,
        block("reasoning", summary=[], content=None, encrypted_content="seal"),
        block("custom_tool_call", **patch),
        block("custom_tool_call_output", call_id="c2", output="two"),
        function_output(output=[block("input_text", text="one")]),
        assistant(block("refusal", refusal="No.")),
    )
    parts: list[Part] = [
        Reasoning("A", id="rs_1"),
        Text("B"),
        Call("call_1", "look", '{"at": 1.0}'),
        Reasoning(None, "seal"),
        Call("c2", "patch", '{"input":"a \\"b\\"\\n"}', "custom", "ns", "ctc"),
    ]
    one, two = Text("one"), Text("two")
    assert found[1] == Message("assistant", parts)
    assert found[2].parts == [
        Result("call_1", [one], name="look"),
        Result("c2", [two], name="ns__patch"),
    ]
    assert found[2].role == "tool"
    assert found[3] == Message("assistant", [Text("No.")])


TEXT_A = {"content": [block("reasoning_text", text="A")]}
SUMMED = {"summary": [block("summary_text", text="S"), block("summary_text", text="T")]}
SEALED = {"encrypted_content": "box:B"}


@for_rows(
    [
        (TEXT_A | SEALED, True, ("A", "box:B", [])),
        (SUMMED | SEALED, True, ("B", "box:B", ["S", "T"])),
        (SUMMED | {"encrypted_content": "foreign"}, True, ("S\n\nT", "foreign", [])),
        (SUMMED | SEALED, False, (None, "box:B", ["S", "T"])),
        (SUMMED, False, ("S\n\nT", None, [])),
    ]
)
def test_thought_is_its_text_else_its_seal_else_its_summary(
    fields: Json, with_key: bool, expected: tuple[Any, ...]
) -> None:
    sealer = Box() if with_key else None
    found = read_messages(USER, block("reasoning", **fields), CALL, sealer=sealer)[1].parts[0]
    assert isinstance(found, Reasoning)
    assert (found.text, found.seal, found.summary) == expected


def test_result_without_its_call_is_refused() -> None:
    output = function_output("c9", "x")
    with pytest.raises(
        Invalid, match="No tool call found for function call output with call_id c9"
    ):
        read_messages(USER, output)
    assert read_messages(USER, output, counting=True)[1].role == "tool"
    paired = read_messages(output, history=[raw(function_call("c9"))])
    assert paired[1].parts == [Result("c9", [Text("x")], name="look")]
    nameless = block("function_call_output", output="x", name="look", namespace="ns")
    assert read_messages(USER, nameless)[1].parts == [Result("", [Text("x")], name="ns__look")]


def test_shell_and_patch_calls_are_calls_of_their_rendered_tools() -> None:
    execution = block("exec", command=["ls"], env={})
    commands = {"commands": ["ls", "pwd"], "timeout_ms": 5}
    deletion = block("delete_file", path="x")
    ended = {"stdout": "x\n", "stderr": "y", "outcome": block("exit", exit_code=2)}
    late = {"stdout": "", "stderr": "", "outcome": block("timeout")}
    found = read_messages(
        USER,
        block("local_shell_call", id="lsh_1", call_id="a", action=execution),
        block("shell_call", call_id="b", action=commands),
        block("apply_patch_call", call_id="c", status="completed", operation=deletion),
        block("local_shell_call_output", id="lsh_1", output="one"),
        block("shell_call_output", call_id="b", output=[ended, late]),
        block("apply_patch_call_output", call_id="c", status="failed"),
    )
    calls = [
        (part.name, json.loads(part.arguments)) for part in found[1].parts if isinstance(part, Call)
    ]
    assert calls == [
        ("local_shell", {"command": ["ls"], "env": {}}),
        ("shell", commands),
        ("apply_patch", deletion),
    ]
    outputs: list[Any] = [Text("x\ny\n[exit code 2]"), Text("[timed out]")]
    failed = Text("The patch could not be applied.")
    assert found[2].parts == [
        Result("a", [Text("one")], name="local_shell"),
        Result("b", outputs, name="shell"),
        Result("c", [failed], is_error=True, name="apply_patch"),
    ]


def searched(id: str | None, *tools: Json, execution: str = "client") -> list[Json]:
    """A search for tools, and its result."""
    call = block("tool_search_call", call_id=id, execution=execution, arguments={})
    return [call, block("tool_search_output", call_id=id, tools=[*tools], execution=execution)]


F = block("function", name="f")


def test_tools_from_a_search_are_available_after_it() -> None:
    described = block("function", name="f", description="F.")
    namespace = block("namespace", name="ns", description="About.", tools=[described])
    items = [*searched("s1", namespace), *searched("s2"), *searched("s3", namespace)]
    asked = ask(USER, *items, body={"tools": [block("tool_search", execution="client")]})
    results = [
        part.parts
        for message in asked.conversation.messages
        for part in message.parts
        if isinstance(part, Result)
    ]
    reference, nothing = ToolReference("ns__f"), Text("No tools were found.")
    assert results == [[reference], [nothing], [reference]]
    client, loaded = asked.conversation.tools
    assert (client.name, client.deferred) == ("tool_search", False)
    assert (loaded.namespace, loaded.name, loaded.deferred) == ("ns", "f", True)
    assert loaded.description == "ns: About.\n\nF."


def test_call_of_a_function_that_openai_found_has_its_name() -> None:
    """OpenAI's servers put it into a namespace of its own name."""
    call = function_call("c", "look", namespace="look")
    found = ask(USER, call, function_output("c"), body={"tools": [function("look")]})
    (made,) = found.conversation.messages[1].parts
    assert isinstance(made, Call)
    assert (made.name, made.namespace) == ("look", None)


def test_search_run_by_a_server_adds_only_its_tools() -> None:
    found = ask(USER, *searched(None, F, execution="server"))
    assert found.conversation.messages == read_messages(USER)
    assert [(tool.name, tool.deferred) for tool in found.conversation.tools] == [("f", False)]


def test_additional_tools_and_configuration_updates_apply() -> None:
    functions = block("namespace", name="functions", tools=[block("custom", name="exec")])
    as_json = {"format": block("json_object")}
    reasoning = {"effort": "medium", "context": "all_turns"}
    found = ask(
        block("additional_tools", role="developer", tools=[functions]),
        USER,
        block("configuration_update", reasoning={"effort": "high"}),
        block("configuration_update", reasoning={"effort": "low"}, text=as_json),
        body={"reasoning": reasoning, "text": {"verbosity": "low"}},
    ).conversation
    (tool,) = found.tools
    assert (tool.kind, tool.namespace, tool.name) == ("custom", "functions", "exec")
    thinking = found.thinking
    assert (thinking.mode, thinking.effort, thinking.history) == ("enabled", "low", "keep")
    assert found.format is not None
    assert found.format.kind == "json_object"
    assert found.verbosity == "low"
    assert found.messages == read_messages(USER)


def test_returned_compaction_becomes_its_summary() -> None:
    sealed = seal_summary(Box(), "All is well.")
    item = block("compaction", id="cmp_1", encrypted_content=sealed)
    found = read_messages(message("developer", "Base."), item, USER, sealer=Box())
    assert found[1] == Message("user", [Text(COMPACTED + "All is well.")])
    assert roles(found) == ["developer", "user", "user"]
    for sealer, blob in ((Box(), "foreign"), (Box(), Box().seal("a thought")), (None, sealed)):
        with pytest.raises(Invalid) as refused:
            read_messages(USER, block("compaction", encrypted_content=blob), sealer=sealer)
        assert refused.value.info.code == "invalid_encrypted_content"
        assert refused.value.info.param == "input[1].encrypted_content"


TRIGGER = block("compaction_trigger")


def test_compaction_trigger_requests_a_summary() -> None:
    found = ask(USER, TRIGGER, sealer=Box(), body={"tools": [F], "tool_choice": "required"})
    assert found.sealer is not None
    assert found.conversation.messages[-1] == Message("user", [Text(SUMMARIZE)])
    assert found.conversation.tool_choice.mode == "none"
    assert found.conversation.tools
    compacting = ask(USER, sealer=Box(), compacting=True)
    assert compacting.conversation.messages == found.conversation.messages
    with pytest.raises(Invalid, match="last item"):
        ask(TRIGGER, USER, sealer=Box())
    with pytest.raises(Invalid, match="no key"):
        ask(USER, TRIGGER)
    over = read_messages(USER, history=[raw(USER), raw(TRIGGER)])
    assert over == [*read_messages(USER), *read_messages(USER)]


def test_references_are_replaced_by_their_items() -> None:
    def reference(id: str | None) -> Json:
        return block("item_reference", id=id)

    stored = {"msg_1": raw(user("Stored.", type="message")), "fc_1": raw(CALL)}
    items = (reference("msg_1"), {"id": "fc_1"}, {"type": None, "id": "msg_1"})
    found = read_messages(*items, stored=stored)
    assert roles(found) == ["user", "assistant", "user"]
    assert found[0].parts == [Text("Stored.")]
    assert decode(json.dumps(responses(*items)).encode()).references == ["msg_1", "fc_1", "msg_1"]
    for known in (stored, None):
        with pytest.raises(NotFound, match=r"Item with id 'x' not found\."):
            read_messages(USER, reference("x"), stored=known)
    with pytest.raises(Invalid) as refused:
        read_messages(USER, reference(None), stored=stored)
    assert refused.value.info.param == "input[1].id"


def test_images_and_files_become_media() -> None:
    notes = "data:text/markdown;base64," + base64.b64encode("# Ü\n".encode()).decode()
    pdf = base64.b64encode(b"%PDF-").decode()
    content = [
        block("input_image", image_url="data:image/png;base64,AAAA", detail="auto"),
        block("input_image", image_url="https://x/y.png"),
        block("input_file", file_data=notes, filename="a.md"),
        block("input_file", file_data=pdf, filename="b.pdf"),
        block("input_file", file_url="https://x/z.pdf"),
        block("input_audio", input_audio={"data": "", "format": "mp3"}),
    ]
    expected: list[Any] = [
        Media("image", "image/png", 3),
        Media("image", url="https://x/y.png"),
        Text("Title: a.md\n\n# Ü\n"),
        make_document("application/pdf", pdf, 5, "b.pdf", "Title: b.pdf\n\n"),
        Media("document", url="https://x/z.pdf"),
        Media("audio"),
    ]
    assert read_messages(user(*content))[0].parts == expected
    answered = read_messages(CALL, function_output(output=content))
    assert answered[1].parts == [Result("call_1", expected, name="look")]
    with pytest.raises(Invalid) as refused:
        read_messages(user(block("input_file")))
    assert str(refused.value.info.param).startswith("input[0].content[0]")


SOURCES = block("search", query="cats", sources=[block("url", url="https://x")])
LOG = {"server_label": "git", "name": "log", "arguments": "{}", "output": "x"}


@for_rows(
    [
        (block("web_search_call", id="ws", action=SOURCES), "[web_search_call cats https://x]"),
        (block("mcp_call", id="m", **LOG), "[mcp_call git log {}]\nx"),
        (block("program_output", id="p", call_id="x", result="ok"), "[program_output]\nok"),
    ]
)
def test_items_of_other_servers_tools_become_text(item: Json, text: str) -> None:
    assert read_messages(USER, item) == [*read_messages(USER), Message("assistant", [Text(text)])]
