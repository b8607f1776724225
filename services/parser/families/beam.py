r"""Beam.

    <|channel|>analysis<|message|>Look first.<|end|><|start|>assistant to=run_shell<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name="cmd">\nls\n</rfl:parameter><|call|>

Special: harmony's headers; arguments are tags with a line break on each side of a value.
"""

from services.parser.channels import Channels, Fields, Piece, Said, Tool
from services.parser.families.gpt_oss import CHANNELS, ENDS, FOLLOWS, HEADER, NOBODY
from services.parser.family import Family
from services.parser.readers.parameters import Parameters
from services.parser.shapes import Shape
from services.parser.writing import Style, Tags

ARGUMENTS = Parameters(
    opens=("<rfl:parameter name={q}{key}{q}>",),
    closes=("</rfl:parameter>",),
    ends=ENDS,
    beyond=("<|start|>",),
    frame=True,
    json=("{",),
    stop_closes=True,
    rename=("functions.",),
)


def route(fields: Fields) -> Said | Tool:
    """What a message with this header is."""
    recipient = fields.get("to")
    if recipient is not None and recipient not in NOBODY:
        return Tool(recipient, ARGUMENTS)
    return Said.REASONING if fields.get("channel") == "analysis" else Said.TEXT


FAMILY = Family(
    name="beam",
    models="Beam",
    tool_parsers=("beam",),
    reasoning_parsers=("beam",),
    grammar=Channels(
        header=(Piece(Shape("{ws}xml", then=("<|",))), *HEADER),
        route=route,
        starts=(Shape("<|start|>assistant", then=FOLLOWS),),
        again=tuple(Shape(f"<|channel|>{channel}", then=FOLLOWS) for channel in CHANNELS),
        ends=ENDS,
    ),
    style=Style(
        call=" to={name}<|channel|>analysis <|constrain|>xml<|message|>{arguments}<|call|>",
        arguments=Tags('<rfl:parameter name="{key}">\n{value}\n</rfl:parameter>'),
        reasoning="<|channel|>analysis<|message|>{text}<|end|>",
        text="<|channel|>final<|message|>{text}<|end|>",
        joint="<|start|>assistant",
    ),
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", *ENDS),
    evidence=("<rfl:parameter",),
)
