"""The Jinja environment of chat templates: a sandbox with what Hugging Face's templates use.

It is the environment that transformers documents for chat templates ("Writing a chat template").
transformers' own copies all messages and tools for every prompt, and importing it loads torch.
Tests compare both with every published template. Every attribute passes Jinja's own check; no type
is exempt.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_format, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_environment
from typing_extensions import override

from services.templates import text_sizes
from services.templates.json_values import JsonDict, to_json

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""The fields of messages with reasoning. Templates receive it in the first two."""
_MAX_ANSWERS = 4096
_STEPS = 64
"""Steps of a template's loops between two checks."""

Check: TypeAlias = Callable[[], None]


class CheckedContext(Context):
    """The context of one rendering. Every loop of the template calls `step`, so that the caller can
    stop it."""

    check: Check | None = None
    """Called every few steps; an exception ends the rendering."""
    _count = 0

    def step(self) -> None:
        """Counts one step of a loop."""
        self._count += 1
        if self._count % _STEPS == 0 and self.check is not None:
            self.check()

    @override
    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        derived = super().derived(locals)
        if isinstance(derived, CheckedContext):
            derived.check = self.check
        return derived


class _StepCounter(CodeGenerator):
    """Compiles loops so that each of their steps, and of their filters (`for … if …`), is
    counted, and texts that are joined (`~`) so that they are checked."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **more)
        self._bodies: list[list[nodes.Node]] = []
        self._tests: list[nodes.Node | None] = []

    @override
    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._bodies.append(node.body)
        self._tests.append(node.test)
        super().visit_For(node, frame)

    @override
    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        if any(body is loop_body for loop_body in self._bodies):
            self.writeline("context.step()")
        super().blockvisit(body, frame)

    @override
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.checked(")
        super().visit_Concat(node, frame)
        self.write(")")

    @override
    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if any(node is test for test in self._tests):
            self.write("context.step() or ")
        return super().visit(node, *args, **kwargs)


_DATA = frozenset((str, bool, int, float, dict, list, JsonDict))
_OBJECTS = frozenset((dict, JsonDict))
_OBJECT_ATTRIBUTES = frozenset(dir(JsonDict))


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which calls `is_safe_attribute` before it returns any attribute.

    The result depends on the object's type and the attribute's name only. Jinja walks abstract base
    classes for it, which took 0.55 of 1.4 ms of an agent's next prompt, so it is cached by both. A
    test compares the results."""

    code_generator_class = _StepCounter
    context_class = CheckedContext
    concat = staticmethod(text_sizes.concat)
    intercepted_binops = frozenset({"+", "*", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._is_safe: dict[tuple[type, str], bool] = {}

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        """Returns the attribute, else the item, as Jinja does. The item of a JSON object without an
        attribute of that name is returned without an AttributeError in between, some hundred times
        a prompt."""
        if type(obj) in _OBJECTS and attribute not in _OBJECT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if self._is_safe.get((type(obj), attribute)):
            # An attribute that is data is not a method that Jinja would wrap.
            value = getattr(obj, attribute, None)
            if type(value) in _DATA:
                return value
        return super().getattr(obj, attribute)

    def checked(self, text: str) -> str:
        """The result of `~`. Raises TextTooLong."""
        text_sizes.check_size(len(text))
        return text

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            return text_sizes.add(left, right)
        text_sizes.check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    @override
    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        text_sizes.check_method(obj, args, kwargs)
        separator = getattr(obj, "__self__", None)
        if isinstance(separator, str) and obj.__name__ == "join" and len(args) == 1:
            return text_sizes.concat(args[0], separator)
        return super().call(context, obj, *args, **kwargs)

    @override
    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        text = value.__self__
        takes_mapping = value.__name__ == "format_map"

        def checked(*args: Any, **kwargs: Any) -> str:
            values = [*args[0].values()] if takes_mapping else [*args, *kwargs.values()]
            text_sizes.check_format(text, values)
            return wrapped(*args, **kwargs)

        return checked

    @override
    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = type(obj), attr
        safe = self._is_safe.get(key)
        if safe is None:
            safe = super().is_safe_attribute(obj, attr, value)
            if len(self._is_safe) < _MAX_ANSWERS:  # the names in a namespace may come from data
                self._is_safe[key] = safe
        return safe


def environment() -> ImmutableSandboxedEnvironment:
    """A sandbox for chat templates. A template cannot change its variables."""
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    sandbox.filters.update(FILTERS)
    sandbox.filters.update(format=_format, join=_join)
    for name, filter in sandbox.filters.items():
        sandbox.filters[name] = text_sizes.limited(name, filter)
    del sandbox.globals["lipsum"]  # a text of any length, which no prompt needs
    sandbox.globals.update(FUNCTIONS)
    sandbox.globals.update(dict=_Dict(), namespace=_Namespace)
    return sandbox


def template_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as templates read it: fields without a value are absent, and reasoning has both of
    its names."""
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    for name in _REASONING:
        if name in message:
            reasoning = message[name]
            return {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}` marks, for training, what the model writes. Here it
    is only its text."""

    tags = {"generation"}

    @override
    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict(…)` without the attributes of the type, through which a template could reach others."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *keys: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys)


class _Namespace(Namespace):
    """`namespace(…)` that refuses names which begin with an underscore."""

    def __init__(*items: Any, **named: Any) -> None:
        self, *rest = items
        names = dict(*rest, **named)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            f"a namespace takes no names that begin with an underscore, such as {name!r}"
        )


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    """Jinja's filter, within limits."""
    text_sizes.check_format(str(value), [*args, *kwargs.values()])
    return do_format(value, *args, **kwargs)


@pass_environment
def _join(
    environment: jinja2.Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    """Jinja's filter, within limits."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return text_sizes.concat(map(str, value), str(d))


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"raise_exception": _raise, "strftime_now": _now}
"""The functions that Hugging Face adds to Jinja's."""
FILTERS: Mapping[str, Callable[..., Any]] = {"tojson": to_json}
"""The filters that Hugging Face adds to Jinja's, or replaces."""
