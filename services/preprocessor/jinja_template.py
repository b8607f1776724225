"""Chat templates as the programs that they are: Jinja in a sandbox, with what Hugging Face's templates count on.

The environment is the one which transformers documents for chat templates ("Writing a chat template"), made here so
that a prompt costs no copy of its messages and tools, and a process no import of transformers (and torch with it). That
both render alike is tested with every published template (tests/preprocessor/test_preprocessor_jinja_template.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which messages carry reasoning; what reads one of the first two is given it."""
_Spelling: TypeAlias = tuple[bool, object, object, bool]

_OF_DICTS = frozenset(dir(dict))
"""What `dict` has for itself: anything else that is asked of one is a key."""
_OF_STRINGS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
"""What the sandbox lets through as it is; it puts `format` into one of its own."""
_PLAIN = frozenset((str, int, bool, float, list, dict))


class Spelled(dict[str, Any]):
    """A mapping that remembers its JSON: the tools of a session are written into every prompt of it.

    Not to be changed after it was written once.
    """

    __slots__ = ("_spellings",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__(items)
        self._spellings: dict[_Spelling, str] = {}


def spelled(value: Any) -> Any:
    """JSON data with every object in it, and itself, `Spelled`."""
    if isinstance(value, dict):
        return Spelled({key: spelled(item) for key, item in value.items()})
    return [spelled(item) for item in value] if isinstance(value, list) else value


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a short way to what templates read most: half of the time to render was its checks, of
    values that pass them by their type."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict or kind is Spelled:
            if attribute not in _OF_DICTS:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in _OF_STRINGS:
                return getattr(obj, attribute)
        elif kind is _Namespace and not attribute.startswith("_"):
            value = getattr(obj, attribute, None)
            if type(value) in _PLAIN:
                return value
        return super().getattr(obj, attribute)


def environment() -> ImmutableSandboxedEnvironment:
    """A sandbox for chat templates. Nothing that a template is given can be changed by it."""
    made = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals.update(raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_Namespace)
    return made


def as_given(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages as templates are given them: fields without a value are absent, and reasoning goes by all its names."""
    return [_as_given(message) for message in messages]


def _as_given(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks what the model writes, for training. Here it is only its text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict(…)`, without the attributes of the type, through which a template could reach further."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *keys: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys)


class _Namespace(Namespace):
    """`namespace(…)`, whose names may not begin with an underscore."""

    def __init__(*items: Any, **named: Any) -> None:
        self, *rest = items
        names = dict(*rest, **named)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no names that begin with an underscore, such as {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes it for HTML."""

    def write() -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    if type(value) is not Spelled or isinstance(separators, list):
        return write()
    how = (ensure_ascii, indent, separators, sort_keys)
    text = value._spellings.get(how)
    if text is None:
        text = value._spellings[how] = write()
    return text


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
