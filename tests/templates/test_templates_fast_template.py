"""What minijinja renders, and what it leaves to Jinja."""

import pytest

from services.runtime.long_work import LongWork, on_loop
from services.templates import fast_template
from services.templates.fast_template import FastTemplate
from services.templates.jinja import FILTERS, FUNCTIONS, environment
from tests.kit.every import for_each


def fast(source: str) -> FastTemplate:
    return FastTemplate(source, environment().parse(source), FUNCTIONS, FILTERS)


class PanicException(BaseException):
    """As pyo3 raises it for a panic in Rust."""


def test_a_panic_is_rendered_by_jinja() -> None:
    def fail(error: BaseException) -> None:
        raise error

    template = FastTemplate("{{ f(x) }}", environment().parse("{{ f(x) }}"), {"f": fail}, {})
    assert template.render({"x": PanicException()}) is None
    assert template.render({"x": ValueError()}) is None
    with pytest.raises(KeyboardInterrupt):
        template.render({"x": KeyboardInterrupt()})


def test_a_long_rendering_leaves_the_event_loop_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_template, "THREAD_FUEL", 2 * fast_template.LOOP_FUEL)
    endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}"
    template = fast(endless)
    with pytest.raises(LongWork), on_loop():
        template.render({})
    assert template.render({}) is None


@for_each(
    [
        "{% set add = messages['append'] %}{{ add(1) }}",
        "{% macro use(add) %}{{ add(1) }}{% endmacro %}{{ use(messages['append']) }}",
        "{% macro range() %}{% endmacro %}{% set range = messages.append %}{{ range(1) }}",
        "{% set ns = namespace(f=messages['append']) %}{{ ns.f(1) }}",
        "{% set ns = namespace() %}{% set ns.get = messages['append'] %}{{ ns.get(1) }}",
    ]
)
def test_template_that_calls_what_may_be_a_method_is_jinjas(source: str) -> None:
    with pytest.raises(ValueError, match="change data"):
        fast(source)
