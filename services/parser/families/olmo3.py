r"""OLMo 3.

    <think>Look first.</think><function_calls>run_shell(cmd="ls")\nping()</function_calls>

Special: one call a line; JSON's constants are read too. Think models' prompts open reasoning.
"""

from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, thinking
from services.parser.families.pythonic import STYLE
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.pythonic import Pythonic
from services.parser.shapes import Shape
from services.parser.writing import Style

START, END = "<function_calls>", "</function_calls>"
FIRST = START + "{ws}{name}{ws}({ws}"

FAMILY = Family(
    name="olmo3",
    models="OLMo 3",
    tool_parsers=("olmo3",),
    reasoning_parsers=("olmo3",),
    grammar=Markup(
        think=thinking([THINK]),
        calls=(
            Call(Shape(START, then=("[",)), Pythonic(START, (END,))),
            *(Call(Shape(FIRST + first), Pythonic(START, (END,))) for first in ("{bare}{ws}=", ")")),
        ),
        tails=(END,),
        stops=CHATML_STOPS,
    ),
    style=Style(call=START + "{name}({arguments})" + END, arguments=STYLE.arguments, reasoning=BARE_THINK),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=THINK,
    stops=CHATML_STOPS,
    evidence=(START, END),
    model_types=("olmo3",),
)
