r"""Step-Audio 2.

    <tool_call>function\nrun_shell\n{"cmd": "ls"}</tool_call>

Special: the kind of the tool and its name stand on lines before the arguments.
"""

from services.families.authoring import (
    THINK,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Shape,
    Style,
)

CALL, END = "<tool_call>", "</tool_call>"
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, call_closers=(END,))

FAMILY = Family(
    name="step_audio_2",
    models="Step-Audio 2, Step-Audio 2 Think",
    grammar=Markup(
        think=(THINK,),
        calls=(
            CallMarker(Shape(CALL + "{ws}function{ws}{name}", then=("{", "null", END)), ARGUMENTS),
        ),
        tails=(END,),
        stops=("<|EOT|>",),
    ),
    style=Style(call=CALL + "function\n{name}\n{arguments}" + END),
    markers=(CALL, END, *THINK),
    evidence=(CALL + "function\n",),
    model_types=("step_audio_2", "step_audio2"),
)
