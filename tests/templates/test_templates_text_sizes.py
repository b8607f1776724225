"""A template that runs away makes no text beyond the limit, in whatever way it would make one."""

import resource

import pytest

from services.templates import text_sizes
from services.templates.jinja import environment
from services.templates.text_sizes import TextTooLong
from tests.kit.every import for_each, for_rows

DOUBLING = "{{% set n = namespace(x='abcdefgh') %}}{{% for i in range(64) %}}{}{{% endfor %}}"
X = "{% set x = 'a' * 100000 %}"
MEMORY_KB = 128 * 1024


RUNAWAYS = (
    DOUBLING.format("{% set n.x = n.x ~ n.x %}"),
    DOUBLING.format("{% set n.x = n.x + n.x %}"),
    DOUBLING.format("{% set n.x = n.x * 2 %}"),
    DOUBLING.format("{% set n.x = [n.x, n.x]|join %}"),
    DOUBLING.format("{% set n.x = ''.join([n.x, n.x]) %}"),
    DOUBLING.format("{% set n.x = '%s%s' % (n.x, n.x) %}"),
    DOUBLING.format("{% set n.x = '{0}{0}'.format(n.x) %}"),
    DOUBLING.format("{% set n.x = '{a}{a}'.format_map({'a': n.x}) %}"),
    DOUBLING.format("{% set n.x = n.x.replace('h', n.x ~ 'h') %}"),
    DOUBLING.format("{% set n.x = n.x|replace('h', n.x ~ 'h') %}"),
    DOUBLING.format("{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
    DOUBLING.format("{% set n.x = n.x.translate({97: n.x ~ 'a'}) %}"),
    "{% set n = namespace(x=[1]) %}{% for i in range(64) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLING.format("{% set n.x = m(n.x) %}"),
    X + "{{ x|map('replace', 'a', x)|join }}",
    X + "{% for i in range(9999) %}{{ x }}{% endfor %}",
    X + "{{ (x|list)|join(x) }}",
    X + "{{ x.join(x) }}",
    X + "{{ ([{'a': x}] * 100000)|join(attribute='a') }}",
    X + "{{ (x|list|join('\n'))|indent(x) }}",
    X + "{{ (x|list|join(' '))|wordwrap(1, wrapstring=x) }}",
    "{{ 'a' * 9999999999 }}",
    "{{ [0] * 9999999999 }}",
    "{{ 'a'|center(9999999999) }}",
    "{{ ['a']|map('center', 9999999999)|join }}",
    "{{ 'a'.center(9999999999) }}",
    "{{ 'a'.zfill(9999999999) }}",
    "{{ '\t'.expandtabs(tabsize=999999999) }}",
    "{{ 'a'|indent(9999999999, true) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 999999999) }}",
    "{{ [1]|batch(999999999, 0)|list }}",
    "{{ [1]|slice(999999999)|list }}",
    "{{ {'a': 1}|tojson(indent=999999999) }}",
    "{{ 9 ** 9999999 }}",
    "{% set n = namespace(x=9) %}{% for i in range(64) %}{% set n.x = n.x * n.x %}{% endfor %}",
)


@for_each(RUNAWAYS)
def test_text_beyond_the_limit_is_not_made(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_sizes, "MAX_CHARS", 2 * 1024 * 1024)  # makes it in less time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TextTooLong):
        environment().from_string(source).render()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KB


@for_rows(
    [
        ("{{ 'a-b'.replace('-', '+') }} {{ 'b'|replace('b', 'c') }}", "a+b c"),
        ("{{ '%5.1f|%s' % (1.25, 20250101000000) }}", "  1.2|20250101000000"),
        ("{{ '{:>4}|{{\"a\": {}}}'.format('x', 1) }}", '   x|{"a": 1}'),
        ("{{ '100%' ~ 1 }} {{ 'order 12345678' + '!' }}", "100%1 order 12345678!"),
        ("{{ 2 ** 10 }} {{ 3 * 4 }} {{ 7 % 4 }} {{ 1 + 1 }} {{ [1] + [2] }}", "1024 12 3 2 [1, 2]"),
    ]
)
def test_other_texts_are_those_of_jinja(source: str, text: str) -> None:
    assert environment().from_string(source).render() == text


def test_a_text_up_to_the_limit_is_made() -> None:
    source = "{{ 'a' * n }}"
    assert len(environment().from_string(source).render(n=text_sizes.MAX_CHARS)) == (
        text_sizes.MAX_CHARS
    )
