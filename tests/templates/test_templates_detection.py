"""Detection by rendered calls: each template here has a trait of published ones that makes its
calls hard to find."""

import json

from services.templates.chat_template import ChatTemplate
from services.templates.detection import detect_family, unread_calls
from services.templates.probe import probe
from services.templates.traits import TemplateTraits
from tests.kit.every import for_each
from tests.templates.adapting import template_of

ARGUMENTS = "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"


def chatml(
    call: str, *, before: str = "", after: str = "", header: str = "a\n", prompt: str = ""
) -> str:
    """A template with headers; `call` with NAME, ARGUMENTS and ID. `prompt`: the opening of a
    turn."""
    call = call.replace("NAME", "{{ c.function.name }}").replace("ARGUMENTS", ARGUMENTS)
    call = call.replace("ID", "{{ c.id }}")
    calls = f"{before}{{% for c in m.tool_calls %}}{call}{{% endfor %}}{after}"
    return (
        "{% for m in messages %}{% if m.role == 'user' %}<|u|>{{ m.content }}<|e|>"
        "{% elif m.role == 'tool' %}<|t|>{{ m.content }}<|e|>"
        f"{{% else %}}<|a|>{header}{{{{ m.content }}}}"
        f"{{% if m.tool_calls %}}{calls}{{% endif %}}<|e|>{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}<|a|>{prompt}{{% endif %}}"
    )


JSON = '{"name": "NAME", "arguments": ARGUMENTS}'
ENTRIES = "{% for k, v in c.function.arguments.items() %}"
DSML_VALUE = '<{{ dsml }}parameter name="{{ k }}" string="true">{{ v }}</{{ dsml }}parameter>'
TEMPLATES = {
    "functionary": chatml("<function=NAME>ARGUMENTS</function>", header=""),
    # Only the id names the tool.
    "kimi_k2": chatml(
        "<|tool_call_begin|>ID<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
        before="<|tool_calls_section_begin|>",
        after="<|tool_calls_section_end|>",
        prompt="a\n<think>",
    ),
    # The markers are put together by the template.
    "deepseek_v32": "{% set dsml = '｜DSML｜' %}"
    + chatml(
        f'<{{{{ dsml }}}}invoke name="NAME">\n{ENTRIES}{DSML_VALUE}\n{{% endfor %}}</{{{{ dsml }}}}invoke>\n',
        before="\n\n<{{ dsml }}function_calls>\n",
        after="</{{ dsml }}function_calls>",
        prompt="a\n",
    ),
}


def probed(source: str) -> tuple[ChatTemplate, TemplateTraits]:
    template = template_of(source)
    return template, probe(template)


@for_each(TEMPLATES)
def test_family_is_found_without_its_model_type(name: str) -> None:
    template, traits = probed(TEMPLATES[name])
    assert traits.calls.arguments is not None
    found = detect_family(template, traits, {"model_type": "llama"})
    assert found is not None
    assert found.family.name == name


NO_CALLS = {"start_anchor": "x", "fields": {"content": {}}}


def test_family_that_reads_the_calls_precedes_a_description() -> None:
    template, traits = probed(TEMPLATES["functionary"])
    found = detect_family(template, traits, {}, (), json.dumps(NO_CALLS))
    assert found is not None
    assert found.family.name == "functionary"


def test_description_that_explains_more_precedes_a_family() -> None:
    template, traits = probed(chatml(f"<call>{JSON}</call>", prompt="a\n"))
    calls = {"open": "<call>", "close": "</call>", "content": "json", "repeats": True}
    fields = {"tool_calls": calls, "content": {"close": "<|e|>"}}
    description = {"start_anchor": "<|a|>a\n", "fields": fields}
    found = detect_family(template, traits, {}, (), json.dumps(description))
    assert found is not None
    assert found.family.title == "response_template"

    # So does that of a model without calls.
    template, traits = probed("{% for m in messages %}{{ m.content }}{% endfor %}")
    found = detect_family(template, traits, {}, (), json.dumps(NO_CALLS))
    assert found is not None
    assert found.family.title == "response_template"


def test_calls_that_no_family_reads_are_described() -> None:
    foreign = "<｜tool▁call▁begin｜> " + JSON + " <｜tool▁call▁end｜>"
    template, traits = probed(chatml(foreign))
    assert detect_family(template, traits, {}) is None, "a call inside another family's markers"
    statement = unread_calls(template, traits)
    assert "nearest are deepseek_v31, deepseek_v3" in statement
    assert "tool_call_parser" in statement
