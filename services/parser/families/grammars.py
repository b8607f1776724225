"""Grammars that more than one family has, but for names."""

from services.parser.markup import Call, Markup, Think
from services.parser.readers.broken import Broken
from services.parser.readers.calls import Form, JsonCalls
from services.parser.readers.parameters import Parameters
from services.parser.shapes import Shape

CHATML_STOPS = ("<|im_end|>", "<|endoftext|>")
THINK = ("<think>", "</think>")
THINK_STYLE = "<think>\n{text}\n</think>\n\n"


def function_tags(
    wrapper: str = "tool_call",
    *,
    frame: bool = True,
    think: tuple[str, str] | None = THINK,
    stops: tuple[str, ...] = CHATML_STOPS,
) -> Markup:
    """`<tool_call> <function=NAME> <parameter=KEY> value </parameter> … </function> </tool_call>`."""
    opener, closer = f"<{wrapper}>", f"</{wrapper}>"
    body = Parameters(
        opens=("<parameter={key}>",),
        closes="</parameter>",
        ends=("</function>",),
        beyond=(closer, opener, "<function="),
        frame=frame,
    )
    cut = (closer, opener)
    return Markup(
        think=Think(*think) if think else None,
        calls=(
            Call(Shape(opener + "{ws}<function={name}>", then=body.follows), body),
            Call(Shape("<function={name}>", then=body.follows, line_start=True), body),
            Call(Shape(opener + "{ws}<function={name}", then=cut), Broken()),
        ),
        tails=(closer, "</function>"),
        stops=stops,
    )


def tagged_json(
    wrapper: str, *, think: tuple[str, str] | None = THINK, stops: tuple[str, ...] = CHATML_STOPS
) -> Markup:
    """`<tool_call> {"name": NAME, "arguments": {…}} </tool_call>`."""
    opener, closer = f"<{wrapper}>", f"</{wrapper}>"
    return Markup(
        think=Think(*think) if think else None,
        calls=(Call(Shape(opener, then=("{",)), JsonCalls(form=Form.OBJECT, closes=(closer,))),),
        tails=(closer,),
        stops=stops,
    )
