r"""Mistral: v13 (Magistral 1.2, Devstral 2, Small 4), v11 (Small 3.2, Magistral 1.0), v3.

    [THINK]Look first.[/THINK][TOOL_CALLS]run_shell[ARGS]{"cmd": "ls"}
    [TOOL_CALLS]run_shell{"cmd": "ls"}
    [TOOL_CALLS]run_shell[CALL_ID]a1b2c3d4e[ARGS]{"cmd": "ls"}
    [TOOL_CALLS] [{"name": "run_shell", "arguments": {"cmd": "ls"}, "id": "a1b2c3d4e"}]

Special: nothing closes a call but its brace, or the end of the turn if it has no arguments; call
ids, where written, have 9 characters.
"""

from services.families.authoring import (
    END,
    BareCall,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Shape,
    Style,
)
from services.families.authoring import THINK as TEXT_THINK

OPENER = "[TOOL_CALLS]"
THINK = ("[THINK]", "[/THINK]")
STOP = "</s>"
SECTION_END = "[/TOOL_CALLS]"
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS)
NAMES = (OPENER + "{ws}{name}[CALL_ID]{word}[ARGS]", OPENER + "{ws}{name}[ARGS]")
NEXT = tuple(Shape("{ws}" + name) for name in NAMES)
ENDS = (SECTION_END, STOP, END)

FAMILY = Family(
    name="mistral",
    models="Mistral Small, Medium and Large, Magistral, Devstral, Ministral",
    grammar=Markup(
        think=(THINK, TEXT_THINK),
        calls=(
            CallMarker(
                Shape(OPENER, then=("[{", "[ {", "[\n", "{")),
                JsonCalls(form=Form.LIST, ids=("id",)),
            ),
            *(CallMarker(Shape(name, then=("{", '"', "null")), ARGUMENTS) for name in NAMES),
            *(
                CallMarker(Shape(name, then=ENDS), BareCall(whole=True, ends_turn=True))
                for name in NAMES
            ),
            *(
                CallMarker(
                    Shape(name, then=(OPENER, "[THINK]")),
                    BareCall(whole=True, next_calls=NEXT),
                )
                for name in NAMES
            ),
            CallMarker(Shape(OPENER + "{ws}{plain_name}", then=("{",)), ARGUMENTS),
        ),
        tails=(SECTION_END,),
        joints=(";",),
        stops=(STOP,),
    ),
    style=Style(call="[TOOL_CALLS]{name}[ARGS]{arguments}"),
    markers=(OPENER, "[ARGS]", "[CALL_ID]", *THINK),
    evidence=("[TOOL_CALLS]",),
    model_types=("mistral", "mistral3", "ministral3", "mixtral", "voxtral"),
)
