r"""DeepSeek V3.2.

    Look first.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="run_shell">\n<｜DSML｜parameter name="cmd" string="true">ls</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>

Special: strings are marked (`string="true"`) and raw, everything else is JSON, and text where it is not. The section may be
missing; text may follow it.
"""

from services.parser.families.grammars import BARE_THINK, DEEPSEEK_STOPS, THINK, attribute_tags
from services.parser.family import Family
from services.parser.writing import Style, Tags

FAMILY = Family(
    name="deepseek_v32",
    models="DeepSeek V3.2",
    tool_parsers=("deepseek_v32", "deepseekv32", "deepseek_v3_2"),
    reasoning_parsers=(),
    grammar=attribute_tags("DSML"),
    style=Style(
        call='<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        arguments=Tags('<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>\n'),
        reasoning=BARE_THINK,
    ),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=("｜DSML｜", *THINK),
    stops=DEEPSEEK_STOPS,
    evidence=("<｜DSML｜function_calls",),
    model_types=("deepseek_v32",),
)
