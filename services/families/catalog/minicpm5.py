r"""MiniCPM 5.

    <think>Look first.</think><function name="run_shell"><param name="cmd">ls</param></function>

Special: no wrapper; a value may stand in `<![CDATA[…]]>`.
"""

from services.families.authoring import CHATML_STOPS, THINK, Family, Markup, Parameters, Style, Tags

PARAMETER = "<param name={q}{key}{q}>"
ARGUMENTS = Parameters(
    opens=(PARAMETER + "{ws}<![CDATA[", PARAMETER),
    closes=("]]>{ws}</param>", "</param>"),
    ends=("</function>",),
    beyond=("<function name=",),
    openers=("<function name={q}{name}{q}>",),
)

FAMILY = Family(
    name="minicpm5",
    models="MiniCPM 5",
    grammar=Markup(
        think=(THINK,),
        calls=(ARGUMENTS.call("<function name={q}{name}{q}>"),),
        tails=("</function>",),
        stops=CHATML_STOPS,
    ),
    style=Style(
        call='<function name="{name}">{arguments}</function>',
        arguments=Tags('<param name="{key}">{value}</param>'),
    ),
    markers=THINK,
    evidence=("<param name=",),
)
