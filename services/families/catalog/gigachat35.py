r"""GigaChat 3.5.

    Look first.</think>\n\n<｜GCML｜tool_calls>\n<｜GCML｜invoke name="run_shell">\n<｜GCML｜parameter name="cmd" string="true">ls</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>

Special: DeepSeek V4's grammar with a token of its own.
"""

from services.families.authoring import THINK, attribute_style, attribute_tags
from services.families.catalog.deepseek_v4 import FAMILY as DEEPSEEK_V4

FAMILY = DEEPSEEK_V4.variant(
    "gigachat35",
    "GigaChat 3.5",
    grammar=attribute_tags("GCML", stops=("</s>", "<|message_sep|>")),
    style=attribute_style("GCML"),
    markers=("｜GCML｜", *THINK),
    evidence=("<｜GCML｜tool_calls",),
    model_types=("gigachat35",),
)
