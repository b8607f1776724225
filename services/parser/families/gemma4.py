r"""Gemma 4.

    <|channel>thought\nLook first.<channel|><|tool_call>call:run_shell{cmd:<|"|>ls<|"|>,timeout_s:5}<tool_call|>

Special: an argument object of its own kind; the model opens its reasoning, and may do so again. With thinking off the
prompt ends in an empty one.
"""

from services.parser.families.grammars import thinking
from services.parser.family import Family
from services.parser.markup import Call, Markup
from services.parser.readers.calls import Form, JsonCalls
from services.parser.readers.gemma import GemmaValues, gemma_style
from services.parser.shapes import Shape
from services.parser.writing import Style

TOKEN = '<|"|>'
END = "<tool_call|>"
THINK = ("<|channel>thought", "<channel|>")
STOPS = ("<turn|>", "<|tool_response>")

FAMILY = Family(
    name="gemma4",
    models="Gemma 4",
    tool_parsers=("gemma4", "gemma-4"),
    reasoning_parsers=("gemma4", "gemma-4"),
    grammar=Markup(
        think=thinking([THINK]),
        calls=(
            Call(
                Shape("<|tool_call>{ws}call:{ws}{name}", then=("{",)),
                JsonCalls(form=Form.ARGUMENTS, closes=(END,), values=GemmaValues(TOKEN, END)),
            ),
        ),
        tails=(END,),
        stops=STOPS,
    ),
    style=Style(
        call="<|tool_call>call:{name}{arguments}" + END,
        arguments=gemma_style(TOKEN),
        reasoning="<|channel>thought\n{text}<channel|>",
    ),
    think=THINK,
    markers=("<|tool_call>", END, TOKEN, "<|channel>", "<channel|>"),
    stops=STOPS,
    evidence=("<|tool_call>", TOKEN),
    model_types=("gemma4", "gemma4_text"),
)
