r"""Muse Glimmer and Muse Spark.

     to=self<|message|>Look first.<|eom|><|start|>assistant to=functions.run_shell<|message|><atem:function_calls>\n<atem:invoke name="functions.run_shell">\n<atem:parameter name="cmd">ls</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>
    <|start|>assistant to=user<|message|>Done.<|eot|>

Special: the prompt ends in `<|start|>assistant`. The recipient decides: `self` is reasoning, `user`
and `commentary` are text (markup in it is text, too), a tool is calls. A registered tool's name may
have a namespace (`functions.NAME`, `NAME.NAME`).
"""

from re import compile

from services.families.authoring import (
    Channels,
    Family,
    Kind,
    MessageKind,
    Parameters,
    Section,
    Shape,
    Style,
    Tags,
    ToolChannel,
)

ENDS = ("<|eom|>", "<|eot|>")
BODY = "<|message|>"
START = Shape("<|start|>assistant", then=("to=", BODY))
ARGUMENTS = Parameters(
    parameter_tags=("<atem:parameter name={q}{key}{q}>",),
    parameter_closers=("</atem:parameter>",),
    call_closers=("</atem:invoke>",),
    next_markers=("</atem:function_calls>", "<atem:invoke name=", *ENDS, "<|start|>"),
    call_tags=("<atem:invoke name={q}{name}{q}>",),
    rename=("functions.",),
    rename_unknown=False,
)
CALLS = Section(
    (ARGUMENTS.call("<atem:invoke name={q}{name}{q}>"),),
    (*map(Shape, ENDS), START),
    ARGUMENTS.rename,
)
UNMARKED = Shape("<atem:function_calls>", then=("<atem:invoke name=",))
"""Calls inside reasoning that was left open."""
_TO = compile(r"to\s*=\s*([^\s<>|{]+)")
TO = {
    "self": MessageKind.REASONING,
    "user": MessageKind.TEXT,
    "commentary": MessageKind.TEXT,
    "developer": MessageKind.NOTHING,
}


def route(header: str) -> Kind:
    """The kind of a message with this header."""
    recipients = _TO.findall(header.rpartition("<|start|>")[2])
    if recipients:
        recipient = recipients[-1]
    elif header.endswith(UNMARKED.text):
        recipient = "functions"
    else:
        recipient = "user"
    return TO.get(recipient) or ToolChannel(recipient, CALLS)


FAMILY = Family(
    name="muse_glimmer",
    models="Muse Glimmer, Muse Spark",
    tool_parsers=("muse-glimmer", "muse", "musespark1x"),
    grammar=Channels(
        route=route,
        starts=(START, Shape("<|start|>{header}", then=START.then, marker="<|start|>{header}")),
        bodies=(Shape(BODY), UNMARKED),
        ends=ENDS,
        parts=("<|start|>", "assistant"),
        interrupts=(UNMARKED,),
    ),
    style=Style(
        call=' to=functions.{name}<|message|><atem:function_calls>\n<atem:invoke name="functions.{name}">\n{arguments}'
        "</atem:invoke>\n</atem:function_calls><|eom|>",
        arguments=Tags('<atem:parameter name="{key}">{value}</atem:parameter>\n'),
        reasoning=" to=self<|message|>{text}<|eom|>",
        text=" to=user<|message|>{text}<|eom|>",
        joint="<|start|>assistant",
    ),
    think=("<|start|>assistant to=self<|message|>", "<|eom|>"),
    markers=("<|start|>", "<|message|>", *ENDS),
    evidence=("<atem:function_calls>", "<atem:invoke", "<atem:parameter"),
)
