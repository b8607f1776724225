r"""CWM (Code World Model).

    <think>Look first.</think>\n<tool: bash>\nls\n</tool>

Special: the body is the tool's only parameter as bare text, or JSON with all arguments.
"""

from services.families.authoring import THINK, CallMarker, Family, Markup, Shape, Style, TextCall

CALL, END = "<tool: ", "</tool>"
BODY = TextCall(END, (CALL,))

FAMILY = Family(
    name="cwm",
    models="CWM",
    grammar=Markup(
        think=(THINK,),
        calls=(CallMarker(Shape(CALL + "{name}>\n"), BODY),),
        tails=(END,),
        stops=("<|eot_id|>",),
    ),
    style=Style(call=CALL + "{name}>\n{arguments}\n" + END),
    prompt_opens_reasoning=True,
    markers=THINK,
    evidence=(CALL, END),
    model_types=("cwm",),
)
