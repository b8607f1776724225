r"""DeepSeek V4.

    Look first.</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="run_shell">\n<｜DSML｜parameter name="cmd" string="true">ls</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>

Special: V3.2's grammar with another section; its name varies (`toolcalls`, `tool`). A call may
close itself, hold JSON, or wrap all arguments in one parameter.
"""

from services.families.authoring import THINK, Family, attribute_style, attribute_tags

FAMILY = Family(
    name="deepseek_v4",
    models="DeepSeek V4",
    tool_parsers=("deepseek-v4", "deepseekv4"),
    reasoning_parsers=("deepseek-v4",),
    grammar=attribute_tags("DSML"),
    style=attribute_style("DSML"),
    prompt_opens_reasoning=True,
    markers=("｜DSML｜", *THINK),
    evidence=("<｜DSML｜tool_calls",),
    model_types=("deepseek_v4",),
)
