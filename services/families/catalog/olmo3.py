r"""OLMo 3.

    <think>Look first.</think><function_calls>run_shell(cmd="ls")\nping()</function_calls>

Special: one call a line; JSON's constants are read too. Think models' prompts open reasoning.
"""

from services.families.authoring import (
    CHATML_STOPS,
    THINK,
    CallMarker,
    Family,
    Markup,
    Pythonic,
    Shape,
    Style,
)
from services.families.catalog.pythonic import STYLE

START, END = "<function_calls>", "</function_calls>"
FIRST = START + "{ws}{name}{ws}({ws}"

FAMILY = Family(
    name="olmo3",
    models="OLMo 3",
    grammar=Markup(
        think=(THINK,),
        calls=(
            CallMarker(Shape(START, then=("[",)), Pythonic(START, (END,))),
            *(
                CallMarker(Shape(FIRST + first), Pythonic(START, (END,)))
                for first in ("{bare}{ws}=", ")")
            ),
        ),
        tails=(END,),
        stops=CHATML_STOPS,
    ),
    style=Style(call=START + "{name}({arguments})" + END, arguments=STYLE.arguments),
    prompt_opens_reasoning=True,
    markers=THINK,
    evidence=(START, END),
    model_types=("olmo3",),
)
