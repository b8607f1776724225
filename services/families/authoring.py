"""The names that the file of a model family imports, and grammars that several families share.

A family is one module with a `FAMILY`; see docs/families.md.
"""

from collections.abc import Iterable, Sequence
from itertools import product

from services.families.family import Family
from services.families.grammar.call_marker import CallMarker, CallReader
from services.families.grammar.channels import Channels, Kind, MessageKind, Section, ToolChannel
from services.families.grammar.marker_sets import TagPairs
from services.families.grammar.markup import Markup
from services.families.grammar.shapes import END, Shape
from services.families.readers.gemma import GemmaStyle, GemmaValues
from services.families.readers.json_calls import Form, JsonCalls
from services.families.readers.named_calls import BareCall, UnreadableCall
from services.families.readers.nested import Nested, NestedStyle
from services.families.readers.parameters import Parameters
from services.families.readers.pythonic import Pythonic, python_style
from services.families.readers.text_call import TextCall
from services.families.writing import Style, Tags

__all__ = [
    "CHATML_STOPS",
    "DEEPSEEK_STOPS",
    "END",
    "FRAMED_THINK",
    "GLM_STOPS",
    "THINK",
    "BareCall",
    "CallMarker",
    "CallReader",
    "Channels",
    "Family",
    "Form",
    "GemmaStyle",
    "JsonCalls",
    "Kind",
    "Markup",
    "MessageKind",
    "Nested",
    "NestedStyle",
    "Parameters",
    "Pythonic",
    "Section",
    "Shape",
    "Style",
    "Tags",
    "TextCall",
    "ToolChannel",
    "attribute_style",
    "attribute_tags",
    "function_tags",
    "invoke_tags",
    "key_value_tags",
    "object_calls",
    "python_style",
    "tagged_json",
]

CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
DEEPSEEK_STOPS = ("<｜end▁of▁sentence｜>",)
GLM_STOPS = ("<|observation|>", "<|user|>", "<|endoftext|>")
THINK = ("<think>", "</think>")
FRAMED_THINK = "<think>\n{text}\n</think>\n\n"
SECTIONS = ("tool_calls", "function_calls", "calls", "toolcalls", "tool")


def unreadable_calls(
    sections: Iterable[str], opener: str, closers: tuple[str, ...]
) -> list[CallMarker]:
    """Calls that never complete: one of `sections` and a tag that names a tool, or `opener` with
    the name of one, without the tags that may follow."""
    body = UnreadableCall(closers)
    return [
        *(
            CallMarker(Shape(text + "{ws}<{id}", ("<", END), marker=text), body)
            for text in sections
        ),
        CallMarker(Shape(opener + "{id}", ("<", END), line_start=True, marker=opener), body),
    ]


