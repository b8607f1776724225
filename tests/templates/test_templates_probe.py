"""The traits of small templates with one deviation each, of our own template, and of published
ones."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from bench.ledger.published import of_trl
from services.preprocessor.model import ModelSetup
from services.templates.chat_template import ChatTemplate
from services.templates.probe import image_frame, probe
from services.templates.traits import TemplateTraits, ThoughtSeparators
from tests.kit.every import for_each, for_rows
from tests.kit.published import needs_templates
from tests.templates.real_templates import REAL_TEMPLATES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def traits_of(tokenizer: "PreTrainedTokenizerBase", source: str) -> TemplateTraits:
    return probe(ChatTemplate(tokenizer, source))


def test_ideal_template_has_ideal_traits(demo_tokenizer: "PreTrainedTokenizerBase") -> None:
    traits = traits_of(demo_tokenizer, PLAIN)
    assert traits == TemplateTraits(
        reasoning="reasoning_content",
        interleaved="inline",
        inline_reasoning=True,
        inline_tail=True,
        frame=("<user>Hello.<end><assistant>", "<end>"),
        separators=ThoughtSeparators("<think>", "</think>", "</think>\n"),
        closing="<end>",
        tools=False,
        variables=traits.variables,
    )


HABITS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "{%- for m in messages -%}",
        "{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}"
        "{{ raise_exception('first only') }}{%- endif -%}",
        {"system": "first"},
    ),
    (
        "{%- for m in messages -%}",
        "{%- for m in messages if m.role == 'system' -%}{{ m.content }}{%- endfor -%}"
        "{%- for m in messages if m.role != 'system' -%}",
        {"system": "first"},
    ),
    (
        "{%- for m in messages -%}",
        "{%- for m in messages -%}{%- if m.role == 'system' -%}{{ raise_exception('none') }}{%- endif -%}",
        {"system": "none"},
    ),
    (
        "{%- for m in messages -%}",
        "{%- for m in messages -%}{%- if m.role == 'user' and (loop.previtem or {}).role == 'user' -%}"
        "{{ raise_exception('alternate') }}{%- endif -%}",
        {"adjacent_users": False},
    ),
    (
        "{%- for m in messages -%}",
        "{%- for m in messages -%}{%- if m.role == 'user' and (loop.previtem or {}).role == 'tool' -%}"
        "{{ raise_exception('alternate') }}{%- endif -%}",
        {"user_after_tool": False},
    ),
    ("c.function.arguments | tojson", "c.function.arguments", {"arguments": "string"}),
    (
        "{%- if m.role == 'assistant' -%}",
        "{%- if m.role == 'tool' -%}{{ m.name }}:{{ m.content }}{%- elif m.role == 'assistant' -%}",
        {"tool_name": False},
    ),
    (
        "{%- if m.role == 'assistant' -%}",
        "{%- if m.role == 'tool' and m.name is not defined -%}{{ raise_exception('name?') }}{%- endif -%}"
        "{%- if m.role == 'assistant' -%}",
        {"tool_name": True},
    ),
    (
        "'\\n<call>' +",
        "raise_exception('id?') if c.id | length != 9 else '\\n<call>' +",
        {"call_ids": "short"},
    ),
    (
        "'\\n<call>' + c.function.name",
        "'\\n<call>' + c.id + '|functions.'",
        {"call_ids": "counted"},
    ),
    (
        "in m.tool_calls or []",
        "in (m.tool_calls or [])[:1]",
        {"parallel": False, "interleaved": "inline"},
    ),
    (
        "{{ m.content }}\n{%- for c",
        "{{ m.content if not m.tool_calls }}\n{%- for c",
        {"text_with_call": False},
    ),
    (
        "{%- for c in",
        "{{ raise_exception('not both') if m.tool_calls and m.content and m.reasoning_content }}{%- for c in",
        {"all_with_call": False},
    ),
    ("m.reasoning_content", "m.reasoning", {"reasoning": "reasoning"}),
    ("m.reasoning_content", "m.nothing", {"reasoning": None, "inline_reasoning": False}),
    (
        "}}{{ m.content }}",
        "}}{{ m.content.split('</think>')[-1] }}",
        {"reasoning": "reasoning_content", "interleaved": "split"},
    ),
    ("{%- for c in m.tool_calls or []", "{%- for c in []", {"arguments": None, "parallel": False}),
    ("{%- for m in messages -%}", "{{ tools | tojson }}{%- for m in messages -%}", {"tools": True}),
    (
        "{%- for m in messages -%}",
        "{{ tools | tojson if messages[-1].role == 'user' }}{%- for m in messages -%}",
        {"tools": False},
    ),
    (
        "{{ m.content }}\n{%- endif -%}\n<end>",
        "{{ m.content[0].text }}\n{%- endif -%}\n<end>",
        {"content": "parts"},
    ),
]


@for_rows(HABITS)
def test_each_deviation_is_found(
    old: str, new: str, expected: dict[str, Any], demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    assert old in PLAIN
    traits = traits_of(demo_tokenizer, PLAIN.replace(old, new))
    assert {name: getattr(traits, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("source", "switches", "efforts"),
    [
        ("{{ 'x' if enable_thinking }}", ("enable_thinking",), {}),
        ("{{ raise_exception('always') if enable_thinking is false }}", (), {}),
        ("{{ reasoning_effort }}", (), {"reasoning_effort": ("low", "medium", "high")}),
        (
            "{{ 'm' if reasoning_effort == 'max' }}",
            (),
            {"reasoning_effort": ("low", "medium", "high", "max")},
        ),
        (
            "{{ raise_exception('?') if reasoning_effort and reasoning_effort not in ('low', 'xhigh', 'none') }}",
            (),
            {"reasoning_effort": ("none", "low", "xhigh")},
        ),
    ],
)
def test_thinking_variables_are_found(
    demo_tokenizer: "PreTrainedTokenizerBase",
    source: str,
    switches: tuple[str, ...],
    efforts: dict[str, Any],
) -> None:
    traits = traits_of(demo_tokenizer, source + PLAIN)
    assert (traits.switches, traits.efforts) == (switches, efforts)


@pytest.mark.parametrize(
    "source", ["", "constant", "{{ raise_exception('never') }}", "{{ messages }}"]
)
def test_useless_template_has_traits_too(
    demo_tokenizer: "PreTrainedTokenizerBase", source: str
) -> None:
    traits = traits_of(demo_tokenizer, source)
    assert traits.ordered is False
    assert traits.reasoning is None


def test_own_template_takes_parts_in_order(setup: ModelSetup) -> None:
    traits = setup.traits
    assert traits.ordered
    assert traits.tools
    assert (traits.system, traits.reasoning) == ("anywhere", "reasoning_content")
    assert traits.switches == ("enable_thinking",)


PUBLISHED: list[tuple[str, dict[str, Any]]] = [
    ("qwen3_6", {"system": "first", "interleaved": "inline", "inline_tail": True}),
    ("qwen3_8", {"system": "first", "efforts": {"reasoning_effort": ("low", "medium", "xhigh")}}),
    ("nemotron_3_nano", {"separators": ("<think>\n", *["\n</think>\n"] * 2)}),
    ("gptoss", {"parallel": False, "all_before_call": False, "interleaved": "split"}),
    ("gemma4_v5", {"text_with_call": False, "all_before_call": True, "interleaved": "split"}),
    ("llama3_1", {"parallel": False, "text_with_call": False, "reasoning": None}),
    ("deepseekv3", {"system": "first", "arguments": "string", "tools": False}),
    ("gemma", {"system": "none", "adjacent_users": False, "tool_role": False, "arguments": None}),
    ("llava_next", {"content": "parts", "arguments": None}),
]


@needs_templates
@for_rows([row for row in PUBLISHED if row[0] in REAL_TEMPLATES])
def test_published_templates_have_the_expected_traits(
    name: str, expected: dict[str, Any], demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    traits = traits_of(demo_tokenizer, REAL_TEMPLATES[name].read_text())
    assert {trait: getattr(traits, trait) for trait in expected} == expected


IMAGES = {
    "gemma4_v2": ("<|image|>", "\n\n", "\n\n"),
    "llava_next": ("<image>", "", "\n"),
    "qwen3_8": ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),
    "smolvlm": ("<image>", "", ""),
}


@needs_templates
@for_each([name for name in IMAGES if name in of_trl()])
def test_frame_of_an_image(name: str, compiled_template: Callable[[str], ChatTemplate]) -> None:
    placeholder, before, after = IMAGES[name]
    assert image_frame(compiled_template(name), placeholder) == (before, after)
    assert image_frame(compiled_template(name), "<no such token>") is None
