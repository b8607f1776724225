r"""Functionary 3.1, and Llama 3.1 with custom tools.

<function=run_shell>{"cmd": "ls"}</function>
"""

from services.families.authoring import CallMarker, Family, Form, JsonCalls, Markup, Shape, Style

OPENER, CLOSER = "<function={name}>", "</function>"

FAMILY = Family(
    name="functionary",
    models="Functionary 3.1",
    tool_parsers=("functionary_v31",),
    grammar=Markup(
        calls=(
            CallMarker(
                Shape(OPENER, then=("{", '"', "null", CLOSER)),
                JsonCalls(form=Form.ARGUMENTS, call_closers=(CLOSER,)),
            ),
        ),
        tails=(CLOSER,),
        stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ),
    style=Style(call=OPENER + "{arguments}" + CLOSER),
    evidence=("<function=",),
)
