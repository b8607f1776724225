"""Turns of the model that the three fields cannot hold in order."""

from typing import Any

from schemas.conversation import Message, Reasoning, Result, Text
from services.templates.traits import CallForm, InlineForm, TemplateTraits, ThoughtSeparators
from tests.kit.conversations import assistant, call, result, user
from tests.kit.every import for_rows
from tests.templates.adapting import IDEAL, template_messages

TURN = assistant(Reasoning("r1"), call("A"), Reasoning("r2"), Text("t2"), call("B", call_id="c2"))
ALTERNATING = assistant(Text("a "), Reasoning("r"), Text("b\n"), Reasoning("s"), call("A"))
TWO_CALLS = assistant(Text("t"), call("A"), call("B", call_id="c2"))
EXCLUSIVE = TemplateTraits(
    reasoning="thinking",
    calls=CallForm(with_all=False, after_all=False),
    interleaved="split",
)


def inline(**more: Any) -> TemplateTraits:
    form: dict[str, Any] = {"text_join": "\n", "call_join": ";", **more}
    return TemplateTraits(
        reasoning="reasoning_content",
        interleaved="inline",
        inline=InlineForm(
            frame=("[user][assistant]", "[end]"),
            separators=ThoughtSeparators("<think>", "</think>", "</think>\n"),
            **form,
        ),
    )


@for_rows(
    [
        # With the template's own markup, in the content.
        (TURN, inline(reasoning=True), [("\n<A>;<think>r2</think>t2\n<B>", "r1", [])]),
        (
            ALTERNATING,
            inline(reasoning=True, text_join=""),
            [("a \n<think>r</think>b\n<think>s</think>\n<A>", "", [])],
        ),
        # Last calls stay in their field where the text is the same.
        (
            TURN,
            inline(reasoning=True, tail=True),
            [("\n<A>;<think>r2</think>t2", "r1", ["B"])],
        ),
        # Later reasoning is left out rather than moved.
        (TURN, inline(), [("\n<A>;t2\n<B>", "r1", [])]),
        # Several messages.
        (TURN, IDEAL, [("", "r1", ["A"]), ("t2", "r2", ["B"])]),
        (
            TWO_CALLS,
            TemplateTraits(calls=CallForm(parallel=False), interleaved="split"),
            [("t", None, ["A"]), ("", None, ["B"])],
        ),
        # Text joins the reasoning where they exclude each other.
        (assistant(Reasoning("r"), Text("t"), call("A")), EXCLUSIVE, [("", "r\n\nt", ["A"])]),
        # The fields, without later reasoning, are the last resort.
        (
            TURN,
            TemplateTraits(reasoning="thinking", interleaved="drop"),
            [("t2", "r1", ["A", "B"])],
        ),
    ]
)
def test_turn_is_written_in_the_form_that_its_template_keeps(
    turn: Message, traits: TemplateTraits, expected: list[tuple[str, str | None, list[str]]]
) -> None:
    found = []
    for message in template_messages(turn, traits=traits):
        names = [call["function"]["name"] for call in message.get("tool_calls", [])]
        found.append((message["content"], message.get(str(traits.reasoning)), names))
    assert found == expected


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


def test_calls_that_a_template_never_renders_become_text() -> None:
    traits = TemplateTraits(calls=CallForm(arguments=None), tool_role=False)
    found = template_messages(user("hi"), assistant(Text("t"), call()), result("r"), traits=traits)
    assert (
        found[1]["content"]
        == 't\n<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    )
    assert found[2] == {"role": "user", "content": "<tool_response>\nr\n</tool_response>"}
