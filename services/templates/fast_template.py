"""Renders a chat template with minijinja, a Jinja in Rust by Jinja's author, in a fraction of the
time.

It is not Jinja in every detail. `TemplateRenderer` uses it where it has proved equal, and Jinja for
whatever it does not render.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import minijinja
from jinja2 import nodes

from services.runtime.long_work import is_on_loop, long_work
from services.templates.json_values import JsonDict
from services.tokenization.data_marks import has_surrogates

LOOP_FUEL = 500_000
"""Limit of instructions on the event loop, each of 20 to 90 ns."""
THREAD_FUEL = 20_000_000
"""Limit of instructions in a thread. Jinja, which can be stopped, renders what takes longer."""
_NAME = "chat_template"
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
"""Marks for training, which minijinja does not know."""
_METHODS = frozenset(
    """
    capitalize center copy count cycle endswith find format get isalnum isalpha isascii isdecimal
    isdigit islower isnumeric isspace isupper items join keys lower lstrip partition removeprefix
    removesuffix replace rfind rpartition rsplit rstrip split splitlines startswith strip swapcase
    title upper values zfill
    """.split()  # noqa: SIM905
)
"""Methods of texts, lists and objects that change nothing. Jinja's sandbox refuses those that do,
minijinja does not."""
_CALLED = frozenset(("caller", "dict", "joiner", "cycler", "loop", "namespace", "range"))
"""Functions of Jinja itself."""
_REPLACEMENT = "\ufffd"
"""The character with which minijinja replaces a lone surrogate."""
_PLAIN_MIN = 1e-4
"""Python writes smaller floats with an exponent. Large ones are whole numbers."""
_PANIC = "PanicException"
"""The class of a panic in Rust, a BaseException."""
_OUT_OF_FUEL = "engine ran out of fuel"

Functions = Mapping[str, Callable[..., Any]]


class FastTemplate:
    """A chat template. Thread-safe."""

    def __init__(
        self, source: str, tree: nodes.Template, functions: Functions, filters: Functions
    ) -> None:
        """`tree`: the source as Jinja parses it; `functions` and `filters`: by the names that the
        template calls. Raises ValueError where minijinja cannot read the template, and where the
        template could change its variables."""
        if _may_change_data(tree, functions.keys()):
            raise ValueError("it may call methods that change data")
        source = _GENERATION.sub(_as_condition, source)
        self._on_loop = _environment(source, functions, filters, LOOP_FUEL)
        self._in_thread = _environment(source, functions, filters, THREAD_FUEL)

    def render(self, variables: Mapping[str, Any]) -> str | None:
        """The text; None where Jinja must render it: errors of the template, long renderings, lone
        surrogates (marks of data), and some floats. Raises LongWork for a long
        rendering on the event loop."""
        if minijinja_differs(list(variables.values())):
            return None
        environment = self._on_loop if is_on_loop() else self._in_thread
        try:
            text: str = environment.render_template(_NAME, **variables)
        except BaseException as error:  # Jinja words the errors of templates
            if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
                raise
            if _OUT_OF_FUEL in str(error):
                long_work()
            return None
        return None if _REPLACEMENT in text else text


def _may_change_data(tree: nodes.Template, functions: Collection[str]) -> bool:
    """Whether a template may call methods that change data: it calls one by another name than those
    of functions and of `_METHODS`, or gives it such a name."""
    known = {macro.name for macro in tree.find_all(nodes.Macro)} | _CALLED | {*functions}
    known -= {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    named = {reference.attr for reference in tree.find_all(nodes.NSRef)}
    named.update(keyword.key for keyword in tree.find_all(nodes.Keyword))
    if named & _METHODS:
        return True
    for call in tree.find_all(nodes.Call):
        called = call.node
        if isinstance(called, nodes.Getattr):
            if called.attr not in _METHODS:
                return True
        elif isinstance(called, nodes.Name):
            if called.name not in known:
                return True
        elif not isinstance(called, nodes.ExtensionAttribute):  # `{% generation %}`
            return True
    return False


def minijinja_differs(data: Any) -> bool:
    """Whether JSON data has values that minijinja and Python write differently: lone surrogates,
    and floats. Whole ones lose their `.0`, small ones their exponent. Names of members are not
    searched."""
    level = [data]
    while level:
        inner: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                if not value.isascii() and has_surrogates(value):
                    return True
            elif kind is dict:
                inner += value.values()
            elif kind is list:
                inner += value
            elif kind is JsonDict:
                if value.minijinja_differs is None:
                    value.minijinja_differs = minijinja_differs(dict(value))
                if value.minijinja_differs:
                    return True
            elif kind is float and (value.is_integer() or abs(value) < _PLAIN_MIN):
                return True
        level = inner
    return False


def _environment(
    source: str, functions: Functions, filters: Functions, fuel: int
) -> minijinja.Environment:
    environment = minijinja.Environment(pycompat=True, trim_blocks=True, lstrip_blocks=True)
    environment.fuel = fuel
    for name, function in functions.items():
        environment.add_global(name, function)
    for name, filter in filters.items():
        environment.add_filter(name, filter)
    environment.add_test("iterable", _is_iterable)
    environment.add_test("sequence", _is_sequence)
    try:
        environment.add_template(_NAME, source)
    except minijinja.TemplateError as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    return environment


def _as_condition(tag: re.Match[str]) -> str:
    """A condition that is always true, in place of a tag around what the model writes."""
    start, is_end, end = tag.groups()
    return f"{start}endif{end}" if is_end else f"{start}if true{end}"


def _is_iterable(value: object) -> bool:
    """Jinja's test: minijinja's own takes None for a list without items."""
    return value is not None and isinstance(value, Iterable)


def _is_sequence(value: object) -> bool:
    """Jinja's test: to minijinja's own, strings and mappings are none."""
    return isinstance(value, str | Sequence | Mapping)
