"""Hostile templates reach no attribute that Jinja's sandbox refuses, and change nothing."""

import copy
from typing import TYPE_CHECKING, Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.errors import Invalid
from services.templates.chat_template import ChatTemplate, TemplateMessage, TemplateTool
from services.templates.jinja import JsonDict, environment
from services.templates.tools import with_cached_json
from tests.kit.every import for_each

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
    *("''", "messages", "messages[0]", "messages[0].content", "messages[0].facts", "tools[0]"),
    *("1", "1.5", "true", "none", "(1, 2)", "missing", "range(3)", "dict", "dict(a=1)"),
    *("namespace", "namespace(a=1)", "namespace(a=messages).a", "raise_exception", "strftime_now"),
    *("cycler", "joiner", "lipsum", "self", "loop", "caller"),
    *("'a'.upper", "'a'.format", "messages[0].items"),
)
INTERNALS = [
    "__class__",
    "__dict__",
    "__init__",
    "__globals__",
    "__self__",
    "__reduce__",
    "_json",
    "mro",
]


def render(tokenizer: "PreTrainedTokenizerBase", source: str) -> str:
    """The text, rendered from copies that must not change."""
    messages, tools = copy.deepcopy(MESSAGES), [with_cached_json(TOOL)]
    try:
        return ChatTemplate(tokenizer, source).render(
            messages, tools=tools, variables={"extra": [{"deep": [1]}]}
        )
    finally:
        assert (messages, tools) == (MESSAGES, [TOOL])


def refused(tokenizer: "PreTrainedTokenizerBase", expression: str) -> bool:
    """Whether an expression raises, or yields nothing."""
    try:
        return (
            render(tokenizer, f"{{% for x in [1] %}}{{{{ {expression} }}}}{{% endfor %}}").strip()
            == ""
        )
    except Invalid:
        return True


@for_each(VALUES)
def test_no_value_exposes_internals(value: str, demo_tokenizer: "PreTrainedTokenizerBase") -> None:
    for name in INTERNALS:
        for expression in (
            f"({value}).{name}",
            f"({value})['{name}']",
            f"({value}) | attr('{name}')",
            f"[{value}] | map(attribute='{name}') | first",
            f"([{value}] | groupby('{name}') | first).grouper",
            f"({value})['{name[:3]}' ~ '{name[3:]}']",
        ):
            assert refused(demo_tokenizer, expression), expression


@for_each(
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "messages[0].get.__self__.__class__",
        "lipsum.__globals__['os'].popen('id').read()",
        "cycler.__init__.__globals__.os.environ",
        "namespace(a=1).__class__.__init__.__globals__",
        "raise_exception.__code__.co_consts",
        "self._TemplateReference__context.environment",
        "loop._iterable.__class__",
        "(messages | map('upper')).gi_frame.f_globals",
        "namespace(__class__=1).__class__",
        "'%s' % ''.__class__",
    ]
)
def test_attribute_chains_are_refused(
    expression: str, demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    assert refused(demo_tokenizer, expression)


@for_each(
    [
        "'{0.__class__}'.format('')",
        "'{a.__class__}'.format_map({'a': 1})",
        "''['format_map']({'a': 1}) ~ ('{a.__class__}' | attr('format_map'))({'a': 1})",
        "(['{0.__class__}'] | map('attr', 'format') | first)('')",
    ]
)
def test_format_strings_are_refused(
    expression: str, demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    assert refused(demo_tokenizer, expression)


MUTATORS = (
    "messages.append(1)",
    "messages.pop()",
    "messages.sort()",
    "messages['append'](1)",
    "(messages | attr('clear'))()",
    "messages[0].update(a=1)",
    "messages[0].setdefault('a', 1)",
    "messages[0].parts[1].append(3)",
    "tools[0].function.parameters.properties.n.pop('type')",
    "extra[0].deep.append(1)",
    "messages[0].__setitem__('role', 'system')",
    "namespace(a=messages).a.append(1)",
)


@for_each(MUTATORS)
def test_methods_that_change_a_value_are_refused(
    expression: str, demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    with pytest.raises(Invalid):
        render(demo_tokenizer, f"{{% set gone = {expression} %}}{{{{ gone }}}}")


@for_each(
    [
        "{% set messages[0].role = 'system' %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace(**{'__class__': 1}) %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import system %}",
        "{% extends '/etc/passwd' %}",
        "{{ range(100001) | list | length }}",
    ]
)
def test_unsafe_statements_are_refused(
    source: str, demo_tokenizer: "PreTrainedTokenizerBase"
) -> None:
    with pytest.raises((Invalid, ValueError)):
        render(demo_tokenizer, source)


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
