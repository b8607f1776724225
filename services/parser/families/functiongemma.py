r"""FunctionGemma.

    <start_function_call>call:run_shell{cmd:<escape>ls<escape>}<end_function_call>

Special: Gemma 4's objects with other tokens; no reasoning.
"""

from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.calls import Form, JsonCalls
from services.parser.readers.gemma import GemmaValues, gemma_style
from services.parser.shapes import Shape
from services.parser.writing import Style

TOKEN = "<escape>"
END = "<end_function_call>"
STOPS = ("<end_of_turn>", "<start_function_response>")

FAMILY = Family(
    name="functiongemma",
    models="FunctionGemma",
    tool_parsers=("functiongemma",),
    grammar=Markup(
        calls=(
            Call(
                Shape("<start_function_call>{ws}call:{ws}{name}", then=("{",)),
                JsonCalls(form=Form.ARGUMENTS, closes=(END,), values=GemmaValues(TOKEN, END)),
            ),
        ),
        tails=(END,),
        stops=STOPS,
    ),
    style=Style(call="<start_function_call>call:{name}{arguments}" + END, arguments=gemma_style(TOKEN)),
    markers=("<start_function_call>", END, TOKEN),
    stops=STOPS,
    evidence=("<start_function_call>",),
)
