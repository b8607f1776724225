r"""DeepSeek V4.1.

    Look first.</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="run_shell">\n<｜DSML｜ parameter name="cmd" string="true">ls</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>

Special: V4's grammar; a blank stands before every tag's name, or before some.
"""

from services.families.authoring import attribute_style
from services.families.catalog.deepseek_v4 import FAMILY as DEEPSEEK_V4

FAMILY = DEEPSEEK_V4.variant(
    "deepseek_v41",
    "DeepSeek V4.1",
    tool_parsers=("deepseekv41", "deepseek-v41"),
    reasoning_parsers=("deepseek-v41",),
    style=attribute_style("DSML", "calls", space=" "),
    evidence=("<｜DSML｜ calls",),
    model_types=("deepseek_v41",),
)
