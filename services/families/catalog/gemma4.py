r"""Gemma 4.

    <|channel>thought\nLook first.<channel|><|tool_call>call:run_shell{cmd:<|"|>ls<|"|>,timeout_s:5}<tool_call|>

Special: its own syntax for argument objects; the model opens its reasoning, and may do so again.
With thinking off the prompt ends in an empty reasoning.
"""

from services.families.authoring import Family, GemmaStyle, Style, object_calls

TOKEN = '<|"|>'
END = "<tool_call|>"
THINK = ("<|channel>thought", "<channel|>")

FAMILY = Family(
    name="gemma4",
    models="Gemma 4",
    tool_parsers=("gemma-4",),
    reasoning_parsers=("gemma-4",),
    grammar=object_calls(
        "<|tool_call>", TOKEN, END, think=(THINK,), stops=("<turn|>", "<|tool_response>")
    ),
    style=Style(
        call="<|tool_call>call:{name}{arguments}" + END,
        arguments=GemmaStyle(TOKEN),
        reasoning="<|channel>thought\n{text}<channel|>",
    ),
    markers=("<|tool_call>", END, TOKEN, "<|channel>", "<channel|>"),
    evidence=("<|tool_call>", TOKEN),
    model_types=("gemma4", "gemma4_text"),
)
