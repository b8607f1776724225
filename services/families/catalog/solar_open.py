r"""Solar Open.

    <|think|>Look first.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>run_shell<|tool_call:args|>{"cmd": "ls"}<|tool_call:end|><|calls|>
    <|begin|>assistant<|content|>Done.<|end|>

Special: the prompt ends in `<|begin|>assistant`; the model chooses the calls' ids, ten letters or
digits.
"""

from services.families.authoring import (
    CallMarker,
    Channels,
    Family,
    Form,
    JsonCalls,
    Kind,
    MessageKind,
    Section,
    Shape,
    Style,
    ToolChannel,
)

ENDS = ("<|end|>", "<|calls|>")
BEGIN = "<|begin|>"
HEADS = ("<|think|>", "<|content|>", "<|tool_calls|>")
STARTS = (
    Shape(BEGIN + "assistant", then=HEADS),
    Shape(BEGIN, then=HEADS),
    Shape(BEGIN + "{ws}{name}", then=HEADS, marker=BEGIN + "{ws}{name}"),
)
CALL = "<|tool_call:begin|>{word}<|tool_call:name|>{name}<|tool_call:args|>"
CALL_END = "<|tool_call:end|>"
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, call_closers=(CALL_END,))
CALLS = Section(
    (CallMarker(Shape(CALL, then=("{", "null", CALL_END)), ARGUMENTS),),
    (*map(Shape, ENDS), *STARTS),
)


def route(header: str) -> Kind:
    """The kind of a message with this header."""
    if header.endswith("<|tool_calls|>"):
        return ToolChannel(None, CALLS)
    return MessageKind.REASONING if header.endswith("<|think|>") else MessageKind.TEXT


FAMILY = Family(
    name="solar_open",
    models="Solar Open",
    tool_parsers=("solar",),
    grammar=Channels(
        route=route,
        starts=STARTS,
        bodies=tuple(map(Shape, HEADS)),
        ends=ENDS,
        parts=(BEGIN, "assistant"),
        interrupts=tuple(map(Shape, HEADS[1:])),
    ),
    style=Style(
        call="<|tool_calls|>"
        + CALL.replace("{word}", "a1b2c3d4e5")
        + "{arguments}"
        + CALL_END
        + "<|calls|>",
        text="<|content|>{text}<|end|>",
        joint=BEGIN + "assistant",
    ),
    think=("<|think|>", "<|end|>"),
    markers=(BEGIN, *HEADS, *ENDS, "<|tool_call:begin|>", CALL_END),
    stops=("<|calls|>",),
    evidence=("<|tool_call:begin|>", "<|tool_call:args|>"),
    model_types=("solar_open",),
)
