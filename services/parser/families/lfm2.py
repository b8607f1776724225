r"""LFM 2 and 2.5.

    <think>Look first.</think><|tool_call_start|>[run_shell(cmd="ls")]<|tool_call_end|>

Special: the template prints strings with quotes inside unescaped; a list of JSON objects may stand there instead.
"""

from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, thinking
from services.parser.families.pythonic import STYLE
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.calls import Form, JsonCalls
from services.parser.readers.pythonic import Pythonic
from services.parser.shapes import Shape
from services.parser.writing import Style

START, END = "<|tool_call_start|>", "<|tool_call_end|>"

FAMILY = Family(
    name="lfm2",
    models="LFM2, LFM2.5",
    tool_parsers=("lfm2",),
    grammar=Markup(
        think=thinking([THINK]),
        calls=(
            Call(Shape(START, then=("[{", "[ {", "[\n", "{")), JsonCalls(form=Form.LIST, closes=(END,))),
            Call(Shape(START, then=("[",)), Pythonic(START, (END,))),
        ),
        tails=(END,),
        stops=CHATML_STOPS,
    ),
    style=Style(call=START + STYLE.call + END, arguments=STYLE.arguments, reasoning=BARE_THINK),
    think=THINK,
    markers=(START, END, *THINK),
    stops=CHATML_STOPS,
    evidence=(START, END),
    model_types=("lfm2", "lfm2_moe", "lfm2_vl"),
)
