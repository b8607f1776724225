r"""DeepSeek V3.1.

    Look first.</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run_shell<｜tool▁sep｜>{"cmd": "ls"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Special: V3's markers without fence and type; the prompt ends in `<think>` or `</think>`.
"""

from services.parser.families.deepseek_v3 import CALL, END, SECTION, SECTION_END
from services.parser.families.grammars import BARE_THINK, DEEPSEEK_STOPS, THINK, thinking
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.calls import Form, JsonCalls
from services.parser.shapes import Shape
from services.parser.writing import Style

ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, closes=(END,))

FAMILY = Family(
    name="deepseek_v31",
    models="DeepSeek V3.1",
    tool_parsers=("deepseek_v31", "deepseekv31", "deepseek_v3_1"),
    reasoning_parsers=("deepseek-v3", "deepseek_v3_1"),
    grammar=Markup(
        think=thinking([THINK]),
        calls=tuple(
            Call(Shape(opener + "{name}<｜tool▁sep｜>", then=("{", '"', END)), ARGUMENTS)
            for opener in (SECTION + "{ws}" + CALL, CALL)
        ),
        tails=(SECTION_END, END),
        stops=DEEPSEEK_STOPS,
    ),
    style=Style(
        call=SECTION + CALL + "{name}<｜tool▁sep｜>{arguments}" + END + SECTION_END,
        reasoning=BARE_THINK,
    ),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=(SECTION, CALL, END, SECTION_END, "<｜tool▁sep｜>", *THINK),
    stops=DEEPSEEK_STOPS,
    evidence=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"),
)
