r"""LongCat Flash.

    <longcat_tool_call>\n{"name": "run_shell", "arguments": {"cmd": "ls"}}\n</longcat_tool_call>

Special: Hermes in a wrapper of its own; reasoning is `<longcat_think>`.
"""

from services.families.authoring import Family, Style, tagged_json

THINK = ("<longcat_think>", "</longcat_think>")

FAMILY = Family(
    name="longcat",
    models="LongCat Flash",
    grammar=tagged_json(
        "<longcat_tool_call>",
        closer="</longcat_tool_call>",
        think=(THINK,),
        stops=("</longcat_s>",),
    ),
    style=Style(
        call='<longcat_tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</longcat_tool_call>',
        reasoning="<longcat_think>\n{text}\n</longcat_think>\n",
    ),
    markers=("<longcat_tool_call>", "</longcat_tool_call>", *THINK),
    evidence=("<longcat_tool_call>",),
    model_types=("longcat_flash",),
)
