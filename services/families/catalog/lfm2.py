r"""LFM 2 and 2.5.

    <think>Look first.</think><|tool_call_start|>[run_shell(cmd="ls")]<|tool_call_end|>

Special: the template does not escape quotes inside strings; the calls may also be a list of JSON
objects.
"""

from services.families.authoring import (
    CHATML_STOPS,
    THINK,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Pythonic,
    Shape,
    Style,
)
from services.families.catalog.pythonic import STYLE

START, END = "<|tool_call_start|>", "<|tool_call_end|>"

FAMILY = Family(
    name="lfm2",
    models="LFM2, LFM2.5, openPangu 2",
    tool_parsers=("openpangu_v2",),
    grammar=Markup(
        think=(THINK,),
        calls=(
            CallMarker(
                Shape(START, then=("[{", "[ {", "[\n", "{")),
                JsonCalls(form=Form.LIST, call_closers=(END,)),
            ),
            CallMarker(Shape(START, then=("[",)), Pythonic(START, (END,))),
        ),
        tails=(END,),
        stops=CHATML_STOPS,
    ),
    style=Style(call=START + STYLE.call + END, arguments=STYLE.arguments),
    markers=(START, END, *THINK),
    evidence=(START, END),
    model_types=("lfm2", "lfm2_moe", "lfm2_vl"),
)
