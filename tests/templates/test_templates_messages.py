"""A conversation as the messages that a template reads."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Reasoning,
    Result,
    Text,
    ToolReference,
    ToolSpec,
)
from services.templates.messages import adapt
from services.templates.tools import list_tools
from services.templates.traits import CallForm, InlineForm, TemplateTraits
from tests.kit.conversations import assistant, call, result, user
from tests.kit.every import for_rows
from tests.templates.adapting import NoTemplate, adapted, template_messages


def test_tool_loop_uses_the_usual_fields() -> None:
    messages = [
        user("do it"),
        assistant(Reasoning("why"), Text("Now."), call()),
        result("done"),
        assistant(Text("Yes.")),
    ]
    function = {"name": "Bash", "arguments": {"command": "ls"}}
    assert template_messages(*messages, system=["Be brief."]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "do it"},
        {
            "role": "assistant",
            "content": "Now.",
            "reasoning_content": "why",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "done", "tool_call_id": "c1", "name": "Bash"},
        {"role": "assistant", "content": "Yes."},
    ]


def test_leading_instructions_are_one_message_for_every_api() -> None:
    messages = [Message("system", [Text("b")]), Message("developer", [Text("c")]), user("hi")]
    assert template_messages(*messages, system=["a"])[0] == {"role": "system", "content": "a\nb\nc"}


REMINDERS = (
    user("hi"),
    Message("system", [Text("now French")]),
    assistant(call()),
    result(),
    Message("developer", [Text("stop")]),
)


def roles(messages: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(message["role"] for message in messages)


def test_instructions_inside_the_conversation_stay_or_become_tagged_text() -> None:
    assert roles(template_messages(*REMINDERS)) == "user system assistant tool system"
    french = "<system-reminder>\nnow French\n</system-reminder>"

    first = TemplateTraits(system="first")
    found = template_messages(*REMINDERS, traits=first, system=["s"])
    assert roles(found) == "system user user assistant tool"
    assert found[2]["content"] == french
    assert found[4]["content"] == "ok\n\n<system-reminder>\nstop\n</system-reminder>"

    # Two messages of the user may not follow each other.
    found = template_messages(*REMINDERS, traits=replace(first, adjacent_users=False))
    assert roles(found) == "user assistant tool"
    assert found[0]["content"] == f"hi\n\n{french}"


def test_instructions_join_the_first_user_message_without_a_system_role() -> None:
    how: dict[str, Any] = {"traits": TemplateTraits(system="none"), "system": ["Be brief."]}
    first, second = template_messages(user("hi"), user("you"), **how)
    assert first == {"role": "user", "content": "Be brief.\n\nhi"}
    assert second == {"role": "user", "content": "you"}
    first, _ = template_messages(assistant(Text("hello")), **how)
    assert first == {"role": "user", "content": "Be brief."}


def test_user_message_joins_a_result_where_it_may_not_follow_one() -> None:
    traits = TemplateTraits(user_after_tool=False)
    messages = (user("a"), assistant(call()), result("r"), user("b"))
    found = template_messages(*messages, traits=traits)
    assert roles(found) == "user assistant tool"
    assert found[2]["content"] == "r\n\nb"


def test_media_become_notes_in_place() -> None:
    image = Media("image", "image/png", 49_000)
    message = Message("user", [Text("see"), image, Media("document", title="a.pdf"), Text("there")])
    assert template_messages(message)[0]["content"] == (
        "see\n[image: image/png, 48 KB; not shown to this model]\n"
        '[document "a.pdf"; not shown to this model]\nthere'
    )
    shot = Message("tool", [Result("c1", [Media("image", size_bytes=3_145_728)])])
    _, found = template_messages(assistant(call()), shot)
    assert found["content"] == "[image: 3.0 MB; not shown to this model]"


def test_result_has_its_prefix_and_its_call() -> None:
    results = (result("no such file", is_error=True), result("fine", is_error=False))
    found = template_messages(assistant(call()), *results)
    assert [message["content"] for message in found[1:]] == ["[error] no such file", "fine"]
    (late,) = template_messages(result("late"))
    assert late == {"role": "user", "content": "<tool_response>\nlate\n</tool_response>"}


def test_deferred_tools_are_defined_where_they_were_loaded() -> None:
    grep = ToolSpec("Grep", "search", {"type": "object"})
    cron = ToolSpec("Cron", "schedule", {"type": "object"}, deferred=True)
    loaded = Message("tool", [Result("c1", [ToolReference("Cron"), Text("Tool loaded.")])])
    found = adapted(user("hi"), assistant(call()), loaded, tools=[cron, grep])
    assert [tool["function"]["name"] for tool in list_tools([cron, grep])] == ["Grep"]
    assert found.messages[-1]["content"] == (
        '{"type": "function", "function": {"name": "Cron", "description": "schedule", '
        '"parameters": {"type": "object"}}}\nTool loaded.'
    )


def called(call: Call, **how: Any) -> dict[str, Any]:
    """A call as the template reads it."""
    found: dict[str, Any] = template_messages(assistant(call), **how)[0]["tool_calls"][0]
    return found


def test_freeform_tool_is_a_function_with_one_string_and_a_namespace_part_of_its_name() -> None:
    patch, browser = ToolSpec("patch", kind="custom"), ToolSpec("open", namespace="browser")
    assert list_tools([patch])[0]["function"]["parameters"]["required"] == ["input"]
    found = called(Call("c1", "patch", "*** Begin", kind="custom"), tools=[patch])
    assert found["function"]["arguments"] == {"input": "*** Begin"}

    assert list_tools([browser])[0]["function"]["name"] == "browser__open"
    turn = assistant(Call("c1", "open", "{}", namespace="browser"))
    first, second = template_messages(turn, result(), tools=[browser])
    assert first["tool_calls"][0]["function"]["name"] == second["name"] == "browser__open"


@for_rows(
    [
        ('{"b": 1, "a": [1.0, true, null, "é"]}', {"b": 1, "a": [1.0, True, None, "é"]}),
        ("", {}),
        ("[1]", {"__unparsed": "[1]"}),
        ("[" * 100_000, {"__unparsed": "[" * 100_000}),
    ]
)
def test_arguments_are_an_object(arguments: str, value: dict[str, Any]) -> None:
    assert called(call(arguments=arguments))["function"]["arguments"] == value


def test_argument_strings_have_one_spelling() -> None:
    traits = TemplateTraits(calls=CallForm(arguments="string"))
    for spelling in ('{"b":1,"a":"\\u00e9"}', '{ "b": 1, "a": "é" }'):
        found = called(call(arguments=spelling), traits=traits)
        assert found["function"]["arguments"] == '{"b": 1, "a": "é"}'


@for_rows(
    [
        ("client", ["toolu_x", "toolu_y"], True),
        ("counted", ["functions.Bash:0", "functions.Bash:1"], True),
        ("short", ["000000000", "000000001"], False),
    ]
)
def test_ids_count_by_position_and_those_of_the_model_are_kept(
    rule: Any, ids: list[str], kept: bool
) -> None:
    """Turns that the ledger restored have the model's ids, but not in templates that raise at other
    forms."""
    traits = TemplateTraits(calls=CallForm(ids=rule))
    turn = assistant(call(call_id="toolu_x"), call(call_id="toolu_y"))
    found = template_messages(turn, result(call_id="toolu_y"), traits=traits)
    assert [c["id"] for c in found[0]["tool_calls"]] == ids
    assert found[1]["tool_call_id"] == ids[1]

    turn = assistant(replace(call(call_id="toolu_x"), original_id="functions.Bash:7"))
    found = template_messages(turn, result("a", "toolu_x"), traits=traits)
    assert (found[0]["tool_calls"][0]["id"] == "functions.Bash:7") is kept
    assert found[1]["tool_call_id"] == found[0]["tool_calls"][0]["id"]


def test_reasoning_is_its_sealed_text_a_part_or_absent() -> None:
    (found,) = template_messages(assistant(Reasoning(None, "sealed"), Text("yes")))
    assert found["reasoning_content"] == "unsealed thought"
    for reasoning in (Reasoning(None, "foreign"), Reasoning(), Reasoning("", "foreign")):
        (found,) = template_messages(assistant(reasoning, Text("yes")))
        assert found == {"role": "assistant", "content": "yes"}
    part = TemplateTraits(reasoning="part")
    (found,) = template_messages(assistant(Reasoning("r"), Text("a")), traits=part)
    assert found["content"] == [
        {"type": "thinking", "thinking": "r"},
        {"type": "text", "text": "a"},
    ]


def test_adjacent_assistant_messages_are_one_and_blank_texts_are_dropped() -> None:
    thought, text = assistant(Reasoning("r")), assistant(Text("a"))
    whole = template_messages(assistant(Reasoning("r"), Text("a"), call()))
    assert template_messages(thought, text, assistant(call())) == whole
    blank = template_messages(assistant(Reasoning("r"), Text("\n\n"), call()))
    assert blank == template_messages(assistant(Reasoning("r"), call()))
    assert template_messages(assistant(Text("")))[0]["content"] == ""


def test_vision_templates_get_text_parts() -> None:
    (message,) = template_messages(user("a"), traits=TemplateTraits(content="parts"))
    assert message["content"] == [{"type": "text", "text": "a"}]


@for_rows(
    [
        (assistant(Reasoning("r"), Text("The")), True),
        (assistant(Reasoning("r")), False),
        (assistant(call()), False),
        (user("hi"), False),
    ]
)
def test_last_message_that_ends_in_text_is_continued(last: Message, continues: bool) -> None:
    assert adapted(user("hi"), last).continues is continues
    conversation = Conversation("m", [user("hi"), last], continues_answer=False)
    assert not adapt(conversation, TemplateTraits(), NoTemplate()).continues


IMAGE = Media("image")
CALLS = st.builds(Call, st.sampled_from("ab"), st.just("Bash"), st.sampled_from(["{}", "{"]))
RESULTS = st.builds(
    Result, st.sampled_from("az"), st.lists(st.builds(Text, st.text(max_size=3)), max_size=2)
)
TEXTS = st.text("ab \n", max_size=5)
PARTS = st.builds(Text, TEXTS) | st.builds(Reasoning, TEXTS) | CALLS | RESULTS | st.just(IMAGE)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
TURNS = st.lists(st.builds(Message, ROLES, st.lists(PARTS, max_size=4)), max_size=6)
EITHER = st.booleans()
CALL_FORMS = st.builds(
    CallForm,
    arguments=st.sampled_from(["object", "string", None]),
    ids=st.sampled_from(["client", "short", "counted"]),
    **dict.fromkeys(("parallel", "with_text", "with_all", "after_all"), EITHER),
)
INLINE_FORMS = st.builds(
    InlineForm,
    reasoning=EITHER,
    tail=EITHER,
    frame=st.just(("[user][assistant]", "[end]")),
)
SWITCHES = ("ordered", "adjacent_users", "user_after_tool", "tool_role", "tool_name")
TRAITS = st.builds(
    TemplateTraits,
    content=st.sampled_from(["text", "parts"]),
    system=st.sampled_from(["anywhere", "first", "none"]),
    reasoning=st.sampled_from(["reasoning_content", "reasoning", "thinking", "part", None]),
    calls=CALL_FORMS,
    interleaved=st.sampled_from(["inline", "split", "drop"]),
    inline=INLINE_FORMS,
    **dict.fromkeys(SWITCHES, EITHER),
)


@given(TURNS, TRAITS)
def test_every_conversation_has_a_form_under_all_traits_and_keeps_its_media(
    messages: list[Message], traits: TemplateTraits
) -> None:
    found = template_messages(*messages, traits=traits, system=["s"])
    assert {*roles(found).split()} <= {"system", "user", "assistant", "tool"}
    assert {type(message["content"]) for message in found} <= {str, list}
    if traits.system != "anywhere":
        assert "system" not in roles(found[1:])
    media = [part for message in messages for part in message.parts if isinstance(part, Media)]
    assert str(found).count("[image") == len(media)
