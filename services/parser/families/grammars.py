"""Grammars that several families have, but for names."""

from collections.abc import Sequence

from services.parser.markup import Call, Markup, Think
from services.parser.readers.calls import Form, JsonCalls
from services.parser.readers.named import Named
from services.parser.readers.parameters import Parameters
from services.parser.shapes import Shape

Pairs = Sequence[tuple[str, str]]

CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
DEEPSEEK_STOPS = ("<｜end▁of▁sentence｜>",)
GLM_STOPS = ("<|observation|>", "<|user|>", "<|endoftext|>")
THINK = ("<think>", "</think>")
FRAMED_THINK = "<think>\n{text}\n</think>\n\n"
SECTIONS = ("tool_calls", "function_calls", "calls", "toolcalls", "tool")
BARE_THINK = "<think>{text}</think>"


def thinking(pairs: Pairs) -> tuple[Think, ...]:
    """Reasoning markers."""
    return tuple(Think(*pair) for pair in pairs)


def function_tags(
    wrapper: str = "tool_call", *, frame: bool, think: Pairs = (THINK,), stops: tuple[str, ...] = CHATML_STOPS
) -> Markup:
    """`<tool_call> <function=NAME> <parameter=KEY> value </parameter> … </function> </tool_call>`.

    `frame`: a line break on each side of a value is the template's.
    """
    opener, closer = f"<{wrapper}>", f"</{wrapper}>"
    body = Parameters(
        opens=("<parameter={key}>",),
        closes=("</parameter>",),
        ends=("</function>",),
        beyond=(closer, opener, "<function="),
        frame=frame,
    )
    return Markup(
        think=thinking(think),
        calls=(
            Call(Shape(opener + "{ws}<function={name}>", then=body.follows), body),
            Call(Shape("<function={name}>", then=body.follows, line_start=True), body),
            Call(Shape(opener + "{ws}<function={name}", then=(closer, opener)), Named(whole=False)),
        ),
        tails=(closer, "</function>"),
        stops=stops,
    )


def key_value_tags(
    call: str = "tool_call",
    *,
    name: str = "{name}",
    key: str = "arg_key",
    value: str = "arg_value",
    section: str = "",
    suffix: str = "",
    think: Pairs = (THINK,),
    stops: tuple[str, ...] = GLM_STOPS,
) -> Markup:
    """`<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> … </tool_call>`, or JSON in the same tags.

    The name is final only at the first key or the closer. A value may lack its opener. `section` wraps the calls;
    `suffix` is a hole for what a tokenizer adds to the markers' names.
    """
    opener, closer = f"<{call}{suffix}>", f"</{call}{suffix}>"
    key_tag = f"<{key}{suffix}>{{key}}</{key}{suffix}>"
    tails = (closer,) if not section else (closer, f"</{section}{suffix}>")
    body = Parameters(
        opens=(key_tag + f"{{ws}}<{value}{suffix}>", key_tag),
        closes=(f"</{value}{suffix}>",),
        ends=(closer,),
        beyond=(opener, *tails[1:]),
    )
    openers = (f"<{section}{suffix}>{{ws}}{opener}", opener) if section else (opener,)
    as_json = JsonCalls(form=Form.OBJECT, closes=(closer,))
    return Markup(
        think=thinking(think),
        calls=(
            *(Call(Shape(o, then=("{",)), as_json) for o in openers),
            *(Call(Shape(o + "{ws}" + name, then=body.follows), body) for o in openers),
        ),
        tails=tails,
        stops=stops,
    )


def attribute_tags(
    token: str, *, space: str = "", think: Pairs = (THINK,), stops: tuple[str, ...] = DEEPSEEK_STOPS
) -> Markup:
    """`<｜DSML｜tool_calls> <｜DSML｜invoke name="N"> <｜DSML｜parameter name="K" string="true">…`: types are stated.

    The section's name varies and may be missing; an invocation may close itself, or hold JSON.
    """
    front, back = f"<｜{token}｜{space}", f"</｜{token}｜{space}"
    body = Parameters(
        opens=(
            front + "parameter name={q}{key}{q} string={q}{bool}{q}>",
            front + "parameter name={q}{key}{q}>",
        ),
        closes=(back + "parameter>",),
        ends=(back + "invoke>",),
        beyond=(back + "{word}>", front + "invoke"),
        json=("{",),
        unwrap=("arguments", "input"),
    )
    invoke = front + "invoke name={q}{name}{q}"
    openers = (*(f"{front}{section}>{{ws}}{invoke}" for section in SECTIONS), invoke)
    return Markup(
        think=thinking(think),
        calls=(
            *(Call(Shape(o + ">", then=body.follows), body) for o in openers),
            *(Call(Shape(o + "{ws}/>"), Named(whole=True)) for o in openers),
        ),
        tails=(back + "{word}>",),
        stops=stops,
    )


def invoke_tags(
    section: Sequence[str],
    prefix: str = "",
    *,
    tails: tuple[str, ...] = (),
    think: Pairs = (THINK,),
    stops: tuple[str, ...] = (),
    json: bool = False,
) -> Markup:
    """`<invoke name="N"> <parameter name="K">value</parameter> … </invoke>` in a section; types are the schema's.

    `section` are the openers before the first call, which may also be missing at the start of a line.
    """
    body = Parameters(
        opens=(f"<{prefix}parameter name={{q}}{{key}}{{q}}>",),
        closes=(f"</{prefix}parameter>",),
        ends=(f"</{prefix}invoke>",),
        beyond=(*tails, f"<{prefix}invoke name="),
        json=("{",) if json else (),
    )
    invoke = f"<{prefix}invoke name={{q}}{{name}}{{q}}>"
    return Markup(
        think=thinking(think),
        calls=(
            *(Call(Shape(s + "{ws}" + invoke, then=body.follows), body) for s in section),
            Call(Shape(invoke, then=body.follows, line_start=True), body),
            *(Call(Shape(s, then=("{",)), JsonCalls(closes=tails)) for s in section if json),
        ),
        tails=(*tails, f"</{prefix}invoke>"),
        stops=stops,
    )


def tagged_json(
    *openers: str, closer: str, think: Pairs = (THINK,), stops: tuple[str, ...] = CHATML_STOPS, form: Form = Form.OBJECT
) -> Markup:
    """`<tool_call> {"name": NAME, "arguments": {…}} </tool_call>`, or a list of such."""
    then = ("{",) if form is Form.OBJECT else ("[", "{")
    body = JsonCalls(form=form, closes=(closer,) if closer else ())
    return Markup(
        think=thinking(think),
        calls=tuple(Call(Shape(opener, then=then), body) for opener in openers),
        tails=(closer,) if closer else (),
        stops=stops,
    )
