"""Reasoning in templates that read none."""

from msgspec.structs import replace

from schemas.conversation import Call, Conversation, Message, Part, Reasoning, Result, Text
from services.families import find_family
from services.templates.messages import adapt
from services.templates.probe import probe, reasoning_tags
from tests.kit.conversations import user
from tests.templates.adapting import template_of

PLAIN = """
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}
{{- '\\n' if m.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""A template with calls and without reasoning, like Qwen2.5's."""
CUTTING = PLAIN.replace("(m.content or '')", "(m.content or '').split('</think>')[-1]")
"""A template that cuts off text before the closing tag, like those of R1's distillates."""
READING = PLAIN.replace("(m.content or '')", "(m.reasoning_content or '') + (m.content or '')")
HERMES = find_family("hermes")
LS, PWD = Call("c1", "ls", '{"path": "/"}'), Call("c2", "pwd", "{}")


def shown(*turn: Part) -> str:
    """The rendered turn, with results of its calls and a new question after it."""
    template = template_of(PLAIN)
    traits = probe(template)
    traits = replace(traits, reasoning_tags=reasoning_tags(template, traits, HERMES))
    results: list[Part] = [
        Result(part.call_id, [Text("ok")]) for part in turn if isinstance(part, Call)
    ]
    messages = [user("hi"), Message("assistant", list(turn))]
    messages += [Message("tool", results)] if results else []
    adapted = adapt(Conversation("m", [*messages, user("on")]), traits, template)
    text = template.render(adapted.messages)
    return text.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]


def test_tags_are_used_where_the_template_keeps_them() -> None:
    for source, tags in ((PLAIN, ("<think>\n", "\n</think>")), (CUTTING, None), (READING, None)):
        template = template_of(source)
        assert reasoning_tags(template, probe(template), HERMES) == tags
    template = template_of(PLAIN)
    assert reasoning_tags(template, probe(template), find_family("llama3_json")) is None


def test_each_reasoning_is_before_its_own_call() -> None:
    text = shown(Reasoning("Look."), Text("Let me see."), LS, Reasoning("And where?"), PWD)
    order = [
        "<think>\nLook.\n</think>\n\nLet me see.",
        '"ls"',
        "<think>\nAnd where?\n</think>",
        '"pwd"',
    ]
    places = [text.find(piece) for piece in order]
    assert -1 not in places
    assert places == sorted(places)
    text = shown(Reasoning("Look."), LS)
    assert text.startswith('<think>\nLook.\n</think>\n<tool_call>\n{"name": "ls"')
    # A turn without calls keeps no reasoning.
    assert shown(Reasoning("Hm."), Text("Hello.")) == "Hello."
