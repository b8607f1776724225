r"""K2 Horizon.

    Look first.</ifm|think><ifm|tool_calls><ifm|tool_call>run_shell\n<ifm|arg_key>cmd</ifm|arg_key>\n<ifm|arg_value>ls</ifm|arg_value>\n</ifm|tool_call></ifm|tool_calls>

Special: GLM's tags, a value's type may be stated (`<ifm|arg_type>`), the body may be JSON. The
prompt always opens reasoning, by `<ifm|think>`, `<ifm|think_fast>` or `<ifm|think_faster>`.
"""

from services.families.authoring import (
    CallMarker,
    Family,
    JsonCalls,
    Markup,
    Parameters,
    Shape,
    Style,
    Tags,
)

KEY = "<ifm|arg_key>{key}</ifm|arg_key>"
VALUE = "{ws}<ifm|arg_value>"
SECTION = "<ifm|tool_calls>{ws}"
CALL = "<ifm|tool_call>"
TAILS = ("</ifm|tool_call>", "</ifm|tool_calls>")

ARGUMENTS = Parameters(
    parameter_tags=(KEY + "{ws}<ifm|arg_type>{word}</ifm|arg_type>" + VALUE, KEY + VALUE),
    bare_tags=(KEY,),
    pieces=("</ifm|arg_key>", "<ifm|arg_value>"),
    parameter_closers=("</ifm|arg_value>",),
    call_closers=("</ifm|tool_call>",),
    next_markers=(CALL, "</ifm|tool_calls>"),
    call_tags=(CALL + "{ws}{name}",),
    json=("{",),
)

FAMILY = Family(
    name="k2_horizon",
    models="K2 Horizon",
    grammar=Markup(
        think=(("<ifm|think{suffix}>", "</ifm|think{suffix}>"),),
        calls=(
            *(
                CallMarker(Shape(o, then=("{",)), JsonCalls(call_closers=TAILS[:1]))
                for o in (SECTION + CALL, CALL)
            ),
            *(ARGUMENTS.call(o + "{ws}{name}") for o in (SECTION + CALL, CALL)),
        ),
        tails=TAILS,
        stops=("<|im_end|>", "<ifm|im_end>", "<|endoftext|>"),
    ),
    style=Style(
        call="<ifm|tool_calls><ifm|tool_call>{name}\n{arguments}</ifm|tool_call></ifm|tool_calls>",
        arguments=Tags(
            "<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>{value}</ifm|arg_value>\n"
        ),
    ),
    think=("<ifm|think>", "</ifm|think>"),
    prompt_opens_reasoning=True,
    markers=(
        "<ifm|tool_calls>",
        "</ifm|tool_calls>",
        CALL,
        TAILS[0],
        "<ifm|think>",
        "</ifm|think>",
    ),
    evidence=("<ifm|tool_call>",),
)
