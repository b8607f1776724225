"""The sandbox renders like that of transformers."""

from collections.abc import Callable

from services.templates.chat_template import TemplateMessage
from services.templates.tools import with_cached_json
from tests.kit.every import for_each
from tests.templates.adapting import template_of

N = {"type": ["integer", "null"], "enum": [1, 2.5, None]}
FUNCTION = {
    "name": "run",
    "description": 'Runs <b>it</b> & says "é" \'s',
    "parameters": {"type": "object", "properties": {"n": N}},
}
TOOL = {"type": "function", "function": FUNCTION}
MESSAGES: list[TemplateMessage] = [
    {"role": "user", "content": "a\n", "name": None},
    {"role": "assistant", "content": "b", "reasoning": "why", "tool_calls": None},
    {"role": "assistant", "content": "", "thinking": "so", "reasoning_content": "no"},
    {"role": "user", "content": [{"type": "text", "text": "c"}]},
]
SOURCES = (
    "{% for m in messages %}{{ m }}|{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.name is defined }}\n{% endfor %}",
    "{% for t in tools %}{{ t | tojson }}{{ t | tojson(indent=2) }}{{ t | tojson(separators=(',', ':')) }}"
    "{{ t | tojson(sort_keys=true) }}{{ t | tojson(ensure_ascii=true) }}{{ t | tojson(separators=[',', ': ']) }}"
    "{{ t.function.parameters | tojson }}{{ t.function.parameters.properties.n | tojson }}{% endfor %}",
    "{% for t in tools %}{{ t.function is mapping }}{{ t.function | string }}{% for k, v in t.function | items %}"
    "{{ k }}={{ v }}{% endfor %}{{ t.function | dictsort }}{% endfor %}",
    "{% generation %}{% set x = 1 %}said {{ bos_token }}{% endgeneration %}{{ x is defined }}{{ eos_token }}",
    "{{ dict(a=1, b=none) | tojson }}{{ dict.fromkeys(['a', 'b'], 2) }}{{ documents }}{{ nothing }}{{ mood | upper }}",
    "{{ messages[0].missing is defined }}{{ messages[0].get('role') }}{{ messages[0].items() | list | length }}"
    "{{ tools[0].spelled is defined }}{{ tools[0]['spelled'] is defined }}{{ tools[0]._json is defined }}{{ tools[0].function.get('name') }}",
    "{% set ns = namespace(a=none, b=[1], keys=2) %}{{ ns.a }}{{ ns.b }}{{ ns.keys }}{{ ns.c is defined }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}"
    "{{ f(1, 2, 3, c=4) }}{% call f(5) %}said{% endcall %}{% for m in messages %}{{ f(m.role, loop.index) }}{% endfor %}",
    "{% macro count(n) %}{{ n }}{{ count(n - 1) if n }}{% endmacro %}{{ count(3) }}{% autoescape true %}{{ count('<') if 0 }}"
    "{{ '<' }}{% endautoescape %}",
    "{% set type = 1 %}{% set dict = {'role': 1, 'keys': 2} %}{{ dict.role }}{{ dict.other is defined }}{{ dict.keys is callable }}"
    "{% for type in messages %}{{ type.role }}{{ type.other is defined }}{% endfor %}",
    "{{ strftime_now('%Y') }}{{ add_generation_prompt }}{{ range(3) | list }}{{ '<&>' | tojson }}{{ 'é' | tojson }}",
)


@for_each(SOURCES)
def test_allowed_sources_render_as_in_transformers(
    source: str, by_transformers: Callable[..., str]
) -> None:
    ours = template_of(source)
    expected = by_transformers(source, MESSAGES, tools=[TOOL], mood="well")
    for tools in ([TOOL], [with_cached_json(TOOL)], [with_cached_json(TOOL)]):
        assert ours.render(MESSAGES, tools=tools, variables={"mood": "well"}) == expected
    assert expected
