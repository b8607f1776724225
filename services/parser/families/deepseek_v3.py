r"""DeepSeek V3 and R1 with tools.

    Look first.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run_shell\n```json\n{"cmd": "ls"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Special: arguments stand in a code fence; backticks inside a JSON string are payload.
"""

from services.parser.families.grammars import DEEPSEEK_STOPS, FRAMED_THINK, THINK, thinking
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.calls import Form, JsonCalls
from services.parser.shapes import Shape
from services.parser.writing import Style

SECTION = "<｜tool▁calls▁begin｜>"
CALL = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SECTION_END = "<｜tool▁calls▁end｜>"
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, closes=("```{ws}" + END, END))

FAMILY = Family(
    name="deepseek_v3",
    models="DeepSeek V3, V3-0324, R1-0528 (with tools)",
    tool_parsers=("deepseek_v3", "deepseekv3"),
    grammar=Markup(
        think=thinking([THINK]),
        calls=tuple(
            Call(Shape(opener + "function<｜tool▁sep｜>{name}{ws}```json", then=("{",)), ARGUMENTS)
            for opener in (SECTION + "{ws}" + CALL, CALL)
        ),
        tails=(SECTION_END, END),
        stops=DEEPSEEK_STOPS,
    ),
    style=Style(
        call=SECTION + CALL + "function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```" + END + SECTION_END,
        reasoning=FRAMED_THINK,
    ),
    think=THINK,
    prompt_opens_reasoning=True,
    markers=(SECTION, CALL, END, SECTION_END, "<｜tool▁sep｜>", *THINK),
    stops=DEEPSEEK_STOPS,
    evidence=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"),
)
