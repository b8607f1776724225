"""Turns of the model that the three fields cannot hold in order."""

from typing import Any

from msgspec.structs import replace

from schemas.conversation import Message, Reasoning, Result, Text
from services.templates.traits import TemplateTraits, ThoughtSeparators
from tests.templates.adapting import assistant, call, result, template_messages, user

TURN = assistant(Reasoning("r1"), call("A"), Reasoning("r2"), Text("t2"), call("B", call_id="c2"))


def test_parts_keep_their_order() -> None:
    found = template_messages(TURN, traits=TemplateTraits(ordered=True))
    assert [part["type"] for part in found[0]["content"]] == [
        "reasoning",
        "tool_call",
        "reasoning",
        "text",
        "tool_call",
    ]


def inline(**more: Any) -> TemplateTraits:
    return TemplateTraits(
        reasoning="reasoning_content",
        interleaved="inline",
        frame=("[user][assistant]", "[end]"),
        separators=ThoughtSeparators("<think>", "</think>", "</think>\n"),
        text_join="\n",
        call_join=";",
        **more,
    )


def test_interleaved_turn_uses_the_templates_markup() -> None:
    found = template_messages(TURN, traits=inline(inline_reasoning=True))
    assert found == [
        {
            "role": "assistant",
            "content": "\n<A>;<think>r2</think>t2\n<B>",
            "reasoning_content": "r1",
        }
    ]


def test_thought_after_a_text_begins_a_line() -> None:
    turn = assistant(Text("a "), Reasoning("r"), Text("b\n"), Reasoning("s"), call("A"))
    traits = replace(inline(inline_reasoning=True), text_join="")
    (found,) = template_messages(turn, traits=traits)
    assert found["content"] == "a \n<think>r</think>b\n<think>s</think>\n<A>"


def test_last_calls_stay_in_their_field_where_the_text_is_the_same() -> None:
    found = template_messages(TURN, traits=inline(inline_reasoning=True, inline_tail=True))
    assert found[0]["content"] == "\n<A>;<think>r2</think>t2"
    assert [c["function"]["name"] for c in found[0]["tool_calls"]] == ["B"]


def test_text_after_a_call_is_sorted_where_results_need_calls_before_them() -> None:
    messages = (assistant(call("A"), Text("t")), result("r"))
    traits = inline(inline_reasoning=True, inline_tail=True, inline_text_end=False)
    found = template_messages(*messages, traits=traits)
    assert [message["role"] for message in found] == ["assistant", "tool"]
    assert [c["function"]["name"] for c in found[0]["tool_calls"]] == ["A"]
    assert found[0]["content"] == "t"


def test_later_reasoning_is_left_out_rather_than_moved() -> None:
    found = template_messages(TURN, traits=inline())
    assert found == [{"role": "assistant", "content": "\n<A>;t2\n<B>", "reasoning_content": "r1"}]


def test_interleaved_turn_is_split_into_messages() -> None:
    found = template_messages(TURN)
    assert [(m["content"], m.get("reasoning_content"), len(m["tool_calls"])) for m in found] == [
        ("", "r1", 1),
        ("t2", "r2", 1),
    ]


def test_results_of_a_split_turn_follow_their_calls() -> None:
    results = Message("tool", [Result("c1", [Text("one")]), Result("c2", [Text("two")])])
    found = template_messages(TURN, results, user("next"))
    assert [(m["role"], m["content"]) for m in found] == [
        ("assistant", ""),
        ("tool", "one"),
        ("assistant", "t2"),
        ("tool", "two"),
        ("user", "next"),
    ]


def test_fields_without_later_reasoning_are_the_last_resort() -> None:
    found = template_messages(TURN, traits=TemplateTraits(reasoning="thinking", interleaved="drop"))
    assert len(found) == 1
    assert (found[0]["thinking"], found[0]["content"], len(found[0]["tool_calls"])) == (
        "r1",
        "t2",
        2,
    )


def test_each_call_has_its_own_message_without_parallel_calls() -> None:
    traits = TemplateTraits(parallel=False, interleaved="split")
    found = template_messages(
        assistant(Text("t"), call("A"), call("B", call_id="c2")), traits=traits
    )
    assert [(m["content"], [c["function"]["name"] for c in m["tool_calls"]]) for m in found] == [
        ("t", ["A"]),
        ("", ["B"]),
    ]


def test_text_joins_reasoning_where_they_exclude_each_other() -> None:
    traits = TemplateTraits(
        reasoning="thinking", all_with_call=False, all_before_call=False, interleaved="split"
    )
    found = template_messages(assistant(Reasoning("r"), Text("t"), call()), traits=traits)
    assert [(m["thinking"], m["content"], len(m["tool_calls"])) for m in found] == [
        ("r\n\nt", "", 1)
    ]


def test_text_before_a_call_has_its_own_message() -> None:
    traits = TemplateTraits(text_with_call=False, all_with_call=False, interleaved="split")
    found = template_messages(assistant(Text("t"), call()), traits=traits)
    assert [(m["content"], "tool_calls" in m) for m in found] == [("t", False), ("", True)]


def test_calls_that_a_template_never_renders_become_text() -> None:
    traits = TemplateTraits(arguments=None, tool_role=False)
    found = template_messages(user("hi"), assistant(Text("t"), call()), result("r"), traits=traits)
    assert (
        found[1]["content"]
        == 't\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    )
    assert found[2] == {"role": "user", "content": "<tool_response>\nr\n</tool_response>"}
