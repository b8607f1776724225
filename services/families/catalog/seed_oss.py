r"""Seed-OSS.

    <seed:think>Look first.</seed:think><seed:tool_call>\n<function=run_shell>\n<parameter=cmd>ls</parameter>\n</function>\n</seed:tool_call>

Special: values stand inline, exact. Budget reflections (`<seed:cot_budget_reflect>`) are part of
the reasoning; with a budget of 0 the prompt opens reasoning and a reflection.
"""

from services.families.authoring import Family, Style, Tags, function_tags

THINK = ("<seed:think>", "</seed:think>")

FAMILY = Family(
    name="seed_oss",
    models="Seed-OSS",
    grammar=function_tags("seed:tool_call", frame=False, think=(THINK,), stops=("<seed:eos>",)),
    style=Style(
        call="<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
        arguments=Tags("<parameter={key}>{value}</parameter>\n"),
    ),
    markers=("<seed:tool_call>", "</seed:tool_call>", *THINK),
    evidence=("<seed:tool_call>",),
    model_types=("seed_oss",),
)
