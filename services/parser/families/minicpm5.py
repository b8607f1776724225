r"""MiniCPM 5.

    <think>Look first.</think><function name="run_shell"><param name="cmd">ls</param></function>

Special: no wrapper; a value may stand in `<![CDATA[…]]>`.
"""

from services.parser.families.grammars import BARE_THINK, CHATML_STOPS, THINK, thinking
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.parameters import Parameters
from services.parser.shapes import Shape
from services.parser.writing import Style, Tags

PARAMETER = "<param name={q}{key}{q}>"
ARGUMENTS = Parameters(
    opens=(PARAMETER + "{ws}<![CDATA[", PARAMETER),
    closes=("]]></param>", "</param>"),
    ends=("</function>",),
    beyond=("<function name=",),
)

FAMILY = Family(
    name="minicpm5",
    models="MiniCPM 5",
    tool_parsers=("minicpm5",),
    grammar=Markup(
        think=thinking([THINK]),
        calls=(Call(Shape("<function name={q}{name}{q}>", then=ARGUMENTS.follows), ARGUMENTS),),
        tails=("</function>",),
        stops=CHATML_STOPS,
    ),
    style=Style(
        call='<function name="{name}">{arguments}</function>',
        arguments=Tags('<param name="{key}">{value}</param>'),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    markers=THINK,
    stops=CHATML_STOPS,
    evidence=("<param name=",),
)
