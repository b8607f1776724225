r"""DeepSeek V3 and R1 with tools.

    Look first.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run_shell\n```json\n{"cmd": "ls"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

Special: arguments stand in a code fence; backticks inside a JSON string are payload.
"""

from services.families.authoring import (
    DEEPSEEK_STOPS,
    FRAMED_THINK,
    THINK,
    CallMarker,
    Family,
    Form,
    JsonCalls,
    Markup,
    Shape,
    Style,
)

SECTION = "<｜tool▁calls▁begin｜>"
CALL = "<｜tool▁call▁begin｜>"
END = "<｜tool▁call▁end｜>"
SECTION_END = "<｜tool▁calls▁end｜>"


def grammar(opening: str, then: tuple[str, ...], closes: tuple[str, ...]) -> Markup:
    """The grammar of calls with markers that end in `opening` and JSON arguments that end in
    `closes`."""
    arguments = JsonCalls(form=Form.ARGUMENTS, call_closers=closes)
    openers = (SECTION + "{ws}" + CALL, CALL)
    return Markup(
        think=(THINK,),
        calls=tuple(
            CallMarker(Shape(opener + opening, then=then), arguments) for opener in openers
        ),
        tails=(SECTION_END, END),
        stops=DEEPSEEK_STOPS,
    )


FAMILY = Family(
    name="deepseek_v3",
    models="DeepSeek V3, V3-0324, R1-0528 (with tools)",
    tool_parsers=("deepseekv3",),
    grammar=grammar(
        "function<｜tool▁sep｜>{name}{ws}```json", ("{", "null", "```"), ("```{ws}" + END, END)
    ),
    style=Style(
        call=SECTION
        + CALL
        + "function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        + END
        + SECTION_END,
        reasoning=FRAMED_THINK,
    ),
    prompt_opens_reasoning=True,
    markers=(SECTION, CALL, END, SECTION_END, "<｜tool▁sep｜>", *THINK),
    evidence=("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "```json"),
)
