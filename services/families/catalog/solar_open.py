r"""Solar Open.

    <|think|>Look first.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>run_shell<|tool_call:args|>{"cmd": "ls"}<|tool_call:end|><|calls|>
    <|begin|>assistant<|content|>Done.<|end|>

Special: the prompt ends in `<|begin|>assistant`; the model chooses the calls' ids, ten letters or digits.
"""

from services.families.authoring import (
    Call,
    Channels,
    Family,
    Fields,
    Form,
    HeaderPart,
    JsonCalls,
    MessageKind,
    Section,
    Shape,
    Style,
    Tool,
)

ENDS = ("<|end|>", "<|calls|>")
START = Shape("<|begin|>assistant", then=("<|",))
CALL = "<|tool_call:begin|>{word}<|tool_call:name|>{name}<|tool_call:args|>"
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, closes=("<|tool_call:end|>",))
CALLS = Section((Call(Shape(CALL, then=("{",)), ARGUMENTS),), (*map(Shape, ENDS), START))
KINDS: dict[str, MessageKind | Tool] = {
    "think": MessageKind.REASONING,
    "content": MessageKind.TEXT,
    "tool_calls": Tool(None, CALLS),
}
HEADS = tuple(f"<|{kind}|>" for kind in KINDS)


def route(fields: Fields) -> MessageKind | Tool:
    """The kind of a message with this header."""
    return KINDS[fields.get("kind", "content")]


FAMILY = Family(
    name="solar_open",
    models="Solar Open",
    tool_parsers=("solar",),
    grammar=Channels(
        header=tuple(HeaderPart(Shape(head), "kind", kind, last=True) for head, kind in zip(HEADS, KINDS, strict=True)),
        route=route,
        starts=(START,),
        ends=ENDS,
        interrupts=tuple(map(Shape, HEADS[1:])),
    ),
    style=Style(
        call="<|tool_calls|>" + CALL.replace("{word}", "a1b2c3d4e5") + "{arguments}<|tool_call:end|><|calls|>",
        text="<|content|>{text}<|end|>",
        joint="<|begin|>assistant",
    ),
    think=("<|think|>", "<|end|>"),
    markers=("<|begin|>", *HEADS, *ENDS, "<|tool_call:begin|>", "<|tool_call:end|>"),
    stops=("<|calls|>",),
    evidence=("<|tool_call:begin|>", "<|tool_call:args|>"),
    model_types=("solar_open",),
)
