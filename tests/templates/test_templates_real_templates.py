"""One agent session through every published template: nothing raises, nothing outside reasoning is
lost, order holds, transformers and minijinja give the same text."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from schemas.conversation import (
    Call,
    Conversation,
    Media,
    Message,
    Reasoning,
    Result,
    Text,
    Thinking,
    ToolSpec,
)
from services.templates.chat_template import ChatTemplate
from services.templates.messages import adapt
from services.templates.thinking import template_variables
from services.templates.tools import list_tools, with_cached_json
from services.templates.trial_texts import render_trials
from tests.kit.conversations import assistant, result, user
from tests.kit.every import for_each
from tests.kit.published import TEMPLATES, needs_templates, traits_of

Compiled = Callable[[str], ChatTemplate]
pytestmark = needs_templates

TOOLS = [
    ToolSpec(
        "read",
        "reads",
        {"type": "object", "properties": {"path": {"type": "string", "description": "where"}}},
    ),
    ToolSpec("late", "loaded later", {"type": "object", "properties": {}}, deferred=True),
]


def call(number: int) -> Call:
    return Call(f"toolu_{number:02}Abc", "read", f'{{"path": "arg{number}z"}}')


def results(*numbers: int) -> Message:
    return Message(
        "tool", [Result(f"toolu_{number:02}Abc", [Text(f"res{number}z")]) for number in numbers]
    )


SESSION = [
    Message("user", [Text("use1z"), Text("use2z"), Media("image", "image/png", 9000)]),
    Message("system", [Text("sys1z")]),
    assistant(Reasoning("tho1z"), Text("say1z"), call(1), call(2)),
    results(1, 2),
    Message("system", [Text("sys2z")]),
    assistant(Reasoning("tho2z"), call(3), Reasoning("tho3z"), call(4)),
    results(3, 4),
    assistant(call(5)),
    result("res5z", "toolu_05Abc", is_error=True),
    assistant(Reasoning("tho4z"), Text("say2z")),
    user("use3z"),
    Message("developer", [Text("sys3z")]),
    assistant(Text("say3z"), call(6)),
    results(6),
]
LATER = [
    *SESSION,
    assistant(Reasoning("tho5z"), call(7), Reasoning("tho6z"), call(8)),
    results(7, 8),
]


def filled(
    template: ChatTemplate, messages: list[Message], thinking: str, tools: bool
) -> dict[str, Any]:
    """What the template is rendered with."""
    conversation = Conversation(
        "m",
        messages,
        system=[Text("sys0z")],
        tools=TOOLS if tools else [],
        thinking=Thinking(thinking),  # type: ignore[arg-type]
    )
    traits = traits_of(template)
    return {
        "messages": adapt(conversation, traits, template).messages,
        "tools": list_tools(conversation.tools),
        "variables": template_variables(conversation, traits.inputs, defaults={}, client={}),
    }


def render(template: ChatTemplate, messages: list[Message], thinking: str = "default") -> str:
    return template.render(**filled(template, messages, thinking, True))


def marks(text: str, kind: str) -> list[str]:
    return re.findall(rf"{kind}\dz", text)


def lost(template: ChatTemplate) -> set[str]:
    """Text beside a call that a template does not render, whatever the form.

    Old DeepSeek V3 drops it in every turn with calls but the first. Where text and reasoning
    exclude each other before a call (gpt-oss, Gemma 4 before July 2026), the text is rendered as
    reasoning, and is dropped with it at the next user.
    """
    traits = traits_of(template)
    if traits.calls.arguments is not None and "ns.is_first = true" in template.source:
        return {"say3z"}
    return set() if traits.calls.after_all else {"say1z"}


@for_each(TEMPLATES)
def test_session_keeps_its_texts_and_their_order(name: str, compiled_template: Compiled) -> None:
    template = compiled_template(name)
    text = render(template, SESSION)
    order = "sys0z use1z use2z sys1z res1z res2z sys2z res3z res4z res5z use3z sys3z res6z"
    assert marks(text, "(?:use|sys|res)") == order.split()
    assert marks(text, "arg") == [f"arg{number}z" for number in range(1, 7)]
    said = [mark for mark in ("say1z", "say2z", "say3z") if mark not in lost(template)]
    assert marks(text, "say") == said
    assert "[image: image/png, 9 KB; not shown to this model]" in text
    assert "[error] res5z" in text
    assert text.index("arg1z") < text.index("res1z")
    assert text.find("say1z") < text.index("arg1z")

    # Reasoning between calls is between them or absent.
    shown = re.findall(r"(?:tho[56]|arg[78])z", render(template, LATER, "enabled"))
    assert shown in (["tho5z", "arg7z", "tho6z", "arg8z"], ["arg7z", "arg8z"])
    assert traits_of(template).reasoning is None or "tho6z" in shown

    # Each prompt of a tool loop extends the last. The generation prompt may differ from the
    # beginning of the turn in history; the text before it may not.
    messages = SESSION[:4]
    before = render(template, messages)
    after = render(template, [*messages, assistant(Reasoning("tho7z"), call(3)), results(3)])
    seam = before.rindex("res2z") + len("res2z")
    assert after.startswith(before[:seam])


@for_each(TEMPLATES)
def test_every_mode_renders_as_in_transformers(
    name: str, compiled_template: Compiled, by_transformers: Callable[..., str]
) -> None:
    template = compiled_template(name)
    for thinking, tools in (("default", True), ("enabled", False), ("disabled", True)):
        given = filled(template, LATER, thinking, tools)
        offered = given["tools"] or None
        expected = by_transformers(
            template.source, given["messages"], tools=offered, **given["variables"]
        )
        assert template.render(**given) == expected
        assert marks(expected, "res")
    given["tools"] = list(map(with_cached_json, given["tools"]))
    assert template.render(**given) == expected


@pytest.mark.slow
@for_each(TEMPLATES)
def test_published_template_is_rendered_by_minijinja(
    name: str, compiled_template: Compiled
) -> None:
    assert len(TEMPLATES) > 40
    template = compiled_template(name)
    with template.renderer.proving():
        render_trials(template, traits_of(template))
    assert template.renderer.engine == "minijinja", template.renderer.reason
