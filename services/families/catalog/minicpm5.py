r"""MiniCPM 5.

    <think>Look first.</think><function name="run_shell"><param name="cmd">ls</param></function>

Special: no wrapper; a value may stand in `<![CDATA[…]]>`.
"""

from services.families.authoring import CHATML_STOPS, THINK, Family, Markup, Parameters, Style, Tags

PARAMETER = "<param name={q}{key}{q}>"
ARGUMENTS = Parameters(
    parameter_tags=(PARAMETER + "{ws}<![CDATA[", PARAMETER),
    parameter_closers=("]]>{ws}</param>", "</param>"),
    call_closers=("</function>",),
    next_markers=("<function name=",),
    call_tags=("<function name={q}{name}{q}>",),
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