def function_tags(
    wrapper: str = "tool_call",
    *,
    frame: bool,
    think: TagPairs = (THINK,),
    stops: tuple[str, ...] = CHATML_STOPS,
) -> Markup:
    """`<tool_call> <function=NAME> <parameter=KEY> value </parameter> … </function> </tool_call>`.

    `frame`: the template puts a line break on each side of a value.
    """
    opener = f"<{wrapper}>"
    closer = f"</{wrapper}>"
    body = Parameters(
        parameter_tags=("<parameter={key}>",),
        parameter_closers=("</parameter>",),
        call_closers=("</function>",),
        next_markers=(closer, opener, "<function="),
        call_tags=(opener + "{ws}<function={name}{ws}>", "<function={name}{ws}>"),
        frame=frame,
    )
    return Markup(
        think=think,
        calls=(
            body.call(opener + "{ws}<function={name}{ws}>"),
            body.call("<function={name}{ws}>", line_start=True),
            CallMarker(
                Shape(opener + "{ws}<function={name}", then=(closer, opener)), BareCall(whole=False)
            ),
            *unreadable_calls((opener,), "<function={name}{ws}>", ("</function>", closer)),
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
    think: TagPairs = (THINK,),
    stops: tuple[str, ...] = GLM_STOPS,
) -> Markup:
    """`<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> … </tool_call>`, or JSON
    in the same tags, alone or after `NAME>`.

    The name ends at the first key or the closer. A value may lack its opener. `section` wraps the
    calls; `suffix` is a hole for text that a tokenizer adds to the names of markers.
    """
    opener = f"<{call}{suffix}>"
    closer = f"</{call}{suffix}>"
    key_tag = f"<{key}{suffix}>{{key}}</{key}{suffix}>"
    sections = (f"<{section}{suffix}>", f"</{section}{suffix}>") if section else ()
    tails = (closer, *sections[1:])
    openers = (*(f"{start}{{ws}}{opener}" for start in sections[:1]), opener)
    names = ("{name}{ws}<tool_sep{suffix}>", "{name}")
    body = Parameters(
        parameter_tags=(key_tag + f"{{ws}}<{value}{suffix}>",),
        bare_tags=(key_tag,),
        pieces=(f"</{key}{suffix}>", f"<{value}{suffix}>"),
        parameter_closers=(f"</{value}{suffix}>",),
        call_closers=(closer,),
        next_markers=(opener, *sections),
        call_tags=tuple(map("{ws}".join, product(openers, names))),
    )
    as_json = JsonCalls(form=Form.OBJECT, call_closers=(closer,))
    arguments = JsonCalls(form=Form.ARGUMENTS, call_closers=(closer,))
    return Markup(
        think=think,
        calls=(
            *(CallMarker(Shape(o, then=("{",)), as_json) for o in openers),
            *(CallMarker(Shape(o + "{ws}{name}>", then=("{",)), arguments) for o in openers),
            *(body.call(o + "{ws}" + name) for o in openers),
            *unreadable_calls(openers, opener + "{name}", (closer,)),
        ),
        tails=tails,
        stops=stops,
    )


def object_calls(
    opener: str, token: str, closer: str, *, think: TagPairs = (), stops: tuple[str, ...] = ()
) -> Markup:
    """`<|tool_call>call:NAME{KEY:<|"|>text<|"|>,KEY:1}<tool_call|>`, with `token` for quotes."""
    opener += "{ws}call:{ws}{name}"
    body = JsonCalls(
        form=Form.ARGUMENTS, call_closers=(closer,), values=GemmaValues(token, closer, opener)
    )
    call = CallMarker(Shape(opener, then=("{", closer)), body)
    return Markup(think=think, calls=(call,), tails=(closer,), stops=stops)


def attribute_tags(token: str, *, stops: tuple[str, ...] = DEEPSEEK_STOPS) -> Markup:
    """`<｜DSML｜tool_calls> <｜DSML｜invoke name="N"> <｜DSML｜parameter name="K" string="true">…`.

    The section's name varies, and the section may be missing. An invocation may close itself, or
    contain JSON. Blanks may precede the name of a tag.
    """
    start = f"<｜{token}｜{{ws}}"
    end = f"</｜{token}｜{{ws}}"
    invoke = start + "invoke name={q}{name}{q}"
    body = Parameters(
        parameter_tags=(
            start + "parameter name={q}{key}{q} string={q}{bool}{q}{ws}>",
            start + "parameter name={q}{key}{q}{ws}>",
        ),
        parameter_closers=(end + "parameter>",),
        call_closers=(end + "invoke>",),
        next_markers=(end + "{word}>", start + "invoke"),
        call_tags=(invoke + "{ws}>",),
        json=("{",),
        unwrap=("arguments", "input"),
    )
    sections = [f"{start}{section}>" for section in SECTIONS]
    openers = {section + "{ws}" + invoke: section for section in sections}
    openers[invoke] = start + "invoke name="
    return Markup(
        think=(THINK,),
        calls=(
            *(body.call(o + "{ws}>", marker=marker) for o, marker in openers.items()),
            *(
                CallMarker(Shape(o + "{ws}/>", marker=marker), BareCall(whole=True))
                for o, marker in openers.items()
            ),
            *unreadable_calls(sections, invoke + "{ws}>", (end + "invoke>", end + "{word}>")),
        ),
        tails=(end + "{word}>",),
        stops=stops,
    )


def attribute_style(token: str, section: str = "tool_calls", *, space: str = "") -> Style:
    """The style of the calls that `attribute_tags` reads."""
    start = f"<｜{token}｜{space}"
    end = f"</｜{token}｜{space}"
    return Style(
        call=f'{start}{section}>\n{start}invoke name="{{name}}">\n'
        f"{{arguments}}{end}invoke>\n{end}{section}>",
        arguments=Tags(
            f'{start}parameter name="{{key}}" string="{{string}}">{{value}}{end}parameter>\n'
        ),
    )


def invoke_tags(
    section: Sequence[str],
    prefix: str = "",
    *,
    tails: tuple[str, ...] = (),
    think: TagPairs = (THINK,),
    stops: tuple[str, ...] = (),
    json: bool = False,
) -> Markup:
    """`<invoke name="N"> <parameter name="K">value</parameter> … </invoke>` in a section; the
    schema gives the types.

    `section` lists the markers that may precede the first call; a call at the start of a line needs
    none.
    """
    invoke = f"<{prefix}invoke name={{q}}{{name}}{{q}}{{ws}}>"
    body = Parameters(
        parameter_tags=(f"<{prefix}parameter name={{q}}{{key}}{{q}}{{ws}}>",),
        parameter_closers=(f"</{prefix}parameter>",),
        call_closers=(f"</{prefix}invoke>",),
        next_markers=(*tails, f"<{prefix}invoke name="),
        call_tags=(invoke,),
        json=("{",) if json else (),
    )
    return Markup(
        think=think,
        calls=(
            *(body.call(s + "{ws}" + invoke) for s in section),
            body.call(invoke, line_start=True),
            *(
                CallMarker(Shape(s, then=("{",)), JsonCalls(call_closers=tails))
                for s in section
                if json
            ),
            *unreadable_calls(section, invoke, (f"</{prefix}invoke>", *tails)),
        ),
        tails=(*tails, f"</{prefix}invoke>"),
        stops=stops,
    )


def tagged_json(
    *openers: str,
    closer: str,
    think: TagPairs = (THINK,),
    stops: tuple[str, ...] = CHATML_STOPS,
    form: Form = Form.OBJECT,
) -> Markup:
    """`<tool_call> {"name": NAME, "arguments": {…}} </tool_call>`, or a list of such objects."""
    then = ("{",) if form in (Form.OBJECT, Form.LINES) else ("[", "{")
    body = JsonCalls(form=form, call_closers=(closer,) if closer else ())
    return Markup(
        think=think,
        calls=tuple(CallMarker(Shape(opener, then=then), body) for opener in openers),
        tails=(closer,) if closer else (),
        stops=stops,
    )
