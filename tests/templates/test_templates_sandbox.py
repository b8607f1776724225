"""Hostile templates reach no attribute that Jinja's sandbox refuses, and change nothing, in either
engine."""

import copy
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import Invalid
from services.templates.chat_template import TemplateMessage, TemplateTool
from services.templates.fast_template import FastTemplate
from services.templates.jinja import FILTERS, FUNCTIONS, environment
from services.templates.json_values import JsonDict
from services.templates.tools import with_cached_json
from tests.kit.every import for_each
from tests.templates.adapting import template_of

MESSAGES: list[TemplateMessage] = [
    {"role": "user", "content": "hi", "parts": [1, [2]], "facts": {"a": {"b": 1}}},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"x": 1}}}],
    },
]
TOOL: TemplateTool = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}},
}
VALUES = (
    *("''", "messages", "messages[0].facts", "tools[0]", "1", "none", "missing", "range(3)"),
    *("dict", "namespace", "namespace(a=messages).a", "raise_exception", "lipsum", "self", "loop"),
    *("'a'.upper", "messages[0].items"),
)
INTERNALS = ("__dict__", "__init__", "__globals__", "__self__", "__reduce__", "_json", "mro")


def render(source: str) -> str:
    """The text, rendered from copies that must not change."""
    messages, tools = copy.deepcopy(MESSAGES), [with_cached_json(TOOL)]
    try:
        return template_of(source).render(messages, tools=tools)
    finally:
        assert (messages, tools) == (MESSAGES, [TOOL])


def refused(expression: str) -> bool:
    """Whether an expression raises, or yields nothing."""
    try:
        text = render(f"{{% for x in [1] %}}{{{{ {expression} }}}}{{% endfor %}}")
    except Invalid:
        return True
    return text.strip() == ""


@for_each(VALUES)
def test_no_value_exposes_internals(value: str) -> None:
    assert refused(f"({value}).__class__")
    assert refused(f"({value})['__class__']")
    assert refused(f"({value}) | attr('__class__')")
    assert refused(f"[{value}] | map(attribute='__class__') | first")
    assert refused(f"([{value}] | groupby('__class__') | first).grouper")
    assert refused(f"({value})['__cl' ~ 'ass__']")


@for_each(INTERNALS)
def test_no_internal_is_exposed(name: str) -> None:
    for value in ("''", "tools[0]", "raise_exception"):
        assert refused(f"({value}).{name}")


HOSTILE = (
    "messages.append(1)",
    "messages['app' ~ 'end'](1)",
    "(messages | attr('clear'))()",
    "([messages.append] | first)(1)",
    "messages[0].update(a=1)",
    "messages[0].parts[1].append(3)",
    "tools[0].function.parameters.properties.n.pop('type')",
    "namespace(a=messages).a.append(1)",
    "''.__class__.__mro__[1].__subclasses__()",
    "messages[0].get.__self__.__class__",
    "lipsum.__globals__['os'].popen('id').read()",
    "raise_exception.__code__.co_consts",
    "self._TemplateReference__context.environment",
    "loop._iterable.__class__",
    "(messages | map('upper')).gi_frame.f_globals",
    "'%s' % ''.__class__",
    "'{0.__class__}'.format('')",
    "'{a.__class__}'.format_map({'a': 1})",
    "''['format_map']({'a': 1}) ~ ('{a.__class__}' | attr('format_map'))({'a': 1})",
    "(['{0.__class__}'] | map('attr', 'format') | first)('')",
)


@for_each(HOSTILE)
def test_hostile_expression_reaches_nothing(expression: str) -> None:
    assert refused(expression)
    source = f"{{{{ {expression} }}}}"
    try:
        template = FastTemplate(source, environment().parse(source), FUNCTIONS, FILTERS)
    except ValueError:
        return
    variables = {"messages": copy.deepcopy(MESSAGES), "tools": [JsonDict(TOOL)]}
    assert not template.render(variables)
    assert variables == {"messages": MESSAGES, "tools": [TOOL]}


@for_each(
    [
        "{% set gone = messages.append(1) %}",
        "{{ namespace(__class__=1).__class__ }}",
        "{% set messages[0].role = 'system' %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace(**{'__class__': 1}) %}",
        "{% include '/etc/passwd' %}",
        "{% extends '/etc/passwd' %}",
        "{{ range(100001) | list | length }}",
    ]
)
def test_unsafe_statements_are_refused(source: str) -> None:
    with pytest.raises((Invalid, ValueError)):
        render(source)


def test_cached_results_equal_those_of_jinja() -> None:
    """For every attribute of the values that templates can reach, in any order."""
    ours, theirs = environment(), ImmutableSandboxedEnvironment()
    namespace: Any = ours.globals["namespace"]
    values: tuple[Any, ...] = ("", 1, True, None, (), [], {}, JsonDict({}), set(), range(1), dict)
    methods: tuple[Any, ...] = ("".upper, "".format, [].append, {}.items(), (x for x in ""), print)
    own = (namespace, namespace(a=1), ours.undefined(name="x"))
    reached = [*values, *methods, *own, *ours.globals.values(), *ours.filters.values()]
    for value in [*reached, *reversed(reached)]:
        for name in {*dir(value), "mro", "gi_frame", "cr_frame", "_json", "append", "anything"}:
            assert ours.is_safe_attribute(value, name, None) == theirs.is_safe_attribute(
                value, name, None
            )
