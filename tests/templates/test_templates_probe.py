"""The traits of small templates with one deviation each, of our own template, and of published
ones."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from services.templates.chat_template import ChatTemplate
from services.templates.probe import image_frame, probe
from services.templates.traits import InlineForm, TemplateInputs, TemplateTraits, ThoughtSeparators
from services.tokenization.tokenizer_files import LoadedTokenizer
from tests.kit.every import for_each, for_rows
from tests.kit.published import TEMPLATE_FILES, needs_templates
from tests.templates.adapting import template_of

PLAIN = """
{%- for m in messages -%}
<{{ m.role }}>
{%- if m.role == 'assistant' -%}
{{ '<think>' + m.reasoning_content + '</think>' if m.reasoning_content else '' }}{{ m.content }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n<call>' + c.function.name + c.function.arguments | tojson + '</call>' }}
{%- endfor -%}
{%- else -%}
{{ m.content }}
{%- endif -%}
<end>
{%- endfor -%}
{{ '<assistant>' if add_generation_prompt }}
"""


def traits_of(source: str) -> TemplateTraits:
    return probe(template_of(source))


def test_ideal_template_has_ideal_traits() -> None:
    traits = traits_of(PLAIN)
    assert traits == TemplateTraits(
        reasoning="reasoning_content",
        interleaved="inline",
        inline=InlineForm(
            reasoning=True,
            tail=True,
            frame=("<user>Hello.<end><assistant>", "<end>"),
            separators=ThoughtSeparators("<think>", "</think>", "</think>\n"),
        ),
        closing="<end>",
        inputs=TemplateInputs(tools=False, variables=traits.inputs.variables),
    )


LOOP = "{%- for m in messages -%}"
ANSWER = "{%- if m.role == 'assistant' -%}"
CONTENT = "{{ m.content }}\n{%- for c"
REFUSED = "{{ raise_exception('no') }}{%- endif -%}"


def refusing(condition: str) -> str:
    return f"{{%- if {condition} -%}}{REFUSED}"


def following(role: str) -> str:
    """A message of the user after one with this role."""
    return f"m.role == 'user' and (loop.previtem or {{}}).role == '{role}'"


@for_rows(
    [
        (LOOP, LOOP + refusing("m.role == 'system' and not loop.first"), {"system": "first"}),
        (LOOP, LOOP + refusing("m.role == 'system'"), {"system": "none"}),
        (LOOP, LOOP + refusing(following("user")), {"adjacent_users": False}),
        (LOOP, LOOP + refusing(following("tool")), {"user_after_tool": False}),
        ("c.function.arguments | tojson", "c.function.arguments", {"calls.arguments": "string"}),
        (
            ANSWER,
            "{%- if m.role == 'tool' -%}{{ m.name }}:{{ m.content }}{%- elif m.role == 'assistant' -%}",
            {"tool_name": False},
        ),
        (ANSWER, refusing("m.role == 'tool' and not m.name") + ANSWER, {"tool_name": True}),
        (
            "'\\n<call>' +",
            "raise_exception('id?') if c.id | length != 9 else '\\n<call>' +",
            {"calls.ids": "short"},
        ),
        (
            "'\\n<call>' + c.function.name",
            "'\\n<call>' + c.id + '|functions.'",
            {"calls.ids": "counted"},
        ),
        (
            "in m.tool_calls or []",
            "in (m.tool_calls or [])[:1]",
            {"calls.parallel": False, "interleaved": "inline"},
        ),
        (CONTENT, "{{ m.content if not m.tool_calls }}\n{%- for c", {"calls.with_text": False}),
        ("m.reasoning_content", "m.reasoning", {"reasoning": "reasoning"}),
        ("m.reasoning_content", "m.nothing", {"reasoning": None, "inline.reasoning": False}),
        ("}}{{ m.content }}", "}}{{ m.content.split('</think>')[-1] }}", {"interleaved": "split"}),
        (LOOP, "{{ tools | tojson }}" + LOOP, {"inputs.tools": True}),
        (
            LOOP,
            "{{ tools | tojson if messages[-1].role == 'user' }}" + LOOP,
            {"inputs.tools": False},
        ),
        (
            "{{ m.content }}\n{%- endif -%}\n<end>",
            "{{ m.content[0].text }}\n{%- endif -%}\n<end>",
            {"content": "parts"},
        ),
    ]
)
def test_each_deviation_is_found(old: str, new: str, expected: dict[str, Any]) -> None:
    assert old in PLAIN
    traits = traits_of(PLAIN.replace(old, new))
    assert {name: attrgetter(name)(traits) for name in expected} == expected


NOT_ONE_OF = "reasoning_effort and reasoning_effort not in ('low', 'xhigh', 'none')"


@for_rows(
    [
        ("{{ 'x' if enable_thinking }}", ("enable_thinking",), None),
        ("{{ raise_exception('always') if enable_thinking is false }}", (), None),
        ("{{ reasoning_effort }}", (), ("low", "medium", "high")),
        ("{{ 'm' if reasoning_effort == 'max' }}", (), ("low", "medium", "high", "max")),
        (f"{{{{ raise_exception('?') if {NOT_ONE_OF} }}}}", (), ("none", "low", "xhigh")),
    ]
)
def test_thinking_variables_are_found(
    source: str, switches: tuple[str, ...], levels: tuple[str, ...] | None
) -> None:
    traits = traits_of(source + PLAIN)
    assert traits.inputs.switches == switches
    assert traits.inputs.efforts == ({} if levels is None else {"reasoning_effort": levels})


@for_each(["", "{{ raise_exception('never') }}", "{{ messages }}"])
def test_useless_template_has_traits_too(source: str) -> None:
    traits = traits_of(source)
    assert (traits.ordered, traits.reasoning) == (False, None)


def test_own_template_takes_parts_in_order(demo_tokenizer: LoadedTokenizer) -> None:
    traits = probe(ChatTemplate.of(demo_tokenizer))
    assert traits.ordered
    assert traits.inputs.tools
    assert (traits.system, traits.reasoning) == ("anywhere", "reasoning_content")
    assert traits.inputs.switches == ("enable_thinking",)


PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    (
        "qwen3_8",
        {"system": "first", "inputs.efforts": {"reasoning_effort": ("low", "medium", "xhigh")}},
    ),
    ("nemotron_3_nano", {"inline.separators": ("<think>\n", *["\n</think>\n"] * 2)}),
    ("gptoss", {"calls.parallel": False, "calls.after_all": False, "interleaved": "split"}),
    ("gemma4_v5", {"calls.with_text": False, "calls.after_all": True, "interleaved": "split"}),
    ("deepseekv3", {"system": "first", "calls.arguments": "string", "inputs.tools": False}),
    (
        "gemma",
        {"system": "none", "adjacent_users": False, "tool_role": False, "calls.arguments": None},
    ),
]


@needs_templates
@for_rows(PUBLISHED)
def test_published_templates_have_the_expected_traits(name: str, expected: dict[str, Any]) -> None:
    traits = traits_of(TEMPLATE_FILES[name].read_text())
    assert {trait: attrgetter(trait)(traits) for trait in expected} == expected


@needs_templates
def test_frame_of_an_image(compiled_template: Callable[[str], ChatTemplate]) -> None:
    qwen = compiled_template("qwen3_8")
    assert image_frame(qwen, "<|image_pad|>") == ("<|vision_start|>", "<|vision_end|>")
    assert image_frame(qwen, "<no such token>") is None
    assert image_frame(compiled_template("llava_next"), "<image>") == ("", "\n")
