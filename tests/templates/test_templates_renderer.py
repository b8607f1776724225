"""minijinja renders what Jinja would, or Jinja renders: data, refusals, samples."""

from collections.abc import Iterator
from typing import Any

import jinja2
import pytest

from services.runtime.long_work import LongWork
from services.templates.fast_template import FastTemplate
from services.templates.renderer import TemplateRenderer
from services.templates.tools import with_cached_json
from tests.kit.every import for_each

PRINTS = """{% for message in messages -%}
    {{ message.role }}: {{ message.content }} {{ message.data }}
    {%- for key, value in message.data.items() if value is not none %}
        {{ key }}={{ value if value is string else value | tojson }},{{ value }}
        {%- generation %} {{ value is mapping }} {{ value is sequence }} {%- endgeneration %}
    {%- endfor %}
{% endfor %}{{ extra | default("none", true) }}"""
"""A template that prints all that it gets."""


def proved(source: str, *trials: dict[str, Any]) -> TemplateRenderer:
    """A renderer that has tried minijinja with these variables."""
    renderer = TemplateRenderer(source)
    with renderer.proving():
        for variables in trials:
            renderer.render(variables)
    return renderer


@for_each(
    [
        {"a": {"d": 1}, "b": "x"},
        {"a": None, "b": True, "c": [1, -(2**63), 2**64 - 1], "": [{"d": []}]},
        {"a": -0.0, "b": [1e300, 5e-324, 1.5, 100.0]},
        {"a": "\x00\x1f\u2028 <&>'", "b\ud83d": "\udc3c😀\\"},
    ]
)
def test_any_data_is_rendered_as_by_jinja(data: dict[str, Any]) -> None:
    renderer = proved(PRINTS, {"messages": [], "extra": None})
    assert renderer.engine == "minijinja"
    for extra in data.values():
        messages = [{"role": "user", "content": str(extra), "data": data}]
        variables = {"messages": messages, "extra": extra}
        assert renderer.render(variables) == TemplateRenderer(PRINTS).render(variables)


def test_tools_are_examined_once_and_rendered_as_by_jinja_each_time() -> None:
    source = "{% for tool in tools %}{{ tool.function.parameters.least }} {% endfor %}"
    renderer = proved(source, {"tools": []})
    for least in (1.0, 1.5):
        function = {"name": "f", "parameters": {"least": least}}
        variables = {"tools": [with_cached_json({"type": "function", "function": function})]}
        for _ in range(2):
            assert renderer.render(variables) == TemplateRenderer(source).render(variables)


def test_a_template_with_another_text_in_the_trial_is_jinjas_with_a_reason() -> None:
    for source in ("{{ 1e-7 }}", "{{ 5.0 | tojson }}", "{{ '%d' % 7 }}", "{{ 'abc'.encode() }}"):
        expected = TemplateRenderer("{{ x }}" + source).render({"x": 1})
        assert proved("{{ x }}" + source, {"x": 1}).render({"x": 1}) == expected
    renderer = proved("{{ 1e-7 }}", {})
    reason = "a text by minijinja was not Jinja's in the trials"
    assert (renderer.engine, renderer.reason) == ("jinja", reason)
    assert "cannot render it" in proved("{{ x.pop() }}").reason


def test_refusals_are_jinjas() -> None:
    refuses = "{% if x %}{{ raise_exception('no ' ~ x) }}{% endif %}{{ y.z }}{{ w.v }}"
    renderer = proved(refuses, {"y": {"z": 1}, "w": {}})
    assert renderer.engine == "minijinja"
    for variables in ({"x": "1"}, {"y": {"z": 2}}, {}):
        errors = []
        for engine in (renderer, TemplateRenderer(refuses)):
            with pytest.raises(jinja2.TemplateError) as refusal:
                engine.render(variables)
            errors.append((type(refusal.value), str(refusal.value)))
        assert errors[0] == errors[1]


def test_a_difference_in_a_sample_ends_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = proved("{{ x }}", {"x": 1})
    assert renderer.find_difference() is None, "nothing was kept"
    renderer.keep_sample()
    renderer.render({"x": 2})
    assert renderer.find_difference() is None, "equal"
    assert renderer.find_difference() is None, "the sample is dropped"
    monkeypatch.setattr(FastTemplate, "render", lambda *_: "another text")
    renderer.keep_sample()
    assert renderer.render({"x": 3}) == "another text"
    assert renderer.find_difference() == "a text by minijinja was not Jinja's"
    assert (renderer.engine, renderer.render({"x": 3})) == ("jinja", "3")


@for_each(
    [
        "{% for i in range(10000) %}{% for j in range(3000) %}{% endfor %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    ]
)
def test_every_loop_of_jinja_can_be_stopped(source: str) -> None:
    def checks() -> Iterator[None]:
        for _ in range(3):
            yield
        raise LongWork

    renderer, counting = TemplateRenderer(source), checks()
    with renderer.checked(lambda: next(counting)), pytest.raises(LongWork):
        renderer.render({})
