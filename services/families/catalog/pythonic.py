r"""Calls as a bare Python list.

    [run_shell(cmd='ls', timeout_s=5), ping()]

Special: the list is its own marker, at the start of the output or of a line (there only if it calls
a tool of the request).
"""

from services.families.authoring import (
    CallMarker,
    Family,
    Markup,
    Pythonic,
    Shape,
    Style,
    python_style,
)

LIST = "[{ws}{name}{ws}({ws}"
BARE = tuple(
    CallMarker(Shape(LIST + first, line_start=True), Pythonic()) for first in ("{bare}{ws}=", ")")
)
STYLE = Style(call="[{name}({arguments})]", arguments=python_style, joint="\n")

FAMILY = Family(
    name="pythonic",
    models="ToolACE, Llama 3.2 and other models that call in Python",
    grammar=Markup(calls=BARE, stops=("<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|im_end|>")),
    style=STYLE,
)
