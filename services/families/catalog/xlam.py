r"""xLAM.

    [{"name": "run_shell", "arguments": {"cmd": "ls"}}]   bare, in ```json, or after [TOOL_CALLS], <tool_call> or </think>

Special: a bare list is its own marker; a list without a call is text.
"""

from services.families.authoring import (
    CHATML_STOPS,
    FRAMED_THINK,
    THINK,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Shape,
    Style,
)

MARKED = JsonCalls(form=Form.LIST, call_closers=("</tool_call>",))
FENCED = JsonCalls(form=Form.LIST, call_closers=("```",), strict=True)

FAMILY = Family(
    name="xlam",
    models="xLAM 2",
    grammar=Markup(
        think=(THINK,),
        calls=(
            CallMarker(Shape("<tool_call>", then=("[", "{")), MARKED),
            CallMarker(Shape("[TOOL_CALLS]", then=("[", "{")), JsonCalls(form=Form.LIST)),
            CallMarker(Shape("```json{ws}[{ws}{", then=('"name"',), line_start=True), FENCED),
            CallMarker(Shape("[{ws}{", then=('"name"',)), JsonCalls(form=Form.LIST, strict=True)),
        ),
        tails=("</tool_call>",),
        joints=("```\n",),
        stops=("<|eot_id|>", *CHATML_STOPS),
    ),
    style=Style(call='[{"name": "{name}", "arguments": {arguments}}]', reasoning=FRAMED_THINK),
)
