r"""Mistral: v13 (Magistral 1.2, Devstral 2, Small 4), v11 (Small 3.2, Magistral 1.0), v3.

    [THINK]Look first.[/THINK][TOOL_CALLS]run_shell[ARGS]{"cmd": "ls"}
    [TOOL_CALLS]run_shell{"cmd": "ls"}
    [TOOL_CALLS]run_shell[CALL_ID]a1b2c3d4e[ARGS]{"cmd": "ls"}
    [TOOL_CALLS] [{"name": "run_shell", "arguments": {"cmd": "ls"}, "id": "a1b2c3d4e"}]

Special: nothing closes a call but its brace; call ids, where written, have 9 characters.
"""

from services.families.authoring import THINK as TEXT_THINK
from services.families.authoring import Call, Family, Form, JsonCalls, Markup, Shape, Style

OPENER = "[TOOL_CALLS]"
THINK = ("[THINK]", "[/THINK]")
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS)

FAMILY = Family(
    name="mistral",
    models="Mistral Small, Medium and Large, Magistral, Devstral, Ministral",
    grammar=Markup(
        think=(THINK, TEXT_THINK),
        calls=(
            Call(Shape(OPENER, then=("[{", "[ {", "[\n", "{")), JsonCalls(form=Form.LIST, ids=("id",))),
            Call(Shape(OPENER + "{ws}{name}[CALL_ID]{word}[ARGS]", then=("{", '"')), ARGUMENTS),
            Call(Shape(OPENER + "{ws}{name}[ARGS]", then=("{", '"')), ARGUMENTS),
            Call(Shape(OPENER + "{ws}{name}", then=("{",)), ARGUMENTS),
        ),
        tails=("[/TOOL_CALLS]",),
        joints=(";",),
        stops=("</s>",),
    ),
    style=Style(call="[TOOL_CALLS]{name}[ARGS]{arguments}"),
    markers=(OPENER, "[ARGS]", "[CALL_ID]", *THINK),
    evidence=("[TOOL_CALLS]",),
    model_types=("mistral", "mistral3", "ministral3", "mixtral", "voxtral"),
)
