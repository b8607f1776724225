r"""gpt-oss (harmony).

    <|channel|>analysis<|message|>Look first.<|end|><|start|>assistant<|channel|>commentary to=functions.run_shell <|constrain|>json<|message|>{"cmd": "ls"}<|call|>
    <|channel|>final<|message|>Done.<|return|>

Special: the prompt ends in `<|start|>assistant`. A recipient, wherever in the header it stands, makes a message a call;
commentary without one is text for the user. `<|call|>` and `<|return|>` are stop tokens and usually missing.
"""

from services.families.authoring import (
    CallReader,
    Channels,
    Family,
    Fields,
    Form,
    HeaderPart,
    JsonCalls,
    MessageKind,
    Shape,
    Style,
    Tool,
)

ENDS = ("<|end|>", "<|call|>", "<|return|>")
CHANNELS = ("analysis", "commentary", "final")
ARGUMENTS = JsonCalls(form=Form.ARGUMENTS, closes=ENDS, stop_closes=True, rename=("functions.",))
HEADER = (
    HeaderPart(Shape("{ws}to={to}", then=("<|", "json", "code")), "to"),
    *(HeaderPart(Shape(f"{{ws}}<|channel|>{channel}"), "channel", channel) for channel in CHANNELS),
    HeaderPart(Shape("{ws}<|constrain|>{word}", then=("<|", "to="))),
    HeaderPart(Shape("{ws}json", then=("<|",))),
    HeaderPart(Shape("{ws}code", then=("<|",))),
    HeaderPart(Shape("{ws}<|message|>"), last=True),
)
FOLLOWS = ("<|message|>", "<|channel|>", "<|constrain|>", "to=")
NOBODY = ("user", "assistant", "all")


def route(fields: Fields, arguments: CallReader = ARGUMENTS) -> MessageKind | Tool:
    """The kind of a message with this header."""
    recipient = fields.get("to")
    if recipient is not None and recipient not in NOBODY:
        return Tool(recipient, arguments)
    return MessageKind.REASONING if fields.get("channel") == "analysis" else MessageKind.TEXT


HARMONY = Channels(
    header=HEADER,
    route=route,
    starts=(Shape("<|start|>assistant", then=FOLLOWS),),
    again=tuple(Shape(f"<|channel|>{channel}", then=FOLLOWS) for channel in CHANNELS),
    ends=ENDS,
)

FAMILY = Family(
    name="gpt_oss",
    models="gpt-oss 20B, 120B",
    tool_parsers=("openai", "gpt-oss", "harmony", "harmony_text"),
    reasoning_parsers=("openai_gptoss", "gpt-oss"),
    grammar=HARMONY,
    style=Style(
        call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
        text="<|channel|>final<|message|>{text}<|end|>",
        joint="<|start|>assistant",
    ),
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", *ENDS),
    evidence=("<|channel|>commentary", "<|message|>"),
    model_types=("gpt_oss",),
)
