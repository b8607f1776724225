r"""DeepSeek V3.2.

    Look first.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="run_shell">\n<｜DSML｜parameter name="cmd" string="true">ls</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>

Special: strings are marked (`string="true"`) and raw, everything else is JSON, or text if it is not
valid JSON. The section may be missing; text may follow it.
"""

from services.families.authoring import attribute_style
from services.families.catalog.deepseek_v4 import FAMILY as DEEPSEEK_V4

FAMILY = DEEPSEEK_V4.variant(
    "deepseek_v32",
    "DeepSeek V3.2",
    tool_parsers=("deepseekv32", "deepseek_v3_2"),
    style=attribute_style("DSML", "function_calls"),
    evidence=("<｜DSML｜function_calls",),
    model_types=("deepseek_v32",),
)
